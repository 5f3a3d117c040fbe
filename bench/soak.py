"""The soak: thousands of requests over hundreds of states, and memory that must not grow."""

from __future__ import annotations

import random

from bench.decisions import QUESTIONS, ask
from bench.memory import resident_bytes
from bench.rows import Curve, Outcome, Row, at_most
from bench.scenarios import Plan, Sides
from bench.stats import exactly, spread

STATES = 500
REQUESTS_PER_STATE = 10
# Long enough to be cached.
STATE_TOKENS = 80
_MEBIBYTE = 1 << 20


def soak(sides: Sides, plan: Plan) -> Outcome:
    """Ask about states in random order; compare memory at the end with memory after a fifth."""
    states = [
        sides.writer.state(STATE_TOKENS, seed=f"soak/{at}") for at in range(plan.times(STATES))
    ]
    pid = sides.adapter.process.process.pid
    source = random.Random("soak")
    total = len(states) * REQUESTS_PER_STATE
    line: list[tuple[float, float]] = []
    for number in range(1, total + 1):
        sides.adapter.ask(ask(source.choice(states), source.randrange(QUESTIONS)))
        if number % max(1, total // 100) == 0:
            line.append((number, resident_bytes(pid) / _MEBIBYTE))
    row = Row(
        name="soak",
        what=f"resident memory after {total} requests over {len(states)} states",
        against="after a fifth of them",
        value=exactly(growth([size for _, size in line])),
        target=at_most(1.02),
        note=f"{line[-1][1]:.0f} MiB at the end",
    )
    curve = Curve("Soak: resident memory", "requests", "MiB", {"adapter": line})
    return Outcome([row], [curve])


def growth(sizes: list[float]) -> float:
    """Return the size at the end over the size after a fifth, each the median of a twentieth."""
    width = max(1, len(sizes) // 20)
    fifth = len(sizes) // 5
    return spread(sizes[-width:]).median / spread(sizes[fifth : fifth + width]).median
