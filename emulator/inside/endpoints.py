"""The endpoints of an account: what each is, what runs behind it, and where its traffic goes."""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ministack.core.responses import AccountRegionScopedDict

from emulator.inside.fleet import Fleet
from emulator.inside.services import Json

endpoints: Any = AccountRegionScopedDict()
IN_PROGRESS = ("Creating", "Updating", "RollingBack", "Deleting")


@dataclass
class Endpoint:
    """An endpoint. What runs keeps running whatever happens to the stored configuration."""

    name: str
    arn: str
    config_name: str
    tags: list[Json]
    status: str = "Creating"
    failure: str | None = None
    created: float = field(default_factory=time.time)
    modified: float = field(default_factory=time.time)
    fleet: Fleet | None = None
    """What is in service."""
    incoming: Fleet | None = None
    """What a deployment brings in beside it."""
    incoming_share: float = 0.0
    """The share of the requests that the incoming fleet gets, 0 to 1."""
    pending: Json | None = None
    """What DescribeEndpoint says of a deployment that is under way."""
    deployment: Json | None = None

    @property
    def is_there(self) -> bool:
        """Whether this is still the endpoint of its name."""
        return endpoints.get(self.name) is self

    @property
    def fleets(self) -> list[Fleet]:
        """All that runs."""
        return [fleet for fleet in (self.fleet, self.incoming) if fleet is not None]

    def serving(self) -> Fleet | None:
        """Return the fleet that gets the next request."""
        incoming = self.incoming
        if incoming is not None and random.random() < self.incoming_share:
            return incoming
        return self.fleet

    def settle(self, status: str, failure: str | None = None) -> None:
        """Reach a status that is not in progress."""
        self.failure, self.modified, self.pending = failure, time.time(), None
        self.status = status


def in_background(name: str, work: Callable[[], None]) -> None:
    """Run `work` in a thread, for the account and the Region of this request."""
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
