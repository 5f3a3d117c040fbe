"""Small GGUF models, written with llama.cpp's own `gguf` package and seeded random weights.

They know nothing, but llama.cpp loads and runs them as it does real models: a plain attention
model of 120 kB for everything about files and start-up, and a hybrid of the Qwen3.5 kind, of
16 MB, for what depends on a running state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize

from tests.adapter_process import LLAMA_FILES

QWEN35_TEMPLATE = LLAMA_FILES / "templates" / "Qwen3.5-4B.jinja"
BYTES_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
# llama_token_type in llama.h.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
# model, pre, tokens, token_type, merges; eos, padding and bos token ids.
_VOCABULARY_ENTRIES = 8

Tensors = dict[str, npt.NDArray[np.float32]]


def write_tiny_model(
    path: Path,
    *,
    chat_template: str | None,
    tensors: Tensors | None = None,
    tensors_per_shard: int = 0,
) -> None:
    """Write a two-layer `llama` model; with `tensors_per_shard`, in shards beside `path`.

    Its vocabulary is the 256 bytes and SentencePiece's space: a prompt has about as many tokens
    as bytes.
    """
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_per_shard)
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(1024)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    _add_byte_vocabulary(writer)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, tensor in (tiny_tensors() if tensors is None else tensors).items():
        writer.add_tensor(name, tensor)
    _finish(writer)


def _add_byte_vocabulary(writer: Any) -> None:
    bytes_ = [b"<0x%02X>" % byte for byte in range(256)]
    tokens = [b"<unk>", b"<s>", b"</s>", *bytes_, "\u2581".encode()]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _NORMAL])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def tiny_tensors() -> Tensors:
    random = np.random.default_rng(1)
    tensors: Tensors = {
        "token_embd.weight": _normal(random, 260, 32),
        "output_norm.weight": np.ones(32, np.float32),
    }
    for layer in range(2):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": np.ones(32, np.float32),
            f"blk.{layer}.attn_q.weight": _normal(random, 32, 32),
            f"blk.{layer}.attn_k.weight": _normal(random, 32, 32),
            f"blk.{layer}.attn_v.weight": _normal(random, 32, 32),
            f"blk.{layer}.attn_output.weight": _normal(random, 32, 32),
            f"blk.{layer}.ffn_norm.weight": np.ones(32, np.float32),
            f"blk.{layer}.ffn_gate.weight": _normal(random, 64, 32),
            f"blk.{layer}.ffn_up.weight": _normal(random, 64, 32),
            f"blk.{layer}.ffn_down.weight": _normal(random, 32, 64),
        }
    return tensors


def write_hybrid_model(path: Path) -> None:
    """Write an eight-layer `qwen35`: three Gated DeltaNet layers to one of attention.

    The layers' matrices are Q8_0, as quantized weights are what makes decodes sensitive to cuts.
    """
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_name("qwen35-random")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(32768)
    writer.add_embedding_length(64)
    writer.add_block_count(8)
    writer.add_feed_forward_length(128)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_rope_dimension_sections([3, 3, 2, 0])
    writer.add_rope_freq_base(10_000_000.0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(16)
    writer.add_ssm_group_count(2)
    writer.add_ssm_time_step_rank(4)
    writer.add_ssm_inner_size(64)
    writer.add_uint32("qwen35.full_attention_interval", 4)
    writer.add_chat_template(QWEN35_TEMPLATE.read_text("utf-8"))
    for name, tensor in _hybrid_tensors():
        if tensor.ndim == 2 and "conv1d" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    _finish(writer, extra_entries=_vocabulary_entries(), extra_count=_VOCABULARY_ENTRIES)


def _vocabulary_entries() -> bytes:
    """Return the qwen35 vocabulary's metadata entries, as they lie in its file.

    They are copied as bytes because `gguf.GGUFReader` takes seconds to read them.
    """
    data = (LLAMA_FILES / "ggml-vocab-qwen35.gguf").read_bytes()
    # A key is written as its length, in 8 bytes, and its text.
    start = data.index(b"tokenizer.ggml.model") - 8
    return data[start : data.index(b"tokenizer.chat_template") - 8]


def _hybrid_tensors() -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    random = np.random.default_rng(2)
    yield "token_embd.weight", _normal(random, 151_936, 64, scale=1.0)
    yield "output_norm.weight", np.ones(64, np.float32)
    for layer in range(8):
        is_attention = layer % 4 == 3
        mixer = _attention(random) if is_attention else _delta_net(random)
        for name, tensor in (mixer | _feed_forward(random)).items():
            yield f"blk.{layer}.{name}", tensor


def _attention(random: np.random.Generator) -> Tensors:
    return {
        "attn_q.weight": _normal(random, 128, 64),  # queries and their gates, 2 heads of 32
        "attn_k.weight": _normal(random, 32, 64),
        "attn_v.weight": _normal(random, 32, 64),
        "attn_output.weight": _normal(random, 64, 64),
        "attn_q_norm.weight": np.ones(32, np.float32),
        "attn_k_norm.weight": np.ones(32, np.float32),
    }


def _delta_net(random: np.random.Generator) -> Tensors:
    return {
        "attn_qkv.weight": _normal(random, 128, 64),  # 2 keys of 16, 2 queries, 4 values
        "attn_gate.weight": _normal(random, 64, 64),
        "ssm_conv1d.weight": _normal(random, 128, 4),
        "ssm_dt.bias": random.normal(size=4).astype(np.float32),
        "ssm_a": -random.uniform(0.01, 1.0, size=4).astype(np.float32),
        "ssm_beta.weight": _normal(random, 4, 64),
        "ssm_alpha.weight": _normal(random, 4, 64),
        "ssm_norm.weight": np.ones(16, np.float32),
        "ssm_out.weight": _normal(random, 64, 64),
    }


def _feed_forward(random: np.random.Generator) -> Tensors:
    return {
        "attn_norm.weight": np.ones(64, np.float32),
        "post_attention_norm.weight": np.ones(64, np.float32),
        "ffn_gate.weight": _normal(random, 128, 64),
        "ffn_up.weight": _normal(random, 128, 64),
        "ffn_down.weight": _normal(random, 64, 128),
    }


def _normal(
    random: np.random.Generator, rows: int, columns: int, scale: float | None = None
) -> npt.NDArray[np.float32]:
    """Return a matrix that keeps the size of what it multiplies, unless `scale` says otherwise."""
    return random.normal(scale=scale or columns**-0.5, size=(rows, columns)).astype(np.float32)


def _finish(writer: Any, *, extra_entries: bytes = b"", extra_count: int = 0) -> None:
    """Write the files, with metadata entries that are bytes already behind the writer's own."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    file = writer.fout[0]
    file.write(extra_entries)
    file.flush()
    _raise_entry_count(Path(file.name), extra_count)
    writer.write_tensors_to_file()
    writer.close()


def _raise_entry_count(path: Path, by: int) -> None:
    """Add `by` to a GGUF's number of metadata entries: 8 bytes behind magic, version, tensors."""
    with path.open("r+b") as file:
        file.seek(16)
        (count,) = struct.unpack("<Q", file.read(8))
        file.seek(16)
        file.write(struct.pack("<Q", count + by))
