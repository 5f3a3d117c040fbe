"""Reads a request body: bounded in bytes and time, decompressed under the same bound."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

import zstandard
from starlette.requests import ClientDisconnect, Request

from ballot.gateway.errors import (
    CallerGone,
    InvalidRequest,
    SlowBody,
    TooLarge,
    UnsupportedMediaType,
)

ENCODINGS = ("identity", "gzip", "zstd")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
# The window bounds what a hostile frame header may make the decompressor allocate, the step what
# it may return at once: a block of 4 bytes can stand for 128 KiB.
_ZSTD_WINDOW = 1 << 23
_ZSTD_STEP = 64


async def read_json_body(request: Request, *, max_bytes: int, timeout_seconds: float) -> bytes:
    """Return the whole decoded body of a request that declares JSON.

    Raises:
        UnsupportedMediaType: another content type, or an encoding other than `ENCODINGS`.
        TooLarge: more than `max_bytes`, as declared, sent or decompressed.
        SlowBody: it was not there after `timeout_seconds`.
        InvalidRequest: it does not decompress.
        CallerGone: the caller hung up before its end.
    """
    _check_content_type(request.headers.get("content-type", ""))
    encoding = _content_encoding(request)
    _check_declared_size(request.headers.get("content-length", ""), max_bytes)
    try:
        raw = await asyncio.wait_for(_collect(request.stream(), max_bytes), timeout_seconds)
    except asyncio.TimeoutError:
        raise SlowBody(f"the body was not complete after {timeout_seconds:g} seconds") from None
    except ClientDisconnect:
        raise CallerGone from None
    return _decode(raw, encoding, max_bytes)


def _check_content_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType(
            f"content type {media_type[:80]!r} is not read here; send application/json"
        )


def _content_encoding(request: Request) -> str:
    # A repeated header means the same as one with commas: several encodings, which are refused.
    given = ", ".join(request.headers.getlist("content-encoding") or ["identity"])
    encoding = given.strip().lower()
    if encoding not in ENCODINGS:
        raise UnsupportedMediaType(
            f"content encoding {encoding[:40]!r} is not one of: {', '.join(ENCODINGS)}",
            code="unsupported_encoding",
        )
    return encoding


def _check_declared_size(content_length: str, max_bytes: int) -> None:
    if content_length.isdecimal():
        # Twenty digits are more than any limit, and few enough for `int`.
        _check_size(int(content_length.lstrip("0")[:20] or "0"), max_bytes)


async def _collect(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        _check_size(len(body), max_bytes)
    return bytes(body)


def _decode(raw: bytes, encoding: str, max_bytes: int) -> bytes:
    if encoding == "identity":
        return raw
    try:
        decoded = _gunzip(raw, max_bytes) if encoding == "gzip" else _unzstd(raw, max_bytes)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise InvalidRequest(f"the body is not {encoding}", code="invalid_encoding") from None
    _check_size(len(decoded), max_bytes)
    return decoded


def _gunzip(raw: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    decoded = stream.decompress(raw, max_bytes + 1)
    if len(decoded) <= max_bytes and (not stream.eof or stream.unused_data):
        raise EOFError
    return decoded


def _unzstd(raw: bytes, max_bytes: int) -> bytes:
    stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
    decoded = bytearray()
    for start in range(0, len(raw), _ZSTD_STEP):
        if stream.eof:
            raise EOFError
        decoded += stream.decompress(raw[start : start + _ZSTD_STEP])
        if len(decoded) > max_bytes:
            return bytes(decoded)
    if not stream.eof or stream.unused_data:
        raise EOFError
    return bytes(decoded)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"the body has {size} bytes or more; the limit is {limit}")
