"""Stands for AWS's llama.cpp container: llama-cpp-python's OpenAI server behind SageMaker's routes.

    chat_server.py MODEL_FOLDER PORT

`GET /ping` and `POST /invocations` are served as the container serves them; the model is chosen in
its order: `SM_LLAMA_CPP_MODEL`, then the first GGUF file up to two folders deep. Runs in
`.build/chat`, which holds llama-cpp-python and its server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "SM_LLAMA_CPP_"
# The container passes SM_LLAMA_CPP_X_Y=v to llama-server as --x-y v; this server has fewer options.
OPTIONS = {
    "ALIAS": "model_alias",
    "BATCH_SIZE": "n_batch",
    "CHAT_TEMPLATE": "chat_format",
    "CTX_SIZE": "n_ctx",
    "N_GPU_LAYERS": "n_gpu_layers",
    "SEED": "seed",
    "THREADS": "n_threads",
    "THREADS_BATCH": "n_threads_batch",
    "UBATCH_SIZE": "n_ubatch",
}


def model_file(folder: Path, environ: Mapping[str, str]) -> Path:
    """Return the model to serve; ends the process where there is none."""
    if chosen := environ.get(f"{PREFIX}MODEL"):
        path = Path(chosen)
        if not path.is_file():
            sys.exit(f"chat stand-in: {PREFIX}MODEL: {chosen} is not a file")
        return path
    found = [
        path
        for pattern in ("*.gguf", "*/*.gguf", "*/*/*.gguf")
        for path in sorted(folder.glob(pattern))
    ]
    if not found:
        sys.exit(f"chat stand-in: there is no GGUF file in {folder} and no {PREFIX}MODEL")
    return found[0]


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the server's settings; those that it does not have are named and left out."""
    found: dict[str, Any] = {}
    for name in sorted(environ):
        option = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and option not in ("MODEL", "HF_REPO", "HF_FILE"):
            if option in OPTIONS:
                found[OPTIONS[option]] = environ[name]
            else:
                print(f"chat stand-in: {name} has no counterpart here", flush=True)
    return found


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    import uvicorn
    from llama_cpp.server import app as server
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    folder, port = Path(arguments[0]), int(arguments[1])
    # Answers name the file as it is given here; where it lies on this machine is nobody's concern.
    path = os.path.relpath(model_file(folder, os.environ))
    model = ModelSettings(model=path, verbose=False, **settings(os.environ))
    application = server.create_app(
        server_settings=ServerSettings(host="127.0.0.1", port=port), model_settings=[model]
    )
    application.router.add_api_route(
        "/invocations", server.create_chat_completion, methods=["POST"], response_model=None
    )
    application.router.add_api_route("/ping", lambda: {"status": "ok"}, methods=["GET"])
    print(f"chat stand-in: llama-cpp-python's server on port {port}", flush=True)
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
