"""Start-up faults: each ends the process with status 1 and one line that says how to mend it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapter.settings import variables
from tests.adapter_process import (
    BUILD,
    GEMMA_MODEL,
    LLAMA_FILES,
    PATIENCE,
    ROOT,
    AdapterProcess,
    environment,
)
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model

OLDER_BINDINGS = BUILD / "bindings-0.3.35"
SHARDS = tuple(f"split-0000{number}-of-00005.gguf" for number in (1, 2, 3, 4, 5))

# Every variable, a value that it does not take, and what its message says instead.
BAD_VALUES = {
    "BALLOT_MODEL_DIR": ("", "a folder"),
    "BALLOT_GGUF_PATH": ("", "a file"),
    "BALLOT_CHAT_TEMPLATE": ("", "a file"),
    "BALLOT_CALIBRATION": ("", "a file, or its JSON"),
    "BALLOT_LLAMA_LIB_DIR": (" ", "a folder"),
    "BALLOT_HOST": ("local host", "an address"),
    "BALLOT_PORT": ("65536", "0 to 65535"),
    "BALLOT_THREADS": ("0", "auto, or 1 to 1024"),
    "BALLOT_GPU_LAYERS": ("all", "-1 to 100000"),
    "BALLOT_CONTEXT_TOKENS": ("255", "256 to 1048576"),
    "BALLOT_LANES": ("0", "1 to 64"),
    "BALLOT_MAX_QUEUE": ("-1", "0 to 100000"),
    "BALLOT_MAX_BODY_BYTES": ("1MB", "1024 to 1073741824"),
    "BALLOT_MAX_DECISIONS": ("0", "1 to 10000"),
    "BALLOT_REQUEST_TIMEOUT_SECONDS": ("nan", "more than 0, to 3600"),
    "BALLOT_BODY_TIMEOUT_SECONDS": ("0", "more than 0, to 3600"),
    "BALLOT_DRAIN_TIMEOUT_SECONDS": ("inf", "more than 0, to 3600"),
    "BALLOT_STATE_CACHE_MB": ("-1", "0 to 1048576"),
    "BALLOT_STATE_CACHE_ENTRIES": ("1e3", "0 to 1000000"),
    "BALLOT_LAYOUT": ("evidence", "evidence_first, criterion_first"),
    "BALLOT_ORDERS": ("3", "1 or 2"),
    "BALLOT_MODEL_ALIASES": ("true", "on, off"),
    "BALLOT_LOG_LEVEL": ("loud", "debug, info, warning, error"),
}

# Chat templates that cannot be used, and what is wrong with them.
BAD_TEMPLATES = {
    "syntax": (b"{% if %}", "TemplateSyntaxError: Expected an expression"),
    "undefined": (b"{{ messages[0].tools.name }}", "UndefinedError"),
    "no user message": (b"{{ messages[0].content }}", "must write the user message exactly once"),
    "empty": (b"", "must write the user message exactly once"),
    "twice": (
        b"{{ messages[0].content }}{{ messages[1].content }}{{ messages[1].content }}",
        "must write the user message exactly once",
    ),
}


@dataclass(frozen=True)
class TinyModel:
    """A small model, whole and in five shards, in a folder each."""

    path: Path
    folder_of_shards: Path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    folder = tmp_path_factory.mktemp("tiny")
    shards = tmp_path_factory.mktemp("shards")
    write_tiny_model(folder / "tiny.gguf", chat_template=BYTES_TEMPLATE)
    write_tiny_model(shards / "split.gguf", chat_template=BYTES_TEMPLATE, tensors_per_shard=4)
    assert sorted(path.name for path in shards.iterdir()) == [*SHARDS]
    return TinyModel(folder / "tiny.gguf", shards)


def adapter_environment(**variables: str) -> dict[str, str]:
    """Return an environment with the given variables and, unless named, no model."""
    defaults = {"BALLOT_THREADS": "1"}
    result = environment(**{**defaults, **variables})
    if "BALLOT_GGUF_PATH" not in variables:
        del result["BALLOT_GGUF_PATH"]
    return result


def startup_error(*arguments: str, **variables: str) -> str:
    """Run the adapter, check how it fails, and return the message of its one error line."""
    return failure(arguments, variables, limit=None)


def failure(
    arguments: tuple[str, ...], variables: dict[str, str], *, limit: Callable[[], None] | None
) -> str:
    """Do as `startup_error`, calling `limit` in the new process."""
    ended = subprocess.run(
        [sys.executable, "-m", "adapter", *arguments],
        cwd=ROOT / "container",
        env=adapter_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        preexec_fn=limit,
    )
    assert ended.stderr == b""
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    errors = [record for record in records if record["level"] == "error"]
    assert errors == records[-1:]
    assert sorted(errors[0]) == ["event", "level", "message", "time"]
    assert errors[0]["event"] == "startup_failed"
    assert ended.returncode == 1
    message: str = errors[0]["message"]
    assert "\n" not in message
    return message


def started(**variables: str) -> dict[str, Any]:
    """Start the adapter, stop it once its model is loaded, and return what it loaded."""
    with subprocess.Popen(
        [sys.executable, "-m", "adapter", "serve"],
        cwd=ROOT / "container",
        env=adapter_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        records: list[dict[str, Any]] = []
        for line in process.stdout:
            records.append(json.loads(line))
            if records[-1]["event"] == "model_loaded":
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, records
    return next(record for record in records if record["event"] == "model_loaded")


def own_libraries() -> Path:
    """Return the folder of the installed llama-cpp-python's libraries."""
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "lib"


# --- settings


def test_every_variable_is_tried_with_a_bad_value() -> None:
    assert sorted(BAD_VALUES) == sorted(variables())


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_is_named_with_what_is_allowed(name: str) -> None:
    value, allowed = BAD_VALUES[name]
    assert startup_error(**{name: value}) == f"bad configuration: {name}={value!r} is not {allowed}"


def test_all_bad_values_are_named_at_once() -> None:
    message = startup_error(**{name: value for name, (value, _) in BAD_VALUES.items()})
    assert message == "bad configuration: " + "; ".join(
        f"{name}={value!r} is not {allowed}"
        for name, (value, allowed) in sorted(BAD_VALUES.items())
    )


def test_two_bad_values_are_both_named() -> None:
    assert startup_error(BALLOT_PORT="http", BALLOT_MAX_QUEUE="1.5") == (
        "bad configuration: BALLOT_MAX_QUEUE='1.5' is not 0 to 100000; "
        "BALLOT_PORT='http' is not 0 to 65535"
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("BALLOT_PROT", "BALLOT_PORT"),
        ("BALLOT_CONTEXT_SIZE", "BALLOT_CONTEXT_TOKENS"),
        ("BALLOT_MAX_QUEUE_SIZE", "BALLOT_MAX_QUEUE"),
        ("BALLOT_MODEL_PATH", "BALLOT_MODEL_DIR"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known_one(name: str, nearest: str) -> None:
    assert startup_error(**{name: "1"}) == (
        f"bad configuration: {name} is not a variable of the adapter (did you mean {nearest}?)"
    )


def test_a_value_that_is_not_utf_8() -> None:
    assert startup_error(BALLOT_PORT=os.fsdecode(b"\xff")) == (
        "bad configuration: BALLOT_PORT='\\udcff' is not 0 to 65535"
    )


def test_a_name_that_is_not_utf_8() -> None:
    message = startup_error(**{os.fsdecode(b"BALLOT_P\xffRT"): "1"})
    assert message.startswith("bad configuration: BALLOT_P\udcffRT is not a variable")


def test_a_path_that_is_not_utf_8() -> None:
    path = os.fsdecode(b"/nowhere/\xff.gguf")
    assert startup_error(BALLOT_GGUF_PATH=path) == (
        "BALLOT_GGUF_PATH names no file: /nowhere/\udcff.gguf"
    )


def test_output_that_takes_ascii_only() -> None:
    path = "/nowhere/modèle.gguf"
    assert startup_error(BALLOT_GGUF_PATH=path, PYTHONIOENCODING="ascii") == (
        "BALLOT_GGUF_PATH names no file: /nowhere/modèle.gguf"
    )


@pytest.mark.parametrize("arguments", [("train",), ("serve", "--port"), ("--help",)])
def test_unknown_arguments(arguments: tuple[str, ...]) -> None:
    assert startup_error(*arguments) == (
        f"unknown arguments {list(arguments)}; known are: serve, selftest"
    )


# --- the port


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert startup_error(BALLOT_PORT=str(port)) == (
            f"cannot listen on 127.0.0.1 port {port}: Address already in use; "
            "set BALLOT_HOST and BALLOT_PORT to an address that is free"
        )


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        # RFC 5737: an address for documentation, which no machine has.
        ("192.0.2.1", "Cannot assign requested address"),
        # RFC 6761: a name that never resolves; what the resolver says depends on the network.
        ("ballot.invalid", ""),
        ("::zz", ""),
        ("a..b", ""),
        ("a" * 70 + ".invalid", ""),
    ],
)
def test_an_address_that_is_not_here(host: str, reason: str) -> None:
    message = startup_error(BALLOT_HOST=host)
    assert message.startswith(f"cannot listen on {host} port 0: {reason}")
    assert message.endswith("; set BALLOT_HOST and BALLOT_PORT to an address that is free")


# --- the model


def test_no_model_folder(tmp_path: Path) -> None:
    assert startup_error(BALLOT_MODEL_DIR=f"{tmp_path}/model") == (
        f"there is no model folder {tmp_path}/model; set BALLOT_MODEL_DIR or BALLOT_GGUF_PATH"
    )


def test_a_folder_without_a_gguf(tmp_path: Path) -> None:
    assert startup_error(BALLOT_MODEL_DIR=str(tmp_path)) == (
        f"no .gguf file in {tmp_path} or one level down; put one there or set BALLOT_GGUF_PATH"
    )


def test_two_models(tiny_model: TinyModel, tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        shutil.copy(tiny_model.path, tmp_path / name)
    assert startup_error(BALLOT_MODEL_DIR=str(tmp_path)) == (
        f"2 models in {tmp_path} (a.gguf, b.gguf); set BALLOT_GGUF_PATH to one of them"
    )


def test_a_path_that_names_no_file(tmp_path: Path) -> None:
    assert startup_error(BALLOT_GGUF_PATH=f"{tmp_path}/m.gguf") == (
        f"BALLOT_GGUF_PATH names no file: {tmp_path}/m.gguf"
    )


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert startup_error(BALLOT_GGUF_PATH=str(path)) == (
        f"{path} is not a GGUF file; download or convert it again"
    )


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        # The last tensors are cut off.
        (100_000, "data is not within the file bounds, model is corrupted or incomplete"),
        # The header is: in its first numbers, in the vocabulary.
        (4, "failed to read"),
        (20, "failed to read header"),
        (3_000, "exceeds remaining file size"),
    ],
)
def test_a_truncated_gguf(size: int, reason: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model.path.read_bytes()[:size])
    message = startup_error(BALLOT_GGUF_PATH=str(path))
    assert message.startswith(f"llama.cpp cannot load {path}: ")
    assert reason in message
    assert message.endswith("; download or convert the GGUF again, or use a newer llama.cpp")


def test_a_gguf_of_a_vocabulary_only() -> None:
    path = LLAMA_FILES / "ggml-vocab-qwen35.gguf"
    message = startup_error(BALLOT_GGUF_PATH=str(path))
    assert message.startswith(f"llama.cpp cannot load {path}: ")
    assert "'token_embd.weight' not found" in message


def test_a_missing_shard(tiny_model: TinyModel, tmp_path: Path) -> None:
    shutil.copytree(tiny_model.folder_of_shards, tmp_path, dirs_exist_ok=True)
    (tmp_path / SHARDS[2]).unlink()
    assert startup_error(BALLOT_MODEL_DIR=str(tmp_path)) == (
        f"the split GGUF misses its shard {SHARDS[2]}; put it beside the others"
    )


def test_a_shard_in_another_ones_place(tiny_model: TinyModel, tmp_path: Path) -> None:
    shutil.copytree(tiny_model.folder_of_shards, tmp_path, dirs_exist_ok=True)
    shutil.copy(tmp_path / SHARDS[1], tmp_path / SHARDS[2])
    message = startup_error(BALLOT_MODEL_DIR=str(tmp_path))
    assert message.startswith(f"llama.cpp cannot load {tmp_path / SHARDS[0]}: ")
    assert "invalid split file idx: 1" in message


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_a_bad_chat_template(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    source, reason = BAD_TEMPLATES[name]
    path = tmp_path / "template.jinja"
    path.write_bytes(source)
    message = startup_error(BALLOT_GGUF_PATH=str(tiny_model.path), BALLOT_CHAT_TEMPLATE=str(path))
    assert message.startswith("the chat template does not render (")
    assert reason in message
    assert message.endswith("; set BALLOT_CHAT_TEMPLATE to one that does")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "No such file or directory"),
        ("folder", "Is a directory"),
        ("utf-16", "'utf-8' codec can't decode"),
    ],
)
def test_a_chat_template_that_cannot_be_read(
    name: str, reason: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "utf-16").write_text("{{ messages }}", "utf-16")
    path = tmp_path / name
    message = startup_error(BALLOT_GGUF_PATH=str(tiny_model.path), BALLOT_CHAT_TEMPLATE=str(path))
    assert message.startswith(f"BALLOT_CHAT_TEMPLATE {path} cannot be read (")
    assert reason in message
    assert message.endswith("); set it to a Jinja template in UTF-8")


def test_a_context_that_the_self_test_does_not_fit(tiny_model: TinyModel) -> None:
    message = startup_error(BALLOT_GGUF_PATH=str(tiny_model.path), BALLOT_CONTEXT_TOKENS="256")
    assert message.startswith("the self-test decision does not fit (")
    assert "tokens; the limit is 256); raise BALLOT_CONTEXT_TOKENS" in message


# Without what libraries set aside for each core of this machine.
FEW_ADDRESSES = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def limit_on(kind: int, mebibytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (mebibytes << 20, mebibytes << 20))


@pytest.mark.parametrize("mebibytes", [500, 1000])
def test_a_context_too_large_for_the_memory_is_refused_before_it_is_taken(
    mebibytes: int, tiny_model: TinyModel
) -> None:
    model = {"BALLOT_GGUF_PATH": str(tiny_model.path), "BALLOT_CONTEXT_TOKENS": "1048576"}
    message = failure((), model, limit=limit_on(resource.RLIMIT_AS, mebibytes))
    match = re.fullmatch(
        r"a context of 1048576 tokens takes (\d+) MiB, and at most (\d+) MiB of memory are left; "
        r"lower BALLOT_CONTEXT_TOKENS or add memory",
        message,
    )
    assert match
    # Two layers of keys and values of 32 numbers of 2 bytes are 256 MiB; the mask of a decode of
    # 512 tokens, in 2 bytes, is 1024.
    assert int(match[1]) == 256 + 1024
    assert int(match[2]) < mebibytes


# The memory that the key-value cache misses, and the memory that the computation misses. This
# limit is none of those that are looked at before.
@pytest.mark.parametrize("mebibytes", [250, 500])
def test_a_context_that_llama_cpp_gets_no_memory_for(mebibytes: int, tiny_model: TinyModel) -> None:
    model = {"BALLOT_GGUF_PATH": str(tiny_model.path), "BALLOT_CONTEXT_TOKENS": "1048576"}
    message = failure((), model, limit=limit_on(resource.RLIMIT_DATA, mebibytes))
    assert message.startswith("llama.cpp cannot create a context of 1048576 tokens: ")
    assert "insufficient memory" in message
    assert message.endswith("; lower BALLOT_CONTEXT_TOKENS or add memory")


def test_a_context_that_just_fits_starts_with_a_smaller_state_cache(tiny_model: TinyModel) -> None:
    # The context takes 1,280 MiB, all else less than 400; for the cache there are 512 by default.
    ended = subprocess.run(
        [sys.executable, "-m", "adapter", "selftest"],
        cwd=ROOT / "container",
        env=adapter_environment(
            BALLOT_GGUF_PATH=str(tiny_model.path), BALLOT_CONTEXT_TOKENS="1048576", **FEW_ADDRESSES
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        preexec_fn=limit_on(resource.RLIMIT_AS, 1900),
    )
    records = {record["event"]: record for record in map(json.loads, ended.stdout.splitlines())}
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert "model_loaded" in records
    assert 64 <= records["state_cache_limited"]["mib"] < 1900 - 1280
    assert "BALLOT_STATE_CACHE_MB" in records["state_cache_limited"]["message"]


def test_a_model_too_large_for_the_address_space() -> None:
    model = {"BALLOT_GGUF_PATH": str(GEMMA_MODEL), **FEW_ADDRESSES}
    message = failure((), model, limit=limit_on(resource.RLIMIT_AS, 300))
    assert message.startswith(f"llama.cpp cannot load {GEMMA_MODEL}: ")
    assert message.endswith(
        "mmap failed: Cannot allocate memory; use a smaller quantization or an instance with more "
        "memory"
    )


@pytest.mark.parametrize("layers", ["-1", "1"])
def test_gpu_layers_without_a_gpu(layers: str, tiny_model: TinyModel) -> None:
    message = startup_error(BALLOT_GGUF_PATH=str(tiny_model.path), BALLOT_GPU_LAYERS=layers)
    assert message == (
        f"BALLOT_GPU_LAYERS is {layers} but llama.cpp sees no GPU (devices: CPU); set it to 0, or "
        "run the CUDA image on a GPU instance"
    )


# --- llama.cpp


def test_bindings_of_another_build(tiny_model: TinyModel) -> None:
    message = startup_error(
        PYTHONPATH=str(OLDER_BINDINGS),
        BALLOT_LLAMA_LIB_DIR=str(own_libraries()),
        BALLOT_GGUF_PATH=str(tiny_model.path),
    )
    assert message == (
        "ABI mismatch: the llama.cpp libraries are of another build than the installed "
        "llama-cpp-python (main_gpu reads 1, not 0; use_extra_bufts reads False, not True); "
        "install the bindings of the same build"
    )


def test_a_library_folder_that_is_none(tiny_model: TinyModel, tmp_path: Path) -> None:
    message = startup_error(
        BALLOT_LLAMA_LIB_DIR=f"{tmp_path}/lib", BALLOT_GGUF_PATH=str(tiny_model.path)
    )
    assert message == f"BALLOT_LLAMA_LIB_DIR names no folder: {tmp_path}/lib"


def test_a_library_folder_without_libraries(tiny_model: TinyModel, tmp_path: Path) -> None:
    message = startup_error(
        BALLOT_LLAMA_LIB_DIR=str(tmp_path), BALLOT_GGUF_PATH=str(tiny_model.path)
    )
    assert message == (
        f"there is no libllama in {tmp_path}; point BALLOT_LLAMA_LIB_DIR at the folder that holds "
        "it and libggml*, or leave it unset to use llama-cpp-python's own"
    )


def test_a_library_that_does_not_load(tiny_model: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_text("not a library")
    message = startup_error(
        BALLOT_LLAMA_LIB_DIR=str(tmp_path), BALLOT_GGUF_PATH=str(tiny_model.path)
    )
    assert message.startswith(f"ABI mismatch: the llama.cpp libraries in {tmp_path} do not fit")
    assert "libllama.so: file too short" in message
    assert message.endswith("; install the bindings of the same llama.cpp build")


# --- what does start


def test_libraries_of_another_folder_score(
    tiny_model: TinyModel, support_route: dict[str, Any], tmp_path: Path
) -> None:
    libraries = tmp_path / "lib"
    shutil.copytree(own_libraries(), libraries)
    with AdapterProcess(
        BALLOT_THREADS="1",
        BALLOT_LLAMA_LIB_DIR=str(libraries),
        BALLOT_GGUF_PATH=str(tiny_model.path),
    ) as adapter:
        adapter.wait_ready()
        maps = Path(f"/proc/{adapter.process.pid}/maps").read_text()
        with adapter.client() as client:
            answer = client.post("/invocations", json=support_route)
        assert adapter.terminate() == 0
    assert f"{libraries}/libllama.so" in maps
    assert str(own_libraries()) not in maps
    assert answer.status_code == 200
    assert sum(answer.json()["result"]["probabilities"]) == pytest.approx(1.0)


def test_a_model_one_level_down_starts(tiny_model: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "q4").mkdir()
    shutil.copy(tiny_model.path, tmp_path / "q4" / "small.gguf")
    (tmp_path / "model-manifest.json").write_text("{}")
    assert started(BALLOT_MODEL_DIR=str(tmp_path))["file"] == "small.gguf"


@pytest.mark.parametrize("named", [None, SHARDS[0], SHARDS[1], SHARDS[4]])
def test_a_split_model_starts_from_its_first_shard(
    named: str | None, tiny_model: TinyModel
) -> None:
    folder = tiny_model.folder_of_shards
    split = started(
        **{"BALLOT_MODEL_DIR": str(folder)}
        if named is None
        else {"BALLOT_GGUF_PATH": str(folder / named)}
    )
    printed = subprocess.run(
        ["/bin/sh", "-c", "cat split-*-of-00005.gguf | sha256sum"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert split["file"] == SHARDS[0]
    assert split["sha256"] == printed.stdout.split()[0]


def test_a_model_without_a_chat_template_starts(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "base.gguf", chat_template=None)
    assert started(BALLOT_MODEL_DIR=str(tmp_path))["file"] == "base.gguf"
