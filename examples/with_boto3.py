"""Ask a decision endpoint with boto3 and nothing else.

    python examples/with_boto3.py ENDPOINT [REQUEST.json]

A container's own error comes as a ModelError, with its status and its JSON inside.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

DEFAULT_REQUEST = Path(__file__).parent / "support-route.json"


def decide(endpoint: str, request: str) -> dict[str, Any]:
    """Return the endpoint's answer.

    Raises:
        SystemExit: with what the container says is wrong.
    """
    runtime = boto3.client("sagemaker-runtime")
    try:
        answer = runtime.invoke_endpoint(
            EndpointName=endpoint, ContentType="application/json", Body=request
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "ModelError":
            raise
        problem = json.loads(error.response["OriginalMessage"])
        raise SystemExit(f"{problem['code']}: {problem['error']}") from error
    body: dict[str, Any] = json.load(answer["Body"])
    return body


def main(endpoint: str, request: str = str(DEFAULT_REQUEST)) -> None:
    """Ask, and print each option's probability."""
    result = decide(endpoint, Path(request).read_text("utf-8"))["result"]
    for option, probability in zip(result["option_ids"], result["probabilities"], strict=True):
        print(f"{option:<20} {probability:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
