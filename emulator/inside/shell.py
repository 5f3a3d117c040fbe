"""The shell of an emulated build: one for all its commands, as in CodeBuild."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from emulator.processes import kill

# Runs one file after the other in this very shell, so that variables and the working folder
# last. Names of files come in on descriptor 3, exit statuses go out on descriptor 4; the commands
# get neither, or a process left in the background would keep them open.
_DRIVER = """
trap 'env -0 >"$EMULATOR_SHELL/environment"; pwd >"$EMULATOR_SHELL/folder"' EXIT
while IFS= read -r _ballot_file <&3; do . "$_ballot_file" 3<&- 4>&-; echo $? >&4; done
"""


class Shell:
    """Runs a build's commands; `stop` ends it, and all that it has started, from another thread."""

    def __init__(
        self,
        *,
        folder: Path,
        scratch: Path,
        environment: dict[str, str],
        marker: str,
        on_line: Callable[[str], None],
        program: str,
    ) -> None:
        """Prepare a shell; `marker` is the variable that tells what the build has started."""
        self._scratch, self._on_line, self._program = scratch, on_line, program
        self._environment = {**environment, "EMULATOR_SHELL": str(scratch)}
        self._folder, self._marker = folder, marker
        self._count = 0
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        scratch.mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        """The exported variables, as the last shell that ended left them."""
        return dict(self._environment)

    def run(self, command: str) -> int:
        """Run one command and return its exit status; -1 when the build was stopped."""
        if self._process is None:
            self._start()
        self._count += 1
        file = self._scratch / f"command-{self._count}"
        file.write_text(f"{command}\n")
        try:
            os.write(self._input, f"{file}\n".encode())
            status = self._statuses.readline()
        except BrokenPipeError:
            status = b""
        if status:
            return int(status)
        return self._ended()

    def close(self) -> None:
        """Let the shell end, and take over its variables."""
        if self._process is not None:
            self._ended()

    def stop(self) -> None:
        """Kill the shell and all that it started; no further command runs."""
        self._stopped.set()
        with self._lock:
            if self._process is not None:
                kill(self._marker)

    def _start(self) -> None:
        # `exit` in a command ends the shell; the next command gets another one that goes on.
        command_read, self._input = os.pipe()
        status_read, status_write = os.pipe()
        with self._lock:
            # bash moves the pipes to descriptors that every shell can name.
            moved = f"3<&{command_read} 4>&{status_write} {command_read}<&- {status_write}>&-"
            self._process = subprocess.Popen(
                ["bash", "-c", f'exec "$0" -c "$1" "$0" {moved}', self._program, _DRIVER],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=(command_read, status_write),
            )
            if self._stopped.is_set():
                kill(self._marker)
        os.close(command_read)
        os.close(status_write)
        self._statuses = os.fdopen(status_read, "rb", buffering=0)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._on_line(line.decode(errors="replace").rstrip("\r\n"))

    def _ended(self) -> int:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        os.close(self._input)
        status = process.wait()
        self._statuses.close()
        # What a command left in the background may not outlive the build, nor hold the output.
        kill(self._marker)
        self._reader.join()
        process.stdout.close()
        with self._lock:
            self._process = None
        if self._stopped.is_set():
            return -1
        dump = self._scratch / "environment"
        if dump.is_file():
            pairs = (entry.partition("=") for entry in dump.read_text().split("\0") if entry)
            self._environment = {name: value for name, _, value in pairs}
            self._folder = Path((self._scratch / "folder").read_text().rstrip("\n"))
        return status
