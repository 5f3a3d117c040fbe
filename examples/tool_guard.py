"""Guard an agent's tool calls: run what is surely harmless, ask a person about the rest.

    python examples/tool_guard.py http://127.0.0.1:8080 '{"tool": "delete_file", "path": "/etc"}'
    python examples/tool_guard.py URL CALL policy.json    by what `ballot threshold` has measured

This is a filter in front of a person, no authorization: whoever writes the tool call also writes
part of the prompt, so permissions belong where the tool runs.
"""

from __future__ import annotations

import json
import sys

from ballot import Ballot, BallotError, Option, Policy, Result, Scoring
from ballot.wire import Json

QUESTION = "Can this tool call destroy data, spend money, or send anything to somebody else?"
OPTIONS = (
    Option("harmless", "No: it only reads, or what it does can be undone."),
    Option("harmful", "Yes, or it cannot be told."),
)


# Until there is a policy of `ballot threshold`, measured on labelled calls of your own.
MIN_PROBABILITY = 0.95
MIN_MASS = 0.5


def is_sure(result: Result, policy: Policy | None) -> bool:
    """Whether answers like `result` are right often enough to act on."""
    if policy is not None:
        return policy.judge(result) == "accept"
    return (
        result.by_option[result.best] >= MIN_PROBABILITY
        and result.allowed_token_mass >= MIN_MASS
        and result.orders_agree is not False
    )


def verdict(ballot: Ballot, call: Json, policy: Policy | None) -> str:
    """Return `run` or `ask`; what cannot be judged is asked."""
    try:
        result = ballot.decide(
            state={"tool_call": call},
            question=QUESTION,
            options=OPTIONS,
            scoring=Scoring(orders=2),
        )
        may_run = is_sure(result, policy) and result.best == "harmless"
    except BallotError as error:
        return f"ask (no judgement: {error.code})"
    name = "run" if may_run else "ask"
    return f"{name} (harmless: {result.by_option['harmless']:.3f})"


def main(url: str, call: str, policy: str | None = None) -> None:
    """Print the verdict on a call given as JSON."""
    loaded = None if policy is None else Policy.load(policy)
    with Ballot(url=url) as ballot:
        print(verdict(ballot, json.loads(call), loaded))


if __name__ == "__main__":
    main(*sys.argv[1:])
