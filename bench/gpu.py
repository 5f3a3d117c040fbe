"""`make bench-gpu`: the rows of `make bench` with the whole model on an NVIDIA GPU.

Compiles llama.cpp with CUDA out of the source distribution that setup has in its cache, installs
the bindings apart, has the adapter prove the offload, and runs the bench with them:

    make bench-gpu [MODEL=...] [ROWS=...] [REPEAT=...]

Needs an NVIDIA GPU with its driver (`nvidia-smi`), the CUDA toolkit (`nvcc`), a C++ compiler and
CMake. Set CUDAARCHS to compile for other GPUs than the one that is here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from scripts._cache import Cache, fetch
from scripts._console import BuildProgress, Console, SetupError, duration
from scripts._pins import BUILD_BACKEND, LLAMA
from scripts._pip import Pip
from scripts.setup import host_wheel_key, missing_tools

ROOT = Path(__file__).resolve().parent.parent
ALL_LAYERS = "-1"


def main(arguments: Sequence[str]) -> int:
    """Build what is missing and run the bench on the GPU; return its exit status."""
    try:
        gpus = list_gpus()
        bindings = _bindings(Cache.from_environ(os.environ), _architectures(os.environ))
    except (SetupError, OSError) as error:
        print(f"bench-gpu: {error}", file=sys.stderr)
        return 1
    print("\n".join(gpus))
    path = os.pathsep.join((str(bindings), str(ROOT / "container")))
    command = [sys.executable, "-m", "bench", "--gpu-layers", ALL_LAYERS, *arguments]
    # The adapter refuses to start unless llama.cpp says that it has offloaded every layer.
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False
    ).returncode


def list_gpus(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return the GPUs of this machine, a line each.

    Raises:
        SetupError: there is none, or CUDA code cannot be compiled here.
    """
    if which("nvidia-smi") is None:
        raise SetupError("this machine has no NVIDIA GPU: there is no nvidia-smi")
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    gpus = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    if done.returncode or not gpus:
        raise SetupError("this machine has no NVIDIA GPU: nvidia-smi -L lists none")
    if missing := [*missing_tools(which), *([] if which("nvcc") else ["nvcc"])]:
        raise SetupError(f"llama.cpp must be compiled, but this machine lacks {', '.join(missing)}")
    return gpus


def _architectures(environ: Mapping[str, str]) -> str:
    return environ.get("CUDAARCHS", "native")


def _bindings(cache: Cache, architectures: str) -> Path:
    """Return the folder with llama-cpp-python over CUDA, made if need be."""
    cuda = replace(
        LLAMA,
        cmake_args=(
            *LLAMA.cmake_args,
            "-DGGML_CUDA=ON",
            f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
        ),
        build_time="many minutes",
    )
    target = cache.folder("bindings") / host_wheel_key(cuda)
    if target.is_dir():
        return target
    console = Console.for_stream(sys.stdout, environ=os.environ)
    pip = Pip(python=ROOT / ".venv/bin/python", cache=cache, environ=os.environ)
    backend = cache.folder("backend") / BUILD_BACKEND[0]
    started = time.monotonic()
    with cache.locked(on_wait=partial(console.working, "waiting for another setup")):
        source = fetch(LLAMA.source, cache=cache, download=partial(pip.download, backend=backend))
        console.working(f"compiling {source.name} with CUDA ({cuda.build_time}, once per machine)")
        with cache.staging() as folder:
            pip.build_wheel(
                source,
                into=folder / "wheel",
                backend=backend,
                cmake_args=cuda.cmake_args,
                on_line=BuildProgress(console, what="compiling llama.cpp with CUDA"),
            )
            wheel = next((folder / "wheel").glob("*.whl"))
            whole = folder / target.name
            pip.install("--no-deps", "--target", whole, wheel, log="install-cuda")
            whole.rename(target)
    console.done("llama.cpp with CUDA", f"built in {duration(time.monotonic() - started)}")
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
