"""The input: a file of JSON lines, read a few lines at a time, and known by its SHA-256.

A line feed ends a line, and one at the end of the file begins no other. A name that ends in `.gz`
is read as gzip. Lines are passed on as they are: the endpoint is the judge of them.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ballot.batch.errors import BatchError

_BLOCK_BYTES = 1 << 20
# More than SageMaker takes in a request, and little enough to hold a few dozen of them.
MOST_LINE_BYTES = 25 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """A line of the input: its number, counted from 1, and its bytes without the line feed."""

    number: int
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Source:
    """An input that was read once: what it is, and what of it matters before it is sent.

    `sha256` is of the file's own bytes; `first_blank` is the number of the first blank line.
    """

    path: Path
    sha256: str
    lines: int
    longest_bytes: int
    first_blank: int | None

    def read(self, *, after: int = 0) -> Iterator[Line]:
        """Yield the lines behind the first `after` ones.

        Raises:
            BatchError: the file has changed since it was looked at, or cannot be read.
        """
        number = 0
        for number, content in enumerate(_contents(self.path), start=1):
            if after < number <= self.lines:
                yield Line(number, content)
        if number != self.lines:
            raise BatchError(
                f"{self.path} has changed while it was read: it had {self.lines} lines, "
                f"and has {number}",
                code="input_changed",
            )


def look_at(path: Path) -> Source:
    """Read an input once.

    Raises:
        BatchError: it cannot be read, or has a line that no endpoint takes.
    """
    lines, longest, first_blank = 0, 0, None
    for lines, content in enumerate(_contents(path), start=1):
        longest = max(longest, len(content))
        if first_blank is None and not content.strip():
            first_blank = lines
    return Source(
        path=path,
        sha256=_sha256(path),
        lines=lines,
        longest_bytes=longest,
        first_blank=first_blank,
    )


def _contents(path: Path) -> Iterator[bytes]:
    with _open(path) as file:
        for number in itertools.count(1):
            content = file.readline(MOST_LINE_BYTES + 1)
            if not content:
                return
            if len(content) > MOST_LINE_BYTES:
                raise BatchError(
                    f"line {number} of {path} has more than {MOST_LINE_BYTES:,} bytes, which no "
                    "endpoint takes; is it JSON lines?",
                    code="line_too_long",
                )
            if number == 1:
                content = content.removeprefix(_BYTE_ORDER_MARK)
            yield content.removesuffix(b"\n")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with _faults(path), path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _open(path: Path) -> Iterator[gzip.GzipFile | IO[bytes]]:
    with _faults(path), path.open("rb") as file:
        yield gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BatchError(f"{path} is not whole gzip: {error}", code="bad_input") from error
    except OSError as error:
        reason = error.strerror or error
        raise BatchError(f"cannot read {path}: {reason}", code="bad_input") from error
