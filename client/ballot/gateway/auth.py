"""Who may ask: holders of the key, and pages of the gateway's own, not of other sites."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ballot.gateway.errors import Foreign, Unauthorized

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Refuses requests by their headers alone, before anything else of them is read."""

    def __init__(self, *, key: str | None, loopback_host: str | None) -> None:
        """`loopback_host` is the name of loopback that is listened on; None where it is another."""
        self._digest = None if key is None else _digest(key)
        self._names = None if loopback_host is None else _LOOPBACK_NAMES | {loopback_host.lower()}

    def check_site(self, headers: Headers, *, method: str) -> None:
        """Refuse what a browser sends for a page of another site.

        Such a page can give its own name the address 127.0.0.1 (DNS rebinding), or post across
        sites without reading the answer. Both would spend the user's AWS credentials.

        Raises:
            Foreign: the host is not a name of loopback, or the origin is not this gateway.
        """
        host = headers.get("host", "")
        if self._names is not None and _host_name(host) not in self._names:
            raise Foreign(f"this gateway answers to 127.0.0.1 and localhost, not to {host[:80]!r}")
        origin = headers.get("origin")
        if method == "POST" and origin is not None and _authority(origin) != host.lower():
            raise Foreign(
                f"a page of {origin[:80]!r} cannot use this gateway", code="foreign_origin"
            )

    def check_fetch(self, headers: Headers) -> None:
        """Refuse what a browser says another site had it fetch, whatever the method.

        Raises:
            Foreign: `Sec-Fetch-Site` is `cross-site`.
        """
        if headers.get("sec-fetch-site", "").strip().lower() == "cross-site":
            raise Foreign("a page of another site cannot use this gateway", code="foreign_origin")

    def check_key(self, headers: Headers) -> None:
        """Refuse a request without the key, where there is one.

        Raises:
            Unauthorized: `Authorization` is not `Bearer` with the key.
        """
        if self._digest is None:
            return
        given = headers.getlist("authorization")
        if not given:
            raise Unauthorized("send the gateway's key: Authorization: Bearer KEY")
        scheme, _, key = given[0].partition(" ")
        is_right = hmac.compare_digest(_digest(key.strip()), self._digest)
        if not is_right or scheme.lower() != "bearer" or len(given) > 1:
            raise Unauthorized("this is not the gateway's key")


def _digest(key: str) -> bytes:
    # Digests are equally long, so that a comparison tells nothing about the key's length either.
    return hashlib.sha256(key.encode("latin-1", errors="replace")).digest()


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
