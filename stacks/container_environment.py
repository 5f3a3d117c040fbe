"""What an endpoint's container reads from its environment."""

from __future__ import annotations

from stacks.environment import ALL_LAYERS, Endpoint

# llama-server offloads as many layers as there are; no model has more.
_EVERY_LAYER = 999
_MODEL_FOLDER = "/opt/ml/model"


def container_environment(endpoint: Endpoint) -> dict[str, str]:
    """Return the environment variables of an endpoint's container."""
    variables = _decision(endpoint) if endpoint.kind == "decision" else _chat(endpoint)
    return {name: str(value) for name, value in variables.items() if value is not None}


def _decision(endpoint: Endpoint) -> dict[str, object]:
    """The adapter's variables; its own defaults stand for what is not set."""
    return {
        "BALLOT_CALIBRATION": endpoint.calibration,
        "BALLOT_CONTEXT_TOKENS": endpoint.context_tokens,
        "BALLOT_GPU_LAYERS": endpoint.gpu_layers,
        "BALLOT_LAYOUT": endpoint.layout,
        "BALLOT_MAX_QUEUE": endpoint.max_queue,
        "BALLOT_ORDERS": endpoint.orders,
        "BALLOT_THREADS": endpoint.threads,
    }


def _chat(endpoint: Endpoint) -> dict[str, object]:
    """The variables of AWS's llama.cpp container, which become llama-server's options."""
    layers = _EVERY_LAYER if endpoint.gpu_layers == ALL_LAYERS else endpoint.gpu_layers
    return {
        **_chat_model(endpoint),
        "SM_LLAMA_CPP_CTX_SIZE": endpoint.context_tokens,
        "SM_LLAMA_CPP_N_GPU_LAYERS": layers,
        "SM_LLAMA_CPP_THREADS": endpoint.threads,
    }


def _chat_model(endpoint: Endpoint) -> dict[str, object]:
    if endpoint.model:
        return {"SM_LLAMA_CPP_MODEL": f"{_MODEL_FOLDER}/{endpoint.model.file}"}
    assert endpoint.hub is not None, "this is a bug: an endpoint has a model or a hub file"
    return {
        "SM_LLAMA_CPP_HF_REPO": endpoint.hub.repository,
        "SM_LLAMA_CPP_HF_FILE": endpoint.hub.file,
    }
