"""Reading a body: its limits to the byte, its encodings to the last bit, its memory to the peak."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from adapter.body import read_body
from adapter.errors import (
    InvalidRequest,
    RequestError,
    SlowBody,
    TooLarge,
    UnsupportedMediaType,
)

TEXT = b'{"decision": "' + bytes(range(48, 58)) * 10 + b'"}'
PACKED = {"gzip": gzip.compress(TEXT), "zstd": zstandard.compress(TEXT)}
STREAMED = zstandard.ZstdCompressor().compressobj()
# A frame that does not say how much it holds, as a streaming client writes it.
ZSTD_STREAM = STREAMED.compress(TEXT) + STREAMED.flush()
MIB = 1 << 20


def pack(encoding: str, body: bytes) -> bytes:
    match encoding:
        case "gzip":
            return gzip.compress(body)
        case "zstd":
            return zstandard.compress(body)
        case _:
            return body


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def never() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.Event().wait()


def read(
    *chunks: bytes,
    encoding: str = "identity",
    content_length: str | None = None,
    max_bytes: int = 1000,
) -> bytes:
    return asyncio.run(
        read_body(
            chunks_of(*chunks),
            content_length=content_length,
            encoding=encoding,
            max_bytes=max_bytes,
            timeout_seconds=60,
        )
    )


def refusal(*chunks: bytes, encoding: str = "identity", max_bytes: int = 1000) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(*chunks, encoding=encoding, max_bytes=max_bytes)
    return caught.value


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
@given(body=st.binary(max_size=1000), cuts=st.lists(st.integers(0, 1100), max_size=5))
def test_any_body_in_any_pieces_comes_back(encoding: str, body: bytes, cuts: list[int]) -> None:
    packed = pack(encoding, body)
    edges = [0, *sorted(cuts), len(packed)]
    pieces = [packed[start:end] for start, end in pairwise(edges)]

    assert read(*pieces, encoding=encoding, max_bytes=2000) == body


def test_a_zstd_frame_of_unknown_length_is_read() -> None:
    assert read(ZSTD_STREAM, encoding="zstd") == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_every_cut_is_noticed(encoding: str) -> None:
    packed = PACKED[encoding]
    codes = {refusal(packed[:length], encoding=encoding).code for length in range(len(packed))}

    assert codes == {"invalid_encoding"}


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("tail", [b"\x00", b" ", b"{}", b"\x1f", b"x" * 500], ids=repr)
def test_everything_behind_the_stream_is_noticed(encoding: str, tail: bytes) -> None:
    packed = PACKED[encoding] + tail

    assert refusal(packed, encoding=encoding).code == "invalid_encoding"
    # Wherever the stream ends within the pieces that it is decompressed in.
    for padding in range(70):
        whole = pack(encoding, random.Random(padding).randbytes(100 + padding))
        assert refusal(whole + tail, encoding=encoding).code == "invalid_encoding"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_every_flipped_bit_is_noticed_or_harmless(encoding: str) -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    packed = {"gzip": PACKED["gzip"], "zstd": checked}[encoding]
    for bit in range(len(packed) * 8):
        broken = bytearray(packed)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            body = read(bytes(broken), encoding=encoding)
        except InvalidRequest as error:
            code = error.code
        except TooLarge as error:
            code = error.code
        else:
            # A bit of the header that says nothing about the content, such as gzip's time.
            code = "" if body == TEXT else "wrong"
        assert code in ("invalid_encoding", "body_too_large", ""), bit


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"plain"),
        ("gzip", zlib.compress(TEXT)),
        ("gzip", PACKED["zstd"]),
        ("zstd", b"plain"),
        ("zstd", PACKED["gzip"]),
        # A dictionary is needed; a window of 16 MiB is needed; a reserved block type.
        ("zstd", b"\x28\xb5\x2f\xfd\x23\x01\x02\x03\x04\x00\x01\x00\x00"),
        ("zstd", b"\x28\xb5\x2f\xfd\x00\x70\x01\x00\x00"),
        ("zstd", b"\x28\xb5\x2f\xfd\x00\x58\x07\x00\x00"),
    ],
    ids=["plain", "zlib", "zstd", "plain-zstd", "gzip", "dictionary", "window", "reserved"],
)
def test_what_is_not_such_a_stream_is_refused(encoding: str, body: bytes) -> None:
    error = refusal(body, encoding=encoding)

    assert isinstance(error, InvalidRequest)
    assert error.code == "invalid_encoding"
    assert error.message == f"the body is not {encoding}"


@pytest.mark.parametrize("encoding", ["", "br", "deflate", "GZIP", "gzip, gzip", "gzip,zstd", " "])
def test_other_encodings_are_refused_without_reading(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        asyncio.run(
            read_body(
                never(),
                content_length=None,
                encoding=encoding,
                max_bytes=1000,
                timeout_seconds=60,
            )
        )

    assert caught.value.code == "unsupported_encoding"


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_the_limit_is_exact(encoding: str) -> None:
    assert read(pack(encoding, b"x" * 1000), encoding=encoding) == b"x" * 1000
    error = refusal(pack(encoding, b"x" * 1001), encoding=encoding)
    assert isinstance(error, TooLarge)
    assert error.code == "body_too_large"
    assert "1001 bytes or more; the limit is 1000" in error.message


def test_the_limit_holds_before_decompression_too() -> None:
    noise = random.Random(1).randbytes(1000)

    assert len(gzip.compress(noise)) > 1000
    assert refusal(gzip.compress(noise), encoding="gzip").code == "body_too_large"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_costs_little_memory(encoding: str) -> None:
    bomb = pack(encoding, bytes(128 * MIB))
    tracemalloc.start()
    try:
        error = refusal(bomb, encoding=encoding, max_bytes=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert error.code == "body_too_large"
    assert len(bomb) < MIB
    assert peak < 8 * MIB


def test_an_endless_body_is_given_up_at_the_limit() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 100

    with pytest.raises(TooLarge, match="1100 bytes or more; the limit is 1000"):
        asyncio.run(
            read_body(
                endless(),
                content_length=None,
                encoding="identity",
                max_bytes=1000,
                timeout_seconds=60,
            )
        )


@pytest.mark.parametrize("content_length", ["1001", "9" * 20, "9" * 5000, "0" * 5000 + "1001"])
def test_a_declared_length_is_believed_when_it_is_too_long(content_length: str) -> None:
    with pytest.raises(TooLarge):
        read(b"{}", content_length=content_length)


@pytest.mark.parametrize(
    "content_length", [None, "2", "1000", "0" * 5000 + "2", "", "-1", "ten", "\u00b2"]
)
def test_any_other_declared_length_is_left_to_http(content_length: str | None) -> None:
    assert read(b"{}", content_length=content_length) == b"{}"


def test_a_body_that_stops_coming_is_given_up() -> None:
    with pytest.raises(SlowBody, match=r"not complete after 0\.01 seconds"):
        asyncio.run(
            read_body(
                never(),
                content_length="100",
                encoding="identity",
                max_bytes=1000,
                timeout_seconds=0.01,
            )
        )
