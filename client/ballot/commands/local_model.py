"""Serves a GGUF file on this machine for the time of a command, with the adapter of a checkout."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx

import ballot
from ballot.commands.explain import Problem, Unusable

_CONTAINER = Path(ballot.__file__).resolve().parents[2] / "container"
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG, of Linux's <sys/prctl.h>
_PING_SECONDS = 5.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05


class NotServed(Problem):
    """The adapter does not come up with the model."""


@contextmanager
def serve(model: Path, container: Path = _CONTAINER) -> Iterator[str]:
    """Give the URL of an adapter that has loaded `model`, and stop it at the end.

    Its settings are the `BALLOT_*` variables of the environment, but for file and address.

    Raises:
        Unusable: there is no such file, or no adapter in this installation.
        NotServed: the adapter ended, with the last thing that it said.
    """
    if not (container / "adapter" / "__main__.py").is_file():
        raise Unusable(
            "--model needs Ballot's adapter, which this installation is without",
            advice="run ballot from a checkout (after `make setup`), or start the adapter "
            "elsewhere and give --url",
        )
    if not model.is_file():
        raise Unusable(f"there is no file {model}", advice="give --model the path of a GGUF file")
    with _start(model.resolve(), container) as process:
        try:
            yield _wait_ready(process)
        finally:
            _stop(process)


def _start(model: Path, container: Path) -> subprocess.Popen[str]:
    served = {
        "BALLOT_GGUF_PATH": str(model),
        "BALLOT_HOST": "127.0.0.1",
        "BALLOT_PORT": "0",
        "BALLOT_LOG_LEVEL": "info",  # which says the port, and when the model is loaded
    }
    return subprocess.Popen(
        [sys.executable, "-m", "adapter", "serve"],
        cwd=container,
        env={**os.environ, **served},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for the command, which then stops the adapter
        preexec_fn=_end_with_parent(),
    )


def _end_with_parent() -> Callable[[], None] | None:
    """Return what lets the system end the adapter when this process is killed, on Linux."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_END_WITH_PARENT, signal.SIGTERM)


def _wait_ready(process: subprocess.Popen[str]) -> str:
    """Return the adapter's URL once it takes requests."""
    assert process.stdout is not None
    url, said = "", "it said nothing"
    for line in process.stdout:
        event = _event(line)
        said = str(event.get("message") or line.strip() or said)
        if event.get("event") == "listening":
            url = f"http://127.0.0.1:{event['port']}"
        if event.get("event") == "model_loaded":
            break
    else:
        raise NotServed(
            f"the adapter did not come up: {said}",
            advice="mend that; the settings are those of the BALLOT_* variables",
        )
    threading.Thread(target=_read_on, args=(process.stdout,), daemon=True).start()
    while httpx.get(f"{url}/ping", timeout=_PING_SECONDS).status_code != httpx.codes.OK:
        time.sleep(_POLL_SECONDS)
    return url


def _event(line: str) -> dict[str, Any]:
    """Return a line of the log; what is none, such as a traceback's, is no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _read_on(output: IO[str]) -> None:
    """Keep the pipe from filling up, which would stop the adapter, until it is closed."""
    with suppress(ValueError):
        for _ in output:
            pass


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:  # it finishes a decision that nobody waits for any more
        process.kill()
        process.wait()
