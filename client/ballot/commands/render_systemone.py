"""Draws System One answers: each question with its possible answers as bars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ballot.commands.render import (
    DIM,
    INDENT,
    LOW_MASS_MEANS,
    Bar,
    is_low,
    milliseconds,
    model_line,
    show_bars,
    show_title,
    show_warning,
)
from ballot.commands.screen import printable
from ballot.errors import InvalidAnswer
from ballot.results import ModelIdentity, Timing
from ballot.systemone import Answer, ChoiceAnswer, NoulAnswer, SystemOneAnswer
from ballot.wire import Fields


def show_systemone(console: Console, questions: Mapping[str, Any], answer: SystemOneAnswer) -> None:
    """Print every question with its answer, and what answered them."""
    raw = Fields(answer.raw, "the answer")
    for name, found in answer.answers.items():
        _show_answer(console, name, questions.get(name), found)
        _show_details(console, raw.object("answers").object(name))
        console.print()
    console.print(Text(_cost(answer, raw), style=DIM))
    console.print(Text(_model(answer, raw), style=DIM))


def _show_answer(console: Console, name: str, question: Any, answer: Answer) -> None:
    instructions = question.get("instructions") if isinstance(question, dict) else None
    show_title(console, name, _text(instructions) if instructions is not None else "")
    if isinstance(answer, NoulAnswer):
        yes = answer.noul
        bars = [Bar("yes", yes), Bar("no", 1 - yes)]
        show_bars(console, bars, best=0 if yes >= 0.5 else 1)
        return
    if isinstance(answer, ChoiceAnswer):
        names = list(answer.probabilities)
        bars = [Bar(name, p) for name, p in answer.probabilities.items()]
        best = names.index(answer.choice) if answer.choice in names else None
        show_bars(console, bars, best=best)
        said = f"confidence {answer.confidence:.3f}"
    else:
        bars = [
            Bar(f"{level} {_text(answer.legend.get(level, ''))}".rstrip(), p)
            for level, p in answer.probabilities.items()
        ]
        chances = list(answer.probabilities.values())
        show_bars(console, bars, best=chances.index(max(chances)))
        said = f"score {answer.score:.2f}, confidence {answer.confidence:.3f}"
    console.print(Text(f"{INDENT}{said}"))


def _show_details(console: Console, fields: Fields) -> None:
    """Print what a Ballot endpoint tells beyond the API; other servers need not."""
    mass = fields.values.get("x_allowed_token_mass")
    if not isinstance(mass, (int, float)):
        return
    console.print(Text(f"{INDENT}token mass {mass:.3f}", style=DIM))
    if is_low(mass):
        show_warning(console, f"low token mass: {LOW_MASS_MEANS}")


def _cost(answer: SystemOneAnswer, raw: Fields) -> str:
    told = f"{answer.usage.input_tokens} tokens"
    cached = raw.object("usage").values.get("x_cached_tokens")
    if isinstance(cached, int):
        told += f" ({cached} cached)"
    try:
        timing = Timing.of(raw.object("x_timing"))
    except InvalidAnswer:
        return told
    queued = milliseconds(timing.queue_seconds)
    return f"{told}, {milliseconds(timing.forward_seconds)} ({queued} queued)"


def _model(answer: SystemOneAnswer, raw: Fields) -> str:
    try:
        return model_line(ModelIdentity.of(raw.object("x_model")))
    except InvalidAnswer:
        return f"answered by {printable(answer.model)}"


def _text(value: Any) -> str:
    """Return instructions, or a level's description, as they were asked."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
