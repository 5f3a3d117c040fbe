"""What a gateway is started with, checked as a whole before anything is opened."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ballot.gateway.errors import StartupError
from ballot.transport import ATTEMPT_SECONDS, MAX_CONNECTIONS

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787


@dataclass(frozen=True)
class SageMakerTarget:
    """An endpoint of SageMaker's, called with the AWS credentials of this process.

    `region` is the one of the environment or the AWS profile, where it is None.
    """

    endpoint_name: str
    region: str | None = None


@dataclass(frozen=True)
class UrlTarget:
    """A server: an adapter, or for chat any server that speaks OpenAI's API, without its path."""

    url: str

    @property
    def shown(self) -> str:
        """The URL without the password that it may hold."""
        scheme, separator, rest = self.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"


Target = SageMakerTarget | UrlTarget


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """All settings of a gateway; seconds, bytes and counts.

    `decisions` and `chat` are where requests go; one of them may be None. `max_requests` bounds
    the requests that are open at once, `max_calls` those of them that are with the endpoints.

    Raises:
        StartupError: naming everything that is wrong.
    """

    decisions: Target | None = None
    chat: Target | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    key: str | None = field(default=None, repr=False)
    max_body_bytes: int = 1 << 20
    body_timeout_seconds: float = 30.0
    call_timeout_seconds: float = ATTEMPT_SECONDS
    drain_timeout_seconds: int = 25
    max_requests: int = 256
    max_calls: int = MAX_CONNECTIONS

    def __post_init__(self) -> None:
        problems = [*self._target_problems(), *self._network_problems(), *self._number_problems()]
        if problems:
            raise StartupError("; ".join(problems))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def _target_problems(self) -> list[str]:
        targets = (self.decisions, self.chat)
        if targets == (None, None):
            return ["name an endpoint or a URL, for decisions, for chat or for both"]
        problems = [
            f"{target.shown[:200]!r} is not a URL such as http://127.0.0.1:8080"
            for target in targets
            if isinstance(target, UrlTarget) and not _is_server_url(target.url)
        ]
        names = [t.endpoint_name for t in targets if isinstance(t, SageMakerTarget)]
        return problems + ["an endpoint's name is empty" for name in names if not name]

    def _network_problems(self) -> list[str]:
        problems = []
        if self.key is None and not self.is_loopback:
            problems.append(
                f"a gateway on {self.host} can be reached from other machines, and whoever reaches "
                "it uses your AWS credentials: give it a key, or leave it on 127.0.0.1"
            )
        if self.key is not None and not _is_key(self.key):
            problems.append("the key must be printable ASCII characters without spaces")
        if not 0 <= self.port <= 65535:
            problems.append(f"the port {self.port} is not between 0 and 65535")
        return problems

    def _number_problems(self) -> list[str]:
        names = (
            "max_body_bytes",
            "body_timeout_seconds",
            "call_timeout_seconds",
            "drain_timeout_seconds",
            "max_requests",
            "max_calls",
        )
        problems = [f"{name} must be more than 0" for name in names if not getattr(self, name) > 0]
        if self.max_calls > MAX_CONNECTIONS:
            problems.append(f"max_calls must be at most {MAX_CONNECTIONS}")
        return problems


def _is_server_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        return has_address and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        return False


def _is_key(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and " " not in key
