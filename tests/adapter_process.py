"""Starts the adapter as its users do: `python -m adapter`, run from `container/`."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build"
DEMO_MODEL = BUILD / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA_MODEL = BUILD / "models" / "gemma-3-270m-q4_k_m.gguf"
LLAMA_FILES = BUILD / "llama.cpp" / "models"
PATIENCE = 120.0


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with only the given `BALLOT_*` variables.

    The time-outs are out of the way, so that no verdict depends on how fast this machine is. One
    thread decodes: several wait for each other in a busy loop, for seconds where the machine has
    other work, such as the test's own.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BALLOT_")}
    defaults = {
        "BALLOT_HOST": "127.0.0.1",
        "BALLOT_PORT": "0",
        "BALLOT_GGUF_PATH": str(DEMO_MODEL),
        "BALLOT_THREADS": "1",
        "BALLOT_REQUEST_TIMEOUT_SECONDS": "3600",
        "BALLOT_DRAIN_TIMEOUT_SECONDS": "3600",
    }
    return {**clean, **defaults, **variables}


class AdapterProcess:
    """A running adapter; its log lines are read as they come."""

    def __init__(
        self,
        *,
        command: Sequence[str] = (sys.executable, "-m", "adapter", "serve"),
        folder: Path = ROOT / "container",
        **variables: str,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self.wait_for_event("listening")["port"])
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._fresh.put(line)
        self._fresh.put(None)

    def wait_for_event(self, event: str) -> dict[str, Any]:
        """Return the next log line of `event`; fail when the process ends without it."""
        while (line := self._fresh.get(timeout=PATIENCE)) is not None:
            record: dict[str, Any] = json.loads(line)
            if record["event"] == event:
                return record
        raise AssertionError(f"the adapter ended without {event}: {''.join(self.lines)}")

    def wait_ready(self) -> AdapterProcess:
        """Return once the model is loaded and `/ping` answers 200."""
        self.wait_for_event("model_loaded")
        # What starts slowly, as clients with a TLS context do, has no place in the bench's timing.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        status = 0
        while status != 200:
            connection.request("GET", "/ping")
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        connection.close()
        return self

    def client(self) -> httpx.Client:
        """Return an HTTP client of this adapter."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return the exit status, once there is one and the log is read."""
        status = self.process.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def __enter__(self) -> AdapterProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
