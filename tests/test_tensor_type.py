"""The dominant tensor type: read out of llama.cpp's own words, and told where it costs speed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from adapter.llama import Library, Model, dominant_type, has_fast_kernel
from tests.adapter_process import DEMO_MODEL, GEMMA_MODEL, AdapterProcess
from tests.gguf_models import write_hybrid_model, write_tiny_model

AVX = "CPU : AVX = 1 | AVX2 = 1 | LLAMAFILE = 1 | REPACK = 1 | "
NEON = "CPU : NEON = 1 | DOTPROD = 1 | LLAMAFILE = 1 | REPACK = 1 | "


def lines(**counts: int) -> list[str]:
    told = [
        f"llama_model_loader: - type {name:>4}: {count:>4} tensors"
        for name, count in counts.items()
    ]
    return ["llama_model_loader: - kv   1: general.type str = model", *told, "print_info: x"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"f32": 61, "q4_1": 210, "q8_0": 1}, "q4_1"),
        ({"f32": 300, "q4_K": 168, "q6_K": 29}, "q4_K"),
        ({"f32": 100, "f16": 60}, "f16"),
        ({"f32": 20}, "f32"),
        ({}, "unknown"),
    ],
)
def test_the_type_of_most_matrices_counts(counts: dict[str, int], expected: str) -> None:
    assert dominant_type(lines(**counts)) == expected


@pytest.mark.parametrize(
    ("tensor_type", "repacked", "system_info", "expected"),
    [
        ("q4_1", set(), AVX, False),
        ("q4_0", {"q4_0"}, AVX, True),
        ("q4_K", {"q4_K"}, AVX, True),
        ("q4_K", set(), AVX, False),
        ("q5_0", {"q4_K"}, AVX, True),
        ("q5_0", set(), NEON, False),
        ("q8_0", set(), NEON, True),
        ("q8_0", set(), AVX.replace("LLAMAFILE = 1", "LLAMAFILE = 0"), False),
        ("unknown", set(), "", True),
    ],
)
def test_repacked_and_tiled_types_are_fast(
    tensor_type: str, repacked: set[str], system_info: str, expected: bool
) -> None:
    found = has_fast_kernel(tensor_type, repacked=repacked, system_info=system_info)
    assert found is expected


def test_it_is_read_of_models_as_their_files_have_it(library: Library, tmp_path: Path) -> None:
    """Counted with llama.cpp's own reader, `gguf`, beforehand."""
    write_tiny_model(tmp_path / "tiny.gguf", chat_template=None)
    write_hybrid_model(tmp_path / "hybrid.gguf")
    found = {}
    for path in (DEMO_MODEL, GEMMA_MODEL, tmp_path / "tiny.gguf", tmp_path / "hybrid.gguf"):
        model = Model(library, path, gpu_layers=0)
        found[path.stem] = model.tensor_type
        if path == GEMMA_MODEL and "AVX2 = 1" in str(
            library.api.llama_print_system_info().decode()
        ):
            # Of this K-quant few tensors fit its blocks; those are repacked with AVX2.
            assert library.repacked == {"q4_K"}
        model.close()
    assert found == {
        "SmolLM2-135M-Instruct.Q4_1": "q4_1",
        "gemma-3-270m-q4_k_m": "q5_0",
        "tiny": "f32",
        "hybrid": "q8_0",
    }


def test_a_slow_type_is_told_at_start_up_and_in_the_metrics() -> None:
    with AdapterProcess() as adapter:
        warning = adapter.wait_for_event("no_fast_kernel")
        loaded = adapter.wait_for_event("model_loaded")
        while httpx.get(f"{adapter.url}/ping").status_code != 200:
            pass
        metrics = httpx.get(f"{adapter.url}/metrics").text
    assert (warning["level"], warning["tensor_type"]) == ("warning", "q4_1")
    assert loaded["tensor_type"] == "q4_1"
    assert 'tensor_type="q4_1"' in next(
        line for line in metrics.splitlines() if line.startswith("ballot_model_info")
    )


def test_a_fast_type_is_not_warned_of(tmp_path: Path) -> None:
    write_hybrid_model(tmp_path / "hybrid.gguf")
    with AdapterProcess(
        BALLOT_GGUF_PATH=str(tmp_path / "hybrid.gguf"), BALLOT_THREADS="1"
    ) as adapter:
        assert adapter.wait_for_event("model_loaded")["tensor_type"] == "q8_0"
        assert not any("no_fast_kernel" in line for line in adapter.lines)
