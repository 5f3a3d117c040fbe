"""What llama.cpp's C functions alone say of a prompt, in contexts made for it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from adapter.engine import Logits
from adapter.llama import Model
from adapter.tokens import Encoded

CONTEXT_TOKENS = 2048
# Several threads wait for each other in a busy loop, for seconds where the machine has other work.
THREADS = 1


def decode_alone(model: Model, encoded: Encoded) -> Logits:
    """Decode `encoded` in contexts of its own, through llama.cpp's C functions alone."""
    api = model.library.api
    context = new_context(model)
    position = 0
    for index, segment in enumerate(encoded.segments):
        for start in range(0, len(segment), 512):
            chunk = segment[start : start + 512]
            tokens = (ctypes.c_int32 * len(chunk))(*chunk)
            # Without positions and flags: it goes on behind what there is, the last one is read.
            assert api.llama_decode(context, api.llama_batch_get_one(tokens, len(chunk))) == 0
            position += len(chunk)
        if api.llama_model_n_swa(model.handle) > 0 and index < len(encoded.segments) - 1:
            context = moved(model, context)
    assert position == encoded.input_tokens
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model.handle))
    logits = np.array(api.llama_get_logits_ith(context, -1)[:size], np.float32)
    api.llama_free(context)
    return logits


def new_context(model: Model) -> Any:
    params = model.library.api.llama_context_default_params()
    params.n_ctx = CONTEXT_TOKENS
    params.n_batch = params.n_ubatch = 512
    params.n_outputs_max = 1
    params.n_threads = params.n_threads_batch = THREADS
    context = model.library.api.llama_init_from_model(model.handle, params)
    assert context
    return context


def moved(model: Model, context: Any) -> Any:
    """Return a new context that holds what a snapshot of `context` does, and free that."""
    api = model.library.api
    size = api.llama_state_seq_get_size(context, 0)
    buffer = (ctypes.c_uint8 * size)()
    assert api.llama_state_seq_get_data(context, buffer, size, 0) == size
    api.llama_free(context)
    fresh = new_context(model)
    assert api.llama_state_seq_set_data(fresh, buffer, size, 0) == size
    return fresh
