"""llama-server as the peer: chat with one token to generate, log-probabilities, its prompt cache.

It is asked the same messages, with its prompt cache at its defaults and one slot, since the
adapter too scores one decision at a time.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

from adapter.decision import Decision
from adapter.prompt import SYSTEM_TEXT, PromptTemplate, write_prompt
from bench.http_client import Connection, answers
from bench.rows import BenchError

# As many as an OpenAI client may ask for: the letters of a decision are among them or low.
TOP_LOGPROBS = 20
# The adapter's layout for models without a template, so that both read the same tokens.
PLAIN_LAYOUT = (
    "{{ messages[0]['content'] }}{{ '\\n\\n' }}{{ messages[1]['content'] }}{{ '\\n\\nAnswer:\\n' }}"
)
_START_SECONDS = 120
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NO_TEMPLATE = PromptTemplate("", "")


@dataclass(frozen=True)
class PeerAnswer:
    """Log-probabilities of the letters that came back, and the seconds from outside.

    `decoded_tokens` are those of the prompt's that its cache did not hold.
    """

    seconds: float
    logprobs: dict[str, float]
    prompt_tokens: int
    decoded_tokens: int

    @property
    def tokens(self) -> str:
        """What the tables say about the tokens."""
        return f"llama-server: {self.decoded_tokens} of {self.prompt_tokens}"


class PeerSide:
    """A running llama-server and a connection to it."""

    def __init__(
        self,
        binary: Path,
        gguf: Path,
        *,
        threads: int,
        gpu_layers: int,
        context_tokens: int,
        has_chat_template: bool,
    ) -> None:
        port = _free_port()
        command: list[str | Path] = [binary, "--model", gguf, "--port", str(port)]
        command += ["--ctx-size", str(context_tokens), "--parallel", "1"]
        command += ["--threads", str(threads), "--n-gpu-layers", str(gpu_layers)]
        with ExitStack() as stack:
            if not has_chat_template:
                template = stack.enter_context(NamedTemporaryFile("w", suffix=".jinja"))
                template.write(PLAIN_LAYOUT)
                template.flush()
                command += ["--chat-template-file", template.name]
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(self._stop)
            self._port = port
            self.last: PeerAnswer | None = None
            self._wait_ready()
            self._connection = stack.enter_context(self.connect())
            self._open = stack.pop_all()

    def _wait_ready(self) -> None:
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                raise BenchError(f"llama-server ended with status {self._process.returncode}")
            if answers(self._port, "/health"):
                return
            time.sleep(0.05)
        raise BenchError(f"llama-server was not ready within {_START_SECONDS} seconds")

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def connect(self) -> Connection:
        """Return another connection, for another caller."""
        return Connection(self._port)

    def ask(self, decision: Decision, *, connection: Connection | None = None) -> PeerAnswer:
        """Ask for one token and the log-probabilities of the likeliest.

        Raises:
            BenchError: llama-server refused.
        """
        reply = (connection or self._connection).post("/v1/chat/completions", _chat(decision))
        if reply.status != 200:
            raise BenchError(f"llama-server answered {reply.status}: {reply.body.decode()}")
        answer = json.loads(reply.body)
        self.last = PeerAnswer(
            seconds=reply.seconds,
            logprobs=_letters(answer["choices"][0]["logprobs"]["content"][0], decision),
            prompt_tokens=answer["usage"]["prompt_tokens"],
            decoded_tokens=answer["timings"]["prompt_n"],
        )
        return self.last

    def ask_each(self, decisions: Sequence[Decision]) -> float:
        """Return the seconds of asking decisions one after the other."""
        return sum(self.ask(decision).seconds for decision in decisions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()


def _chat(decision: Decision) -> bytes:
    content = write_prompt(decision, _NO_TEMPLATE, tuple(_LETTERS)).content
    request = {
        "messages": [
            {"role": "system", "content": SYSTEM_TEXT},
            {"role": "user", "content": content},
        ],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return json.dumps(request).encode()


def _letters(token: Mapping[str, Any], decision: Decision) -> dict[str, float]:
    wanted = _LETTERS[: len(decision.options)]
    return {
        entry["token"]: entry["logprob"]
        for entry in token["top_logprobs"]
        if len(entry["token"]) == 1 and entry["token"] in wanted
    }


def version(binary: Path) -> str:
    """Return what llama-server says its version is."""
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in (done.stderr + done.stdout).splitlines() if "version" in line]
    return lines[0].strip() if lines else "unknown"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
