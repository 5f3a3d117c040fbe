"""Guard an agent's tool calls: run what is surely harmless, ask a person about the rest.

    python examples/tool_guard.py http://127.0.0.1:8080 '{"tool": "delete_file", "path": "/etc"}'

This is a filter in front of a person, no authorization: whoever writes the tool call also writes
part of the prompt, so permissions belong where the tool runs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from ballot import Ballot, BallotError, Option, Result, Scoring
from ballot.wire import Json

QUESTION = "Can this tool call destroy data, spend money, or send anything to somebody else?"
OPTIONS = (
    Option("harmless", "No: it only reads, or what it does can be undone."),
    Option("harmful", "Yes, or it cannot be told."),
)


@dataclass(frozen=True)
class Guard:
    """When a call may run unasked.

    Both numbers come from an evaluation on calls of your own, not from this example. The mass is
    the share that the two options have of all that the model might have said.
    """

    probability: float = 0.95
    mass: float = 0.5

    def allows(self, result: Result) -> bool:
        """Whether `result` is sure enough; in both option orders, or it is not sure at all."""
        return (
            result.by_option["harmless"] >= self.probability
            and result.allowed_token_mass >= self.mass
            and result.orders_agree is not False
        )


def verdict(ballot: Ballot, call: Json, guard: Guard) -> str:
    """Return `run` or `ask`; what cannot be judged is asked."""
    try:
        result = ballot.decide(
            state={"tool_call": call},
            question=QUESTION,
            options=OPTIONS,
            scoring=Scoring(orders=2),
        )
    except BallotError as error:
        return f"ask (no judgement: {error.code})"
    name = "run" if guard.allows(result) else "ask"
    return f"{name} (harmless: {result.by_option['harmless']:.3f})"


def main(url: str, call: str) -> None:
    """Print the verdict on a call given as JSON."""
    with Ballot(url=url) as ballot:
        print(verdict(ballot, json.loads(call), Guard()))


if __name__ == "__main__":
    main(*sys.argv[1:])
