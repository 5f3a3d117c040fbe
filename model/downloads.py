"""Downloads that survive a broken connection, and files hashed as they are written."""

from __future__ import annotations

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1 << 20
ATTEMPTS = 8
TIMEOUT_SECONDS = 60
RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 30.0
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class SourceError(Exception):
    """The source cannot be had; the text says why, in one line."""


class ChecksumError(Exception):
    """A file is not the pinned one."""

    def __init__(self, what: str, *, expected: str, got: str) -> None:
        super().__init__(
            f"the SHA-256 of {what} is not the pinned one: expected {expected}, got {got}"
        )


@dataclass(frozen=True)
class Stored:
    """A file that was written, and the SHA-256 of what went into it, in hex."""

    path: Path
    bytes: int
    sha256: str


def store(blocks: Iterable[bytes], path: Path, *, whole: Any = None) -> Stored:
    """Write `blocks` to `path`, hashing them, and into the hash object `whole` where given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
            size += len(block)
            if whole is not None:
                whole.update(block)
    return Stored(path, size, digest.hexdigest())


def hash_file(path: Path, *, whole: Any = None) -> Stored:
    """Hash the file at `path`, and into the hash object `whole` where given."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            if whole is not None:
                whole.update(block)
    return Stored(path, path.stat().st_size, digest.hexdigest())


def read_url(url: str) -> Iterator[bytes]:
    """Yield the content of `url`; a connection that breaks is taken up where it broke.

    Raises:
        SourceError: the server refuses, or the connection has failed too often.
    """
    received = 0
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _open(url, start=received) as response:
                total = _total_bytes(response)
                for block in _blocks(response, skip=received - _first_byte(response)):
                    received += len(block)
                    yield block
            if total is None or received == total:
                return
            failure = f"the connection ended after {received} of {total} bytes"
        except urllib.error.HTTPError as error:
            failure = f"HTTP {error.code} {error.reason}"
            if error.code not in _RETRIED_STATUSES:
                raise SourceError(f"{url}: {failure}") from None
        except (OSError, http.client.HTTPException) as error:
            failure = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt < ATTEMPTS:
            time.sleep(min(RETRY_SECONDS * 2 ** (attempt - 1), MAX_RETRY_SECONDS))
    raise SourceError(f"{url}: {failure} (tried {ATTEMPTS} times)")


def _open(url: str, *, start: int) -> Any:
    request = urllib.request.Request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def _first_byte(response: Any) -> int:
    """Return where in the file `response` starts: at 0 when the server ignored the range."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return int(match[1]) if match and response.status == 206 else 0


def _total_bytes(response: Any) -> int | None:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if match and response.status == 206:
        return int(match[2])
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _blocks(response: Any, *, skip: int) -> Iterator[bytes]:
    """Yield what is left of `response` after its first `skip` bytes."""
    if skip < 0:
        raise http.client.HTTPException("the server left out a part of the file")
    while block := response.read(BLOCK_BYTES):
        fresh = block[skip:]
        skip -= min(skip, len(block))
        if fresh:
            yield fresh
