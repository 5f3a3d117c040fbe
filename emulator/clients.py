"""Makes boto3 clients of an emulator."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any


def make_client(exports: Mapping[str, str], service: str, *, config: Any = None) -> Any:
    """Return a client of `service` by an emulator's `exports`; `config` is botocore's."""
    return _session().client(
        service,
        aws_access_key_id=exports["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=exports["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=exports["AWS_ENDPOINT_URL"],
        region_name=exports["AWS_REGION"],
        verify=exports["AWS_CA_BUNDLE"],
        config=config,
    )


@functools.cache
def _session() -> Any:
    """Return a session; it keeps the services' models, which take seconds to read."""
    from boto3.session import Session  # here, for the emulator's own Python imports the package

    return Session()
