"""Runs `ballot` as its users do, in a pipe and in a terminal, against servers that are scripted."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.adapter_process import PATIENCE, ROOT

COMMAND = (sys.executable, "-m", "ballot")
MODEL = {
    "file": "Qwen_Qwen3.5-4B-Q4_K_M.gguf",
    "sha256": "13c16f426047e2de38cd075bdade4a7bcbc8c774384876f677740cda65f8a983",
    "architecture": "qwen35",
    "quantization": "Q4_K_M",
    "tensor_type": "q4_K",
    "context_tokens": 4096,
    "threads": 8,
    "gpu_layers": 0,
    "backends": ["CPU"],
    "llama_cpp": "b10964",
}


@dataclass(frozen=True)
class Scripted:
    """One answer of a scripted server."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, status: int = 200, **headers: str) -> Scripted:
        """Return an answer in JSON; `_` in a header's name stands for `-`."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return cls(
            status, json.dumps(value).encode(), {"content-type": "application/json", **named}
        )


@dataclass(frozen=True)
class Received:
    """One request that a scripted server got."""

    path: str
    headers: Mapping[str, str]
    body: bytes


# The request is taken, and never answered.
SILENCE = Scripted(0)


class ScriptedServer:
    """Answers on the loopback what it was told: the last of the answers again and again.

    `paths` have answers of their own.
    """

    def __init__(self, *answers: Scripted, **paths: Scripted) -> None:
        self.received: list[Received] = []
        self._answers, self._paths = list(answers), paths
        self._asked, self._closing = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: Received) -> Scripted:
        """Take in a request and return what it gets."""
        self.received.append(request)
        self._asked.set()
        if own := self._paths.get(request.path.strip("/")):
            return own
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def wait_for_request(self) -> None:
        """Return once a request has come."""
        assert self._asked.wait(PATIENCE)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _respond(self) -> None:
                length = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Received(self.path, headers, self.rfile.read(length))
                scripted = script.answer(request)
                if scripted is SILENCE:
                    script._closing.wait()
                    self.close_connection = True
                    return
                self.send_response(scripted.status)
                for name, value in scripted.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(scripted.body)))
                self.end_headers()
                self.wfile.write(scripted.body)

            do_GET = do_POST = _respond  # noqa: N815 - the names are the base class's

        return Handler


def result(
    id: str, probabilities: Mapping[str, float], *, mass: float = 0.982, **more: Any
) -> dict[str, Any]:
    """Return a result as /openapi.json has it, of options with these probabilities."""
    count = len(probabilities)
    return {
        "id": id,
        "option_ids": list(probabilities),
        "probabilities": list(probabilities.values()),
        "option_logits": [float(-index) for index in range(count)],
        "answer_token_ids": [32 + index for index in range(count)],
        "input_tokens": 143,
        "cached_tokens": 71,
        "allowed_token_mass": mass,
        "prompt_sha256": "0" * 64,
        "prompt_version": "direct-options-v1",
        "calibration": None,
        "model": MODEL,
        "readout": "quantized last-position logits",
        "timing": {"queue_seconds": 0.002, "forward_seconds": 0.412, "total_seconds": 0.415},
        **more,
    }


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without what would change how `ballot` writes or asks."""
    unwanted = ("AWS_", "BALLOT_")
    names = {"COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "PYTHONIOENCODING", "TERM"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(unwanted) and name not in names
    }
    defaults = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": str(ROOT / "client"),
        "PYTHONWARNINGS": "error",
        "TERM": "xterm-256color",
    }
    return {**kept, **defaults, **variables}


def aws_environment(url: str) -> dict[str, str]:
    """Return variables by which boto3 takes a server for all of AWS."""
    return {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "eu-west-1",
    }


def ballot(
    *arguments: str, stdin: str | bytes = b"", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command with its outputs in pipes."""
    ended = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        env=clean_environment(**variables),
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return subprocess.CompletedProcess(
        ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
    )


def ballot_in_terminal(
    *arguments: str, columns: int = 80, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command with its outputs in one terminal; line ends are as the program wrote them."""
    terminal, end = pty.openpty()
    try:
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=clean_environment(**variables),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=end,
        )
    finally:
        os.close(end)
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        written = b"".join(iter(lambda: _read(screen.fileno()), b""))
    status = process.wait(timeout=PATIENCE)
    shown = written.decode().replace("\r\n", "\n")
    return subprocess.CompletedProcess(process.args, status, shown, "")


def _read(terminal: int) -> bytes:
    """Return what was written; nothing once the other end is closed, which Linux says by EIO."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""
