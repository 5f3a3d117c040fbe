#!/usr/bin/env python3
"""Writes a tiny GGUF model for the image's self-test: two `llama` layers over a byte vocabulary.

    python3 tiny_gguf.py <path>

It knows nothing (its weights are seeded random numbers), but llama.cpp loads and runs it as it
does a real one. Standard library only, so that the image needs nothing for it.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

VERSION = 3
ALIGNMENT = 32
CONTEXT, WIDTH, LAYERS, FEED_FORWARD, HEADS = 4096, 32, 2, 64, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
# SentencePiece's vocabulary of bytes: <unk>, <s>, </s>, one token a byte, and its space.
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
_UNKNOWN, _CONTROL, _NORMAL, _BYTE = 2, 3, 1, 6  # llama_token_type
TOKEN_TYPES = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _NORMAL]

# gguf_metadata_value_type, and ggml_type of the tensors.
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32 = 0

Tensor: TypeAlias = "tuple[tuple[int, ...], array[float]]"


def write_model(path: Path) -> None:
    """Write the model to `path`: the same bytes each time."""
    tensors = dict(_tensors(random.Random(1)))
    entries = list(_entries())
    header = struct.pack("<4sIQQ", b"GGUF", VERSION, len(tensors), len(entries))
    with path.open("wb") as file:
        file.write(header + b"".join(entries) + b"".join(_tensor_infos(tensors)))
        for _, values in tensors.values():
            file.write(bytes(-file.tell() % ALIGNMENT))
            file.write(values.tobytes())


def _entries() -> Iterator[bytes]:
    """Yield the metadata, entry by entry."""
    yield _entry("general.architecture", _STRING, _text("llama"))
    yield _entry("general.name", _STRING, _text("ballot self-test"))
    for name, number in {
        "general.alignment": ALIGNMENT,
        "general.file_type": 0,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }.items():
        yield _entry(name, _UINT32, struct.pack("<I", number))
    yield _entry("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5))
    yield _entry("tokenizer.ggml.model", _STRING, _text("llama"))
    yield _entry("tokenizer.ggml.tokens", _ARRAY, _array(_STRING, map(_text, TOKENS)))
    scores = (struct.pack("<f", 0.0) for _ in TOKENS)
    yield _entry("tokenizer.ggml.scores", _ARRAY, _array(_FLOAT32, scores))
    kinds = (struct.pack("<i", kind) for kind in TOKEN_TYPES)
    yield _entry("tokenizer.ggml.token_type", _ARRAY, _array(_INT32, kinds))
    yield _entry("tokenizer.ggml.add_bos_token", _BOOL, b"\1")
    yield _entry("tokenizer.ggml.add_space_prefix", _BOOL, b"\0")
    yield _entry("tokenizer.chat_template", _STRING, _text(CHAT_TEMPLATE))


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _array(kind: int, values: Iterator[bytes]) -> bytes:
    items = list(values)
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _tensors(source: random.Random) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name; a shape's first number is the row length, as in ggml."""
    yield "token_embd.weight", _matrix(source, WIDTH, len(TOKENS))
    yield "output_norm.weight", _ones(WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", _ones(WIDTH)
        yield f"{block}.ffn_norm.weight", _ones(WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}.{name}.weight", _matrix(source, WIDTH, WIDTH)
        yield f"{block}.ffn_gate.weight", _matrix(source, WIDTH, FEED_FORWARD)
        yield f"{block}.ffn_up.weight", _matrix(source, WIDTH, FEED_FORWARD)
        yield f"{block}.ffn_down.weight", _matrix(source, FEED_FORWARD, WIDTH)


def _matrix(source: random.Random, columns: int, rows: int) -> Tensor:
    """Return random weights that keep the size of what they multiply."""
    spread = columns**-0.5
    return (columns, rows), array("f", (source.gauss(0, spread) for _ in range(columns * rows)))


def _ones(size: int) -> Tensor:
    return (size,), array("f", [1.0] * size)


def _tensor_infos(tensors: dict[str, Tensor]) -> Iterator[bytes]:
    offset = 0
    for name, (shape, values) in tensors.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        yield _text(name) + dimensions + struct.pack("<IQ", _F32, offset)
        size = len(values) * values.itemsize
        offset += size + -size % ALIGNMENT


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
