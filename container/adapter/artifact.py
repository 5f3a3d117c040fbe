"""The model artifact: which GGUF to load, whether it is whole, and what it hashes to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import BinaryIO

from adapter.errors import StartupError

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)
_MAGIC = b"GGUF"
# Large, because after each the hashing thread waits for its turn among Python's threads.
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Artifact:
    """A GGUF in one or more shards, in order; llama.cpp is given the first."""

    shards: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The file to load."""
        return self.shards[0]

    def written(self) -> date:
        """Return the day, in UTC, on which its files had all been written where they lie."""
        seconds = max(shard.stat().st_mtime for shard in self.shards)
        return datetime.fromtimestamp(seconds, UTC).date()


def digest(files: Iterable[BinaryIO]) -> str:
    """Return the SHA-256, in hex, of all that `files` hold, one after another."""
    result = hashlib.sha256()
    for file in files:
        file.seek(0)
        while block := file.read(_BLOCK_BYTES):
            result.update(block)
    return result.hexdigest()


def find_artifact(model_dir: Path, gguf_path: Path | None) -> Artifact:
    """Find the GGUF: `gguf_path` when given, else the only one in `model_dir` or one level down.

    Raises:
        StartupError: there is none, there are several, one is no GGUF, or a shard is missing.
    """
    if gguf_path is not None:
        if not gguf_path.is_file():
            raise StartupError(f"BALLOT_GGUF_PATH names no file: {gguf_path}")
        return _whole(gguf_path)
    if not model_dir.is_dir():
        raise StartupError(
            f"there is no model folder {model_dir}; set BALLOT_MODEL_DIR or BALLOT_GGUF_PATH"
        )
    first = _only_model(model_dir)
    return _whole(first)


def _only_model(model_dir: Path) -> Path:
    files = sorted([*model_dir.glob("*.gguf"), *model_dir.glob("*/*.gguf")])
    models = sorted({_first_shard(file) for file in files})
    if not models:
        raise StartupError(
            f"no .gguf file in {model_dir} or one level down; put one there or set BALLOT_GGUF_PATH"
        )
    if len(models) > 1:
        names = ", ".join(str(model.relative_to(model_dir)) for model in models)
        raise StartupError(
            f"{len(models)} models in {model_dir} ({names}); set BALLOT_GGUF_PATH to one of them"
        )
    return models[0]


def _first_shard(file: Path) -> Path:
    match = _SHARD.fullmatch(file.name)
    if match is None:
        return file
    return file.with_name(f"{match['stem']}-00001-of-{match['count']}.gguf")


def _whole(file: Path) -> Artifact:
    match = _SHARD.fullmatch(file.name)
    if match is None:
        shards = [file]
    elif not 1 <= int(match["index"]) <= int(match["count"]):
        raise StartupError(f"{file} cannot be: its name counts shards from 1; rename it")
    else:
        shards = [
            file.with_name(f"{match['stem']}-{index:05d}-of-{match['count']}.gguf")
            for index in range(1, int(match["count"]) + 1)
        ]
    for shard in shards:
        _check_header(shard)
    return Artifact(tuple(shards))


def _check_header(shard: Path) -> None:
    try:
        with shard.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        if _SHARD.fullmatch(shard.name) and not shard.exists():
            raise StartupError(
                f"the split GGUF misses its shard {shard.name}; put it beside the others"
            ) from None
        raise StartupError(
            f"{shard} cannot be read ({error.strerror}); mend it or set BALLOT_GGUF_PATH"
        ) from None
    if magic != _MAGIC:
        raise StartupError(f"{shard} is not a GGUF file; download or convert it again")
