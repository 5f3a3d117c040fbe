"""The adapter as its callers meet it: a process of its own, asked over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from adapter.decision import Decision
from bench.decisions import as_json
from bench.http_client import Connection, answers
from bench.rows import BenchError
from tests.adapter_process import AdapterProcess


@dataclass(frozen=True)
class Answer:
    """The results of one request, and the seconds that it took from outside."""

    seconds: float
    results: list[dict[str, Any]]

    @property
    def decoded_tokens(self) -> int:
        """How many tokens had to be computed."""
        return sum(result["input_tokens"] - result["cached_tokens"] for result in self.results)

    @property
    def tokens(self) -> str:
        """What the tables say about the tokens."""
        total = sum(result["input_tokens"] for result in self.results)
        return f"{self.decoded_tokens} of {total} tokens decoded"


class AdapterSide:
    """A running adapter with the settings of a default deployment, and a connection to it."""

    def __init__(self, gguf: Path, *, gpu_layers: int = 0) -> None:
        with ExitStack() as stack:
            self.process = stack.enter_context(
                AdapterProcess(
                    BALLOT_GGUF_PATH=str(gguf),
                    BALLOT_GPU_LAYERS=str(gpu_layers),
                    BALLOT_THREADS="auto",
                )
            )
            self.process.wait_for_event("model_loaded")
            while not answers(self.process.port, "/ping"):
                time.sleep(0.001)
            self._connection = stack.enter_context(self.connect())
            self._open = stack.pop_all()

    def connect(self) -> Connection:
        """Return another connection, for another caller."""
        return Connection(self.process.port)

    def ask(
        self,
        *decisions: Decision,
        layout: str | None = None,
        connection: Connection | None = None,
    ) -> Answer:
        """Score decisions in one request.

        Raises:
            BenchError: the adapter refused.
        """
        body = encode(decisions, layout=layout)
        reply = (connection or self._connection).post("/invocations", body)
        if reply.status != 200:
            raise BenchError(f"the adapter answered {reply.status}: {reply.body.decode()}")
        return Answer(reply.seconds, json.loads(reply.body)["results"])

    def identity(self) -> dict[str, Any]:
        """Return what the adapter says about its model and runtime."""
        return next(one for one in self._records() if one["event"] == "model_loaded")

    def has_chat_template(self) -> bool:
        """Tell whether the model came with a chat template, and not with the plain layout."""
        return not any(one["event"] == "no_chat_template" for one in self._records())

    def _records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.process.lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()


def encode(decisions: Sequence[Decision], *, layout: str | None) -> bytes:
    """Return a request's body."""
    request: dict[str, Any] = {"decisions": [as_json(decision) for decision in decisions]}
    if layout is not None:
        request["scoring"] = {"layout": layout}
    return json.dumps(request).encode()
