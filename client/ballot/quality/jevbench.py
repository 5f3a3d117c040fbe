"""JevBench: the 231 public tasks that the article's figures are of, and the article's row.

Source: https://github.com/fstandhartinger/jevbench at commit 1df665e (MIT), `datasets/public/`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import httpx

from ballot.errors import BallotError
from ballot.quality.examples import Data, parse_jsonl
from ballot.quality.figures import Report

NAME = "jevbench"
COMMIT = "1df665e3956d7aab7fa0208ff6c4f2d8557f9f90"
BASE_URL = f"https://raw.githubusercontent.com/fstandhartinger/jevbench/{COMMIT}/datasets/public"
_FETCH_SECONDS = 60.0


@dataclass(frozen=True)
class Tier:
    """One file of tasks, and what it is known by."""

    file: str
    sha256: str


TIERS = (
    Tier("original.jsonl", "5c2414edb3006b8bfcb70fda433f0f9ca015759433849f8d3104328a1f7c4180"),
    Tier("easy.jsonl", "231df3c2c8e88a1a8c137ebe85de96ba70fabd330849098ac7b3c52c70b7172b"),
    Tier("hard.jsonl", "89e9e6becb33ed88c1de7d42dcc87531b2fb64cfaef4e1986faf7c37b3f80ebb"),
)


class BenchmarkError(BallotError):
    """The benchmark's data cannot be had, or is not the pinned one."""


def read_tasks(folder: Path) -> Data:
    """Return the tasks of the files in a folder.

    Raises:
        BenchmarkError: a file is missing, or is not the pinned one.
    """
    return _checked([_read(folder / tier.file) for tier in TIERS], where=str(folder))


def fetch_tasks(base_url: str = BASE_URL) -> Data:
    """Return the tasks from where they were published.

    Raises:
        BenchmarkError: they cannot be fetched, or are not the pinned ones.
    """
    with httpx.Client(timeout=_FETCH_SECONDS, follow_redirects=True) as client:
        contents = [_fetch(client, f"{base_url}/{tier.file}") for tier in TIERS]
    return _checked(contents, where=base_url)


def article_row(report: Report) -> str:
    """Return what the article has of a model: how many it answers right, and how fast."""
    accuracy, client = report.accuracy, report.latency.client
    row = f"{accuracy.count} of {accuracy.total} correct"
    return f"{row}, p50 {client.p50:.3f} s, p95 {client.p95:.3f} s" if client else row


def _checked(contents: list[bytes], *, where: str) -> Data:
    for tier, content in zip(TIERS, contents, strict=True):
        found = hashlib.sha256(content).hexdigest()
        if found != tier.sha256:
            raise BenchmarkError(
                f"{tier.file} from {where} is not JevBench's at {COMMIT[:7]}: its SHA-256 is "
                f"{found}, not {tier.sha256}",
                code="other_data",
            )
    whole = b"".join(content.rstrip(b"\n") + b"\n" for content in contents)
    return parse_jsonl(NAME, whole)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BenchmarkError(
            f"cannot read {path}: {error.strerror or error}", code="no_data"
        ) from error


def _fetch(client: httpx.Client, url: str) -> bytes:
    try:
        response = client.get(url)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise BenchmarkError(f"cannot fetch {url}: {error}", code="no_data") from error
    return response.content
