"""Labelled examples, and a server that decides them: what the tests of `ballot evaluate` share."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.adapter_process import ROOT
from tests.cli_process import Received, Scripted, ScriptedServer, result

SAMPLE = ROOT / "tests" / "data" / "jevbench-sample.jsonl"
PUBLIC_TASKS = ROOT.parent / "shared" / "data" / "jevbench-public-120.jsonl"
COLOURS = {"red": "Like blood.", "green": "Like grass.", "blue": "Like the sky."}


def native_line(id: str, expected: str = "green", **more: Any) -> dict[str, Any]:
    """Return a labelled decision between three colours, as a line of a file has it."""
    options = [{"id": name, "description": text} for name, text in COLOURS.items()]
    decision = {"id": id, "state": f"State of {id}.", "question": "Which?", "options": options}
    return {"decision": decision, "expected": expected, **more}


def write_lines(path: Path, *lines: Any) -> Path:
    """Write a file with a line of JSON for each value, or with a text as it is."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def write_examples(path: Path, count: int) -> Path:
    """Write so many examples, `example-0` and so on."""
    return write_lines(path, *(native_line(f"example-{index}") for index in range(count)))


class Decider(ScriptedServer):
    """Answers every native decision at once, always the same one alike, and knows what it decided.

    `otherwise` says what else a decision gets, if something; it is called in the server's threads.
    """

    def __init__(self, otherwise: Callable[[str], Scripted | None] = lambda id: None) -> None:
        super().__init__(Scripted())
        self.otherwise = otherwise
        self.bodies: list[dict[str, Any]] = []
        self._deciding = threading.Lock()

    @property
    def decided(self) -> list[str]:
        """The ids of the decisions that were asked, in the order in which they came."""
        return [body["decision"]["id"] for body in self.bodies]

    def answer(self, request: Received) -> Scripted:
        """Take in a request and return what it gets."""
        body = json.loads(request.body)
        with self._deciding:
            self.bodies.append(body)
        self._asked.set()
        decision = body["decision"]
        return self.otherwise(decision["id"]) or Scripted.of({"result": decide(decision)})


def decide(decision: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a result in which each option is half as probable as the one before it."""
    names = [option["id"] for option in decision["options"]]
    weights = [2.0**-place for place in range(len(names))]
    shares = {name: weight / sum(weights) for name, weight in zip(names, weights, strict=True)}
    return result(decision["id"], shares, **more)
