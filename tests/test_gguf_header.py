"""The model build's GGUF parser: what it reads, and that no file makes it do anything else."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_header import GgufError, Header, check_shards, parse_header, read_header
from tests.adapter_process import DEMO_MODEL, LLAMA_FILES
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model

UINT8, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 6, 7, 8, 9, 10
MAX = 2**64 - 1


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key.encode()) + struct.pack("<I", kind) + value


def array(kind: int, length: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + values


def tensor(name: bytes, *shape: int, offset: int = 0, dimensions: int | None = None) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, 0, offset)


def header(
    *parts: bytes, magic: bytes = b"GGUF", version: int = 3, tensors: int = 0, entries: int = 0
) -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, entries) + b"".join(parts)


ARCHITECTURE = entry("general.architecture", STRING, text(b"llama"))
ROOM = bytes(4096)


def test_a_small_header() -> None:
    data = header(
        ARCHITECTURE,
        entry("general.file_type", UINT32, struct.pack("<I", 15)),
        entry("llama.block_count", UINT32, struct.pack("<I", 2)),
        entry("llama.context_length", UINT64, struct.pack("<Q", 1024)),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, 2, text(b"a") + text(b"\xff"))),
        entry("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
        tensor(b"token_embd.weight", 4, 2),
        tensor(b"output.weight", 4, 2, offset=32),
        ROOM,
        tensors=2,
        entries=6,
    )
    found = parse_header(data)
    assert found.architecture == "llama"
    assert found.quantization == "Q4_K_M"
    assert (found.layers, found.context_length, found.entries) == (2, 1024, 6)
    assert found.tensors == ("token_embd.weight", "output.weight")
    assert found.metadata["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize(
    "path",
    [DEMO_MODEL, *sorted(LLAMA_FILES.glob("ggml-vocab-*.gguf"))],
    ids=lambda path: path.name,
)
def test_real_files_read_as_llama_cpp_s_own_reader_reads_them(path: Path) -> None:
    found = read_header(path)
    with path.open("rb") as file:
        magic, version, tensors, entries = struct.unpack("<4sIQQ", file.read(24))
    assert (magic, found.version, len(found.tensors), found.entries) == (
        b"GGUF",
        version,
        tensors,
        entries,
    )


def test_every_value_reads_as_llama_cpp_s_own_reader_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    theirs: Any = gguf.GGUFReader(path)
    single = {
        name: field.contents()
        for name, field in theirs.fields.items()
        if not name.startswith("GGUF.") and field.types[0] != gguf.GGUFValueType.ARRAY
    }
    ours = read_header(path)
    assert ours.metadata == single
    assert ours.tensors == tuple(found.name for found in theirs.tensors)
    assert ours.quantization == "F32"


def test_file_types_are_named_as_llama_cpp_names_them() -> None:
    for known in gguf.LlamaFileType:
        if known is gguf.LlamaFileType.GUESSED:
            continue
        found = Header(3, {"general.file_type": int(known)}, 1, ())
        assert found.quantization == known.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    assert Header(3, {"general.file_type": 999}, 1, ()).quantization == "file type 999"
    assert Header(3, {}, 1, ()).quantization is None


BAD_HEADERS = {
    "nothing": (b"", "truncated: 4 bytes are announced at byte 0, 0 follow"),
    "another format": (b"PK\3\4" + ROOM, "not a GGUF file"),
    "an error page": (b"<!DOCTYPE html>" + ROOM, "not a GGUF file"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1", "not a GGUF file"),
    "magic alone": (b"GGUF", "truncated: 4 bytes are announced at byte 4"),
    "version 1": (header(version=1), "GGUF version 1 is not supported"),
    "version 4": (header(version=4), "GGUF version 4 is not supported"),
    "big-endian": (header(version=0x03000000), "big-endian GGUF files are not supported"),
    "most tensors": (header(ROOM, tensors=MAX), f"{MAX} tensors cannot be: at most 171 fit"),
    "most entries": (header(ROOM, entries=MAX), f"{MAX} metadata entries cannot be"),
    "too many tensors for the file": (header(tensors=1), "1 tensors cannot be: at most 0 fit"),
    "entries that are missing": (
        header(entry("a", UINT8, b"\0"), entry("b", UINT8, b"\0"), entries=3),
        "3 metadata entries cannot be: at most 2 fit",
    ),
    "a long key": (
        header(text(b"k", MAX), ROOM, entries=1),
        f"a metadata key of {MAX} bytes at byte 32; at most 65535",
    ),
    "a key past the end": (
        header(text(b"k", 60_000), ROOM, entries=1),
        "truncated: 60000 bytes are announced at byte 32, 4097 follow",
    ),
    "a key that is no text": (
        header(text(b"\xff"), ROOM, entries=1),
        "a metadata key before byte 33 is not UTF-8",
    ),
    "a key twice": (
        header(ARCHITECTURE, ARCHITECTURE, entries=2),
        "the metadata key 'general.architecture' stands there twice",
    ),
    "an unknown type": (
        header(entry("a", 13, ROOM), entries=1),
        "the metadata key 'a' has the unknown type 13",
    ),
    "a string past the end": (
        header(entry("a", STRING, text(b"", MAX)), entries=1),
        f"truncated: {MAX} bytes are announced",
    ),
    "an array past the end": (
        header(entry("a", ARRAY, array(UINT64, 2**61)), entries=1),
        f"{2**61} values of 'a' cannot be: at most 0 fit",
    ),
    "an array of strings past the end": (
        header(entry("a", ARRAY, array(STRING, 2**60, ROOM)), entries=1),
        f"{2**60} values of 'a' cannot be: at most 512 fit",
    ),
    "a string in an array past the end": (
        header(entry("a", ARRAY, array(STRING, 1, text(b"", MAX))), entries=1),
        f"truncated: {MAX} bytes are announced",
    ),
    "an array of arrays": (
        header(entry("a", ARRAY, array(ARRAY, 1, array(UINT8, 0))), entries=1),
        "the metadata key 'a' is an array of the unknown type 9",
    ),
    "an alignment of 0": (
        header(entry("general.alignment", UINT32, bytes(4)), entries=1),
        "general.alignment is 0, not a power of two",
    ),
    "an alignment that is a text": (
        header(entry("general.alignment", STRING, text(b"x")), entries=1),
        "general.alignment is 'x', not a power of two",
    ),
    "a long tensor name": (
        header(tensor(b"t" * 65, 1), ROOM, tensors=1),
        "a tensor name of 65 bytes at byte 32; at most 64",
    ),
    "five dimensions": (
        header(tensor(b"t", 1, 1, 1, 1, 1), ROOM, tensors=1),
        "the tensor 't' has 5 dimensions",
    ),
    "most dimensions": (
        header(tensor(b"t", dimensions=2**32 - 1), ROOM, tensors=1),
        "the tensor 't' has 4294967295 dimensions",
    ),
    "a tensor twice": (
        header(tensor(b"t", 1), tensor(b"t", 1), ROOM, tensors=2),
        "the tensor 't' stands there twice",
    ),
    "a header without its data": (
        header(tensor(b"t", 1), tensors=1),
        "truncated: a tensor starts at byte 64, the file has 57 bytes",
    ),
    "data without its end": (
        header(tensor(b"t", 1), tensor(b"u", 1, offset=8192), ROOM, tensors=2),
        "truncated: a tensor starts at byte 8288, the file has 4186 bytes",
    ),
}


@pytest.mark.parametrize(("data", "message"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_bad_header_says_where_and_why(data: bytes, message: str) -> None:
    with pytest.raises(GgufError) as error:
        parse_header(data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("header") / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    return path.read_bytes()


def test_every_truncation_is_noticed(tiny: bytes) -> None:
    last = tiny.index(b"blk.1.ffn_down.weight") + 64
    for size in range(last):
        with pytest.raises(GgufError):
            parse_header(tiny[:size])


@given(st.data())
def test_no_damage_does_more_than_be_read_or_refused(tiny: bytes, data: st.DataObject) -> None:
    damaged = bytearray(tiny)
    places = st.integers(0, tiny.index(b"blk.1.ffn_down.weight") + 64)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(places)
        new = data.draw(st.binary(min_size=1, max_size=9))
        damaged[start : start + len(new)] = new
    with suppress(GgufError):
        parse_header(bytes(damaged))


@given(st.binary(max_size=200))
def test_no_header_does_more_than_be_read_or_refused(rest: bytes) -> None:
    with suppress(GgufError):
        parse_header(b"GGUF\3\0\0\0" + rest)


def test_an_empty_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GgufError, match=r"^empty\.gguf: the file is empty$"):
        read_header(tmp_path / "empty.gguf")


def test_a_model_without_architecture_is_none() -> None:
    with pytest.raises(GgufError, match=r"general\.architecture is missing"):
        _ = parse_header(header()).architecture


def shard(number: int, count: int, *tensors: str, total: int | None = None) -> Header:
    metadata: dict[str, Any] = {"split.no": number, "split.count": count}
    if total is not None:
        metadata["split.tensors.count"] = total
    return Header(3, metadata, len(metadata), tensors)


BAD_SPLITS = {
    "a shard alone": ([shard(0, 3, "a")], "0 is one of 3 shards, but the source has 1 of them"),
    "one is missing": (
        [shard(0, 3, "a"), shard(2, 3, "c")],
        "0 is one of 3 shards, but the source has 2 of them",
    ),
    "one too many": (
        [shard(0, 2, "a"), shard(1, 2, "b"), shard(2, 3, "c")],
        "0 is one of 2 shards, but the source has 3 of them",
    ),
    "out of order": (
        [shard(1, 2, "b"), shard(0, 2, "a")],
        "0 says that it is shard 2, not 1",
    ),
    "the same twice": ([shard(0, 2, "a"), shard(0, 2, "a")], "1 says that it is shard 1, not 2"),
    "a tensor is missing": (
        [shard(0, 2, "a", total=3), shard(1, 2, "b")],
        "the shards hold 2 of the model's 3 tensors",
    ),
    "a tensor twice": (
        [shard(0, 2, "a"), shard(1, 2, "a")],
        "the tensor 'a' is in two shards",
    ),
    "no split at all": (
        [Header(3, {}, 0, ("a",)), Header(3, {}, 0, ("b",))],
        "0 is one of 1 shards, but the source has 2 of them",
    ),
}


@pytest.mark.parametrize(("headers", "message"), BAD_SPLITS.values(), ids=BAD_SPLITS.keys())
def test_a_split_that_is_not_whole(headers: list[Header], message: str) -> None:
    with pytest.raises(GgufError) as error:
        check_shards({str(index): found for index, found in enumerate(headers)})
    assert str(error.value) == message


def test_a_whole_split() -> None:
    check_shards({"a": shard(0, 2, "a", total=2), "b": shard(1, 2, "b")})
    check_shards({"a": Header(3, {}, 0, ("a",))})
