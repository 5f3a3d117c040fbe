"""llama-cpp-python over a llama.cpp that lacks one of the functions that it looks up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny_gguf
from tests.adapter_process import PATIENCE, ROOT, environment
from tests.test_startup import own_libraries

CALL = """
import ctypes
from adapter.bindings import import_bindings

api = import_bindings()
print(api.llama_adapter_meta_count.__name__)
try:
    api.llama_adapter_meta_count(ctypes.c_void_p())
except AttributeError as error:
    print(error)
"""


def libraries_without(function: str, folder: Path) -> Path:
    """Return a copy of llama.cpp's libraries in which `function` has another name."""
    shutil.copytree(own_libraries(), folder)
    name = b"\0" + function.encode() + b"\0"
    for path in folder.glob("libllama.so*"):
        library = path.read_bytes()
        assert name in library
        path.write_bytes(library.replace(name, name[:-2] + b"_\0"))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf.write_model(path)
    return path


def self_test(model: Path, libraries: Path) -> subprocess.CompletedProcess[str]:
    return python(
        *("-m", "adapter", "selftest"),
        BALLOT_GGUF_PATH=str(model),
        BALLOT_LLAMA_LIB_DIR=str(libraries),
        BALLOT_THREADS="1",
    )


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT / "container",
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def events(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_function_for_lora_adapters_may_be_missing(model: Path, tmp_path: Path) -> None:
    libraries = libraries_without("llama_adapter_meta_count", tmp_path / "lib")
    ended = self_test(model, libraries)
    assert ended.returncode == 0
    missing, loaded = events(ended)
    assert (missing["event"], missing["name"]) == ("function_missing", "llama_adapter_meta_count")
    assert loaded["event"] == "model_loaded"


def test_a_missing_function_raises_when_it_is_called(tmp_path: Path) -> None:
    libraries = libraries_without("llama_adapter_meta_count", tmp_path / "lib")
    ended = python("-c", CALL, LLAMA_CPP_LIB_PATH=str(libraries))
    assert ended.stdout.splitlines() == [
        "llama_adapter_meta_count",
        f"{libraries}/libllama.so: undefined symbol: llama_adapter_meta_count",
    ]


@pytest.mark.parametrize("function", ["llama_n_ctx_train", "llama_token_to_piece"])
def test_no_other_function_may_be_missing(function: str, model: Path, tmp_path: Path) -> None:
    libraries = libraries_without(function, tmp_path / "lib")
    ended = self_test(model, libraries)
    assert ended.returncode == 1
    assert events(ended)[-1]["message"] == (
        f"ABI mismatch: the llama.cpp libraries in {libraries} do not fit the installed "
        f"llama-cpp-python ({libraries}/libllama.so: undefined symbol: {function}); install the "
        "bindings of the same llama.cpp build"
    )


def test_a_folder_named_like_such_a_function_excuses_nothing(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "llama_adapter_x"
    libraries = libraries_without("llama_n_ctx_train", folder)
    ended = self_test(model, libraries)
    assert ended.returncode == 1
    assert "undefined symbol: llama_n_ctx_train" in events(ended)[-1]["message"]
