"""The GPU guard: no GPU layers without a GPU, and none that llama.cpp kept on the CPU."""

from __future__ import annotations

import pytest

from adapter.errors import StartupError
from adapter.llama import Device, check_gpu_devices, check_offload

CPU = Device("CPU", "cpu")
BLAS = Device("BLAS", "accelerator")
CUDA = Device("CUDA0", "gpu")
TEGRA = Device("CUDA0", "integrated-gpu")

# What llama.cpp prints while it loads a model of 28 layers and an output layer.
ALL_OFFLOADED = [
    "load_tensors: offloading output layer to GPU",
    "load_tensors: offloading 27 repeating layers to GPU",
    "load_tensors: offloaded 29/29 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size =   122.51 MiB",
    "load_tensors:        CUDA0 model buffer size =   934.69 MiB",
]
SOME_OFFLOADED = [
    "load_tensors: offloading 12 repeating layers to GPU",
    "load_tensors: offloaded 12/29 layers to GPU",
    "load_tensors:   CPU_Mapped model buffer size =   634.20 MiB",
]
NONE_OFFLOADED = ["load_tensors: offloaded 0/29 layers to GPU"]


@pytest.mark.parametrize(
    ("devices", "gpu_layers"),
    [
        ((CPU,), 0),
        ((CUDA, CPU), 0),
        ((CUDA, CPU), -1),
        ((CUDA, BLAS, CPU), 12),
        ((TEGRA, CPU), -1),
    ],
)
def test_devices_that_will_do(devices: tuple[Device, ...], gpu_layers: int) -> None:
    check_gpu_devices(devices, gpu_layers)


@pytest.mark.parametrize("gpu_layers", [-1, 1, 99])
def test_gpu_layers_without_a_gpu_are_refused(gpu_layers: int) -> None:
    with pytest.raises(StartupError) as refusal:
        check_gpu_devices((BLAS, CPU), gpu_layers)
    assert str(refusal.value) == (
        f"BALLOT_GPU_LAYERS is {gpu_layers} but llama.cpp sees no GPU (devices: BLAS, CPU); set it "
        "to 0, or run the CUDA image on a GPU instance"
    )


@pytest.mark.parametrize(
    ("lines", "gpu_layers"),
    [
        (ALL_OFFLOADED, -1),
        (ALL_OFFLOADED, 29),
        (ALL_OFFLOADED, 99),
        (SOME_OFFLOADED, 12),
        (NONE_OFFLOADED, 0),
        ([], 0),
        # The last load counts.
        ([*NONE_OFFLOADED, *ALL_OFFLOADED], -1),
    ],
)
def test_offloads_that_are_as_asked(lines: list[str], gpu_layers: int) -> None:
    check_offload(lines, gpu_layers)


@pytest.mark.parametrize(
    ("lines", "gpu_layers", "message"),
    [
        (
            SOME_OFFLOADED,
            -1,
            "llama.cpp offloaded 12 of 29 layers, not the 29 that BALLOT_GPU_LAYERS asks for",
        ),
        (
            SOME_OFFLOADED,
            13,
            "llama.cpp offloaded 12 of 29 layers, not the 13 that BALLOT_GPU_LAYERS asks for",
        ),
        (
            SOME_OFFLOADED,
            99,
            "llama.cpp offloaded 12 of 29 layers, not the 29 that BALLOT_GPU_LAYERS asks for",
        ),
        (
            [*ALL_OFFLOADED, *NONE_OFFLOADED],
            1,
            "llama.cpp offloaded 0 of 29 layers, not the 1 that BALLOT_GPU_LAYERS asks for",
        ),
        (
            ["load_tensors:   CPU_Mapped model buffer size =   634.20 MiB"],
            -1,
            "llama.cpp does not say how many layers it offloaded to the GPU",
        ),
        ([], 1, "llama.cpp does not say how many layers it offloaded to the GPU"),
    ],
)
def test_offloads_that_fall_short(lines: list[str], gpu_layers: int, message: str) -> None:
    with pytest.raises(StartupError) as refusal:
        check_offload(lines, gpu_layers)
    assert str(refusal.value) == message
