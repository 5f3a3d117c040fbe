"""Reads the header of a GGUF file, trusting none of it.

Every count and length is checked against the bytes that are there before it is used, so that a
truncated, damaged or hostile file ends in one `GgufError` that says where and why.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Far above what models have (hundreds and dozens); below what would keep a parser busy for long.
MAX_TENSORS = 1_000_000
MAX_ENTRIES = 100_000
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 64
MAX_DIMENSIONS = 4

# gguf_metadata_value_type: the fixed-size ones by struct format, then string and array.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
# The least bytes that an entry (key length, type, value) and a tensor (name length, number of
# dimensions, type, offset) can have.
_LEAST_ENTRY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8
_DEFAULT_ALIGNMENT = 32

# llama_ftype in llama.h.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}

Scalar = int | float | bool | str


class GgufError(Exception):
    """A file is no whole GGUF; the text says why, in one line."""


@dataclass(frozen=True)
class Header:
    """What a GGUF says of itself.

    `metadata` holds the entries that are single values; arrays (the vocabulary) are only walked
    over. `tensors` are their names, in file order.
    """

    version: int
    metadata: dict[str, Scalar]
    entries: int
    tensors: tuple[str, ...]

    @property
    def architecture(self) -> str:
        """The model's architecture, such as `llama`.

        Raises:
            GgufError: the file does not say.
        """
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise GgufError("general.architecture is missing: this is no model")
        return name

    @property
    def quantization(self) -> str | None:
        """The file type, such as `Q4_K_M`, or None where the file does not say."""
        number = self.metadata.get("general.file_type")
        if not isinstance(number, int):
            return None
        return _FILE_TYPES.get(number, f"file type {number}")

    @property
    def layers(self) -> int | None:
        """How many blocks the model has, or None where the file does not say."""
        return self.integer(f"{self.architecture}.block_count")

    @property
    def context_length(self) -> int | None:
        """The context in tokens that the model was trained for, or None."""
        return self.integer(f"{self.architecture}.context_length")

    def integer(self, key: str) -> int | None:
        """Return the entry `key` if it is a whole number."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_header(path: Path) -> Header:
    """Return the header of the GGUF at `path`.

    Raises:
        GgufError: it is none, or not whole; the text names the file.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise GgufError("the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_header(data)
    except GgufError as error:
        raise GgufError(f"{path.name}: {error}") from None


def parse_header(data: bytes | mmap.mmap) -> Header:
    """Return the header that `data`, a whole GGUF file, starts with.

    Raises:
        GgufError: it is no GGUF, it ends early, or a count or length in it cannot be.
    """
    cursor = _Cursor(data)
    if cursor.take(4) != MAGIC:
        raise GgufError("not a GGUF file: it does not start with GGUF")
    version = _version(cursor.unsigned(4))
    tensor_count = cursor.count("tensors", MAX_TENSORS, _LEAST_TENSOR_BYTES)
    entry_count = cursor.count("metadata entries", MAX_ENTRIES, _LEAST_ENTRY_BYTES)
    metadata = _read_metadata(cursor, entry_count)
    tensors = _read_tensors(cursor, tensor_count)
    names = tuple(tensors)
    _check_data_starts(cursor, metadata, max(tensors.values(), default=None))
    return Header(version, metadata, entry_count, names)


class _Cursor:
    """A position in the file's bytes that cannot leave them."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self.size = len(data)
        self.position = 0

    def take(self, size: int) -> bytes:
        start = self.skip(size)
        return self._data[start : self.position]

    def skip(self, size: int) -> int:
        """Move on by `size` bytes; return where they started."""
        start = self.position
        if size > self.size - start:
            raise GgufError(
                f"truncated: {size} bytes are announced at byte {start}, {self.size - start} follow"
            )
        self.position = start + size
        return start

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def count(self, what: str, most: int, least_bytes: int) -> int:
        """Read a number of things of at least `least_bytes` each."""
        number = self.unsigned(8)
        room = (self.size - self.position) // least_bytes
        if number > min(most, room):
            raise GgufError(f"{number} {what} cannot be: at most {min(most, room)} fit")
        return number

    def text(self, what: str, most: int) -> str:
        length = self.unsigned(8)
        if length > most:
            raise GgufError(f"a {what} of {length} bytes at byte {self.position}; at most {most}")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise GgufError(f"a {what} before byte {self.position} is not UTF-8") from None


def _version(number: int) -> int:
    if number in VERSIONS:
        return number
    if number.to_bytes(4, "little") in {known.to_bytes(4, "big") for known in VERSIONS}:
        raise GgufError("big-endian GGUF files are not supported")
    raise GgufError(f"GGUF version {number} is not supported; versions 2 and 3 are")


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Scalar]:
    seen: set[str] = set()
    metadata: dict[str, Scalar] = {}
    for _ in range(count):
        key = cursor.text("metadata key", MAX_KEY_BYTES)
        if key in seen:
            raise GgufError(f"the metadata key {key!r} stands there twice")
        seen.add(key)
        value = _read_value(cursor, key)
        if value is not None:
            metadata[key] = value
    return metadata


def _read_value(cursor: _Cursor, key: str) -> Scalar | None:
    """Return the single value at the cursor; walk over an array and return None."""
    kind = cursor.unsigned(4)
    if kind == _ARRAY:
        _skip_array(cursor, key)
        return None
    if kind == _STRING:
        return cursor.take(cursor.unsigned(8)).decode("utf-8", "replace")
    if kind not in _SCALARS:
        raise GgufError(f"the metadata key {key!r} has the unknown type {kind}")
    form = _SCALARS[kind]
    value: Scalar = struct.unpack(form, cursor.take(struct.calcsize(form)))[0]
    return value


def _skip_array(cursor: _Cursor, key: str) -> None:
    kind = cursor.unsigned(4)
    if kind in _SCALARS:
        size = struct.calcsize(_SCALARS[kind])
        cursor.skip(size * cursor.count(f"values of {key!r}", cursor.size, size))
    elif kind == _STRING:
        for _ in range(cursor.count(f"values of {key!r}", cursor.size, 8)):
            cursor.skip(cursor.unsigned(8))
    else:
        raise GgufError(f"the metadata key {key!r} is an array of the unknown type {kind}")


def _read_tensors(cursor: _Cursor, count: int) -> dict[str, int]:
    """Return where each tensor's data starts in the data section, by name."""
    tensors: dict[str, int] = {}
    for _ in range(count):
        name = cursor.text("tensor name", MAX_NAME_BYTES)
        dimensions = cursor.unsigned(4)
        if dimensions > MAX_DIMENSIONS:
            raise GgufError(f"the tensor {name!r} has {dimensions} dimensions")
        cursor.skip(8 * dimensions + 4)
        if name in tensors:
            raise GgufError(f"the tensor {name!r} stands there twice")
        tensors[name] = cursor.unsigned(8)
    return tensors


def _check_data_starts(
    cursor: _Cursor, metadata: dict[str, Scalar], last_offset: int | None
) -> None:
    """Check that the file goes on to where its last tensor starts."""
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise GgufError(f"general.alignment is {alignment!r}, not a power of two")
    if last_offset is None:
        return
    start = -(-cursor.position // alignment) * alignment + last_offset
    if start >= cursor.size:
        raise GgufError(
            f"truncated: a tensor starts at byte {start}, the file has {cursor.size} bytes"
        )


def check_shards(headers: dict[str, Header]) -> None:
    """Check that the files, in order and by name, are all the shards of one split model.

    A model in one file is a split into one.

    Raises:
        GgufError: shards are missing, too many, out of order, or lack tensors.
    """
    for index, (name, header) in enumerate(headers.items()):
        count = header.integer("split.count") or 1
        if count != len(headers):
            raise GgufError(
                f"{name} is one of {count} shards, but the source has {len(headers)} of them"
            )
        number = header.integer("split.no") or 0
        if number != index:
            raise GgufError(f"{name} says that it is shard {number + 1}, not {index + 1}")
    _check_tensor_count(headers)


def _check_tensor_count(headers: dict[str, Header]) -> None:
    first, *_ = headers.values()
    announced = first.integer("split.tensors.count")
    found = sum(len(header.tensors) for header in headers.values())
    if announced is not None and announced != found:
        raise GgufError(f"the shards hold {found} of the model's {announced} tensors")
    duplicates = sorted(_duplicates(headers))
    if duplicates:
        raise GgufError(f"the tensor {duplicates[0]!r} is in two shards")


def _duplicates(headers: dict[str, Header]) -> Iterator[str]:
    seen: set[str] = set()
    for header in headers.values():
        yield from seen.intersection(header.tensors)
        seen.update(header.tensors)
