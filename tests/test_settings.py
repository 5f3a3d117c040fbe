"""The environment variables: what they accept, their defaults, and that the README has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapter.errors import StartupError
from adapter.settings import Settings, read_settings, variables
from tests.adapter_process import ROOT


def test_nothing_set_gives_the_documented_deployment() -> None:
    settings = read_settings({"PATH": "/bin", "SAGEMAKER_X": "1"})

    assert settings == Settings()
    assert settings.model_dir == Path("/opt/ml/model")
    assert (settings.host, settings.port) == ("0.0.0.0", 8080)
    assert (settings.context_tokens, settings.max_queue) == (4096, 32)
    assert (settings.max_body_bytes, settings.max_decisions) == (1_048_576, 64)
    assert settings.request_timeout_seconds == 55
    assert settings.drain_timeout_seconds == 25
    assert (settings.state_cache_mb, settings.state_cache_entries) == (512, 4096)
    assert (settings.layout, settings.orders) == ("evidence_first", 1)
    assert settings.model_aliases is True
    assert settings.threads is None
    assert settings.gpu_layers == 0


def test_every_variable_is_read() -> None:
    environment = {
        "BALLOT_MODEL_DIR": "/models",
        "BALLOT_GGUF_PATH": "/models/a.gguf",
        "BALLOT_CHAT_TEMPLATE": "/models/a.jinja",
        "BALLOT_CALIBRATION": "/models/a.json",
        "BALLOT_LLAMA_LIB_DIR": "/opt/llama.cpp/bin",
        "BALLOT_HOST": "::1",
        "BALLOT_PORT": "0",
        "BALLOT_THREADS": " 8 ",
        "BALLOT_GPU_LAYERS": "-1",
        "BALLOT_CONTEXT_TOKENS": "8192",
        "BALLOT_LANES": "8",
        "BALLOT_MAX_QUEUE": "0",
        "BALLOT_MAX_BODY_BYTES": "2048",
        "BALLOT_MAX_DECISIONS": "1",
        "BALLOT_REQUEST_TIMEOUT_SECONDS": "0.5",
        "BALLOT_BODY_TIMEOUT_SECONDS": "1",
        "BALLOT_DRAIN_TIMEOUT_SECONDS": "3600",
        "BALLOT_STATE_CACHE_MB": "0",
        "BALLOT_STATE_CACHE_ENTRIES": "7",
        "BALLOT_LAYOUT": "criterion_first",
        "BALLOT_ORDERS": "2",
        "BALLOT_MODEL_ALIASES": "off",
        "BALLOT_LOG_LEVEL": "DEBUG",
    }

    assert read_settings(environment) == Settings(
        model_dir=Path("/models"),
        gguf_path=Path("/models/a.gguf"),
        chat_template=Path("/models/a.jinja"),
        calibration="/models/a.json",
        llama_lib_dir=Path("/opt/llama.cpp/bin"),
        host="::1",
        port=0,
        threads=8,
        gpu_layers=-1,
        context_tokens=8192,
        lanes=8,
        max_queue=0,
        max_body_bytes=2048,
        max_decisions=1,
        request_timeout_seconds=0.5,
        body_timeout_seconds=1.0,
        drain_timeout_seconds=3600.0,
        state_cache_mb=0,
        state_cache_entries=7,
        layout="criterion_first",
        orders=2,
        model_aliases=False,
        log_level="debug",
    )
    assert set(environment) == set(variables())


def test_threads_can_be_left_to_the_adapter() -> None:
    assert read_settings({"BALLOT_THREADS": "auto"}).threads is None


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(StartupError) as caught:
        read_settings(
            {"BALLOT_PORT": "http", "BALLOT_MAX_QUEUE": "-1", "BALLOT_THREAD": "2", "BALLOT_X": ""}
        )

    assert str(caught.value) == (
        "bad configuration: BALLOT_MAX_QUEUE='-1' is not 0 to 100000; "
        "BALLOT_PORT='http' is not 0 to 65535; "
        "BALLOT_THREAD is not a variable of the adapter (did you mean BALLOT_THREADS?); "
        "BALLOT_X is not a variable of the adapter"
    )


def test_readme_lists_every_variable_with_its_default_and_meaning() -> None:
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| `(BALLOT_\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", readme, re.MULTILINE)
    documented = {name: (default.strip("`"), value, text) for name, default, value, text in rows}

    expected = {}
    for name, (_, variable, default) in variables().items():
        words = {"BALLOT_THREADS": "auto", "BALLOT_MODEL_ALIASES": "on"}
        shown = words.get(name, "" if default is None else str(default))
        expected[name] = (shown, variable.allowed, variable.meaning)
    assert documented == expected
