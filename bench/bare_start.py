"""The least that a start can be: a process that loads a model and prefills the head, and tells.

    python -m bench.bare_start MODEL.gguf THREADS GPU_LAYERS CONTEXT_TOKENS < head tokens as JSON

Prints one line of JSON when the head is in memory, and stays until its input ends.
"""

from __future__ import annotations

import json
import os
import sys

from adapter.llama import Library
from bench.bare import RawContext
from bench.memory import resident_bytes


def main(gguf: str, threads: int, gpu_layers: int, context_tokens: int) -> None:
    """Load, prefill, print how much the resident memory grew, and wait."""
    head = json.loads(sys.stdin.readline())
    api = Library(None).api
    before = resident_bytes()
    params = api.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    model = api.llama_model_load_from_file(os.fsencode(gguf), params)
    context = RawContext(api, model, tokens=context_tokens, threads=threads)
    context.decode(head)
    print(json.dumps({"grown_bytes": resident_bytes() - before}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
