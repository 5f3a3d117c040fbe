"""Runs pip and what it starts: output to a log, nothing left running when setup is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from scripts._cache import Cache
from scripts._console import SetupError
from scripts._pins import Pin

_TAIL_LINES = 25
_STOP_SECONDS = 10


class CommandError(SetupError):
    """A command failed; the text ends with its last lines and names the log with all of them."""


def run_logged(
    command: Sequence[str | Path],
    *,
    log: Path,
    environ: Mapping[str, str],
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run a command with its output in `log`, and each line given to `on_line` as it comes.

    The command gets its own process group: a compiler started four processes down must end
    with us, and a terminal's Ctrl-C must reach it through us alone.

    Raises:
        CommandError: it ended with another status than 0.
    """
    with (
        log.open("w", encoding="utf-8", buffering=1) as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environ,
            process_group=0,
        ) as process,
    ):
        assert process.stdout is not None, "this is a bug: the output was asked for as a pipe"
        try:
            for line in process.stdout:
                file.write(line)
                on_line(line)
        except BaseException:
            _stop_group(process)
            raise
    if process.returncode:
        raise CommandError(_failure(command, status=process.returncode, log=log))


def _stop_group(process: subprocess.Popen[str]) -> None:
    # SIGINT first: it is the signal on which pip and Ninja remove their temporary files.
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure(command: Sequence[str | Path], *, status: int, log: Path) -> str:
    lines = log.read_text(encoding="utf-8").splitlines()
    return "\n".join(
        (
            f"command failed with status {status}: {' '.join(map(str, command))}",
            *(f"  | {line[:400]}" for line in lines[-_TAIL_LINES:]),
            f"full log: {log}",
        )
    )


@dataclass(frozen=True)
class Pip:
    """The pip of one Python environment."""

    python: Path
    cache: Cache
    environ: Mapping[str, str]

    def download(self, pin: Pin, folder: Path, *, backend: Path | None = None) -> None:
        """Put a pinned file into a folder.

        pip checks the hash too, because it runs the code of a source distribution (through
        `backend`) merely to download it, which is before anybody else could check.

        Raises:
            CommandError: not found, not reachable or not the pinned file.
        """
        requirement = folder / "pinned.txt"
        requirement.write_text(f"{pin.project}=={pin.version} --hash=sha256:{pin.sha256}\n")
        kind = "--only-binary" if pin.filename.endswith(".whl") else "--no-binary"
        self._run(
            ["download", "--no-deps", "--require-hashes", kind, ":all:", "--no-build-isolation"],
            ["--dest", folder, "--requirement", requirement],
            log=f"download-{pin.project}-{pin.version}",
            backend=backend,
        )

    def build_wheel(
        self,
        source: Path,
        *,
        into: Path,
        backend: Path,
        cmake_args: tuple[str, ...],
        on_line: Callable[[str], None],
    ) -> None:
        """Compile a source distribution into a wheel.

        pip's own wheel cache is off: it knows neither the CPU nor the CMake arguments.

        Raises:
            CommandError: the compilation failed.
        """
        self._run(
            ["wheel", "--verbose", "--no-deps", "--no-cache-dir", "--no-build-isolation"],
            ["--wheel-dir", into, source],
            log=f"build-{source.name.removesuffix('.tar.gz')}",
            environ={
                # CMake's Makefile generator compiles one file at a time unless it is told.
                "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
                "CMAKE_ARGS": " ".join(cmake_args),
            },
            backend=backend,
            on_line=on_line,
        )

    def install(self, *arguments: str | Path, log: str) -> None:
        """Install wheels, never building one.

        Raises:
            CommandError: a requirement cannot be met.
        """
        self._run(["install", "--only-binary", ":all:"], arguments, log=log)

    def check(self) -> None:
        """Check that the environment's requirements agree.

        Raises:
            CommandError: they do not.
        """
        self._run(["check"], [], log="check")

    def _run(
        self,
        action: Sequence[str],
        arguments: Sequence[str | Path],
        *,
        log: str,
        backend: Path | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        quiet = ("--disable-pip-version-check", "--no-input")
        # Set even when empty: packages on the user's own path are none of this environment's.
        path = {"PYTHONPATH": str(backend or "")}
        run_logged(
            [self.python, "-m", "pip", *action, *quiet, *arguments],
            log=self.cache.folder("logs") / f"{log}.log",
            environ={**self.environ, **environ, **path},
            on_line=on_line,
        )
