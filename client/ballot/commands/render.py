"""Draws answers: each decision with its options as bars, the best one marked, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ballot.commands.screen import printable
from ballot.decision import Decision
from ballot.results import ModelIdentity, OrderScores, Result

# Below it the options got less of the model's probability than everything else together. A hint to
# look at the prompt or the model; no verdict on the answer.
LOW_MASS = 0.5
LOW_MASS_MEANS = "the model was about to write something else"
BAR_CELLS = 24
INDENT = "  "
_LEAST_LABEL_CELLS = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
DIM, _BEST, _WARNING = "dim", "bold green", "yellow"


@dataclass(frozen=True)
class Bar:
    """One answer that was possible, and its probability."""

    label: str
    probability: float


def show_results(
    console: Console, decisions: Sequence[Decision], results: Sequence[Result]
) -> None:
    """Print every decision with its result, and what answered them."""
    for decision, result in zip(decisions, results, strict=True):
        _show_result(console, decision, result)
    for model in dict.fromkeys(result.model for result in results):
        console.print(Text(model_line(model), style=DIM))


def _show_result(console: Console, decision: Decision, result: Result) -> None:
    show_title(console, decision.id, decision.question)
    bars = [Bar(label, p) for label, p in result.by_option.items()]
    show_bars(console, bars, best=result.option_ids.index(result.best))
    console.print(Text(f"{INDENT}{_cost(result)}", style=DIM))
    for warning in _warnings(result):
        show_warning(console, warning)
    console.print()


def show_title(console: Console, id: str, question: str) -> None:
    """Print what is asked; a question of several lines keeps them."""
    console.print(Text(printable(id), style="bold"))
    for line in question.splitlines():
        console.print(Text(printable(line)))


def show_bars(console: Console, bars: Sequence[Bar], *, best: int | None) -> None:
    """Print one line for each of `bars`: a mark at the best, label, probability, bar."""
    labels = [printable(bar.label) for bar in bars]
    beside = cell_len(f"{INDENT}* {INDENT}0.0000{INDENT}") + BAR_CELLS
    room = max(_LEAST_LABEL_CELLS, console.width - beside)
    cells = min(room, max(cell_len(label) for label in labels))
    ascii_only = console.options.ascii_only
    mark = ">" if ascii_only else "▸"
    for index, (label, bar) in enumerate(zip(labels, bars, strict=True)):
        line = Text(INDENT, style=_BEST if index == best else "")
        line.append(f"{mark if index == best else ' '} {_fitted(label, cells, ascii_only)}")
        line.append(f"{INDENT}{bar.probability:.4f}")
        line.append(f"{INDENT}{bar_of(bar.probability, ascii_only=ascii_only)}")
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _fitted(label: str, cells: int, ascii_only: bool) -> str:
    """Return `label` filled up, or cut with dots, to a width of `cells`."""
    if cell_len(label) <= cells:
        return set_cell_size(label, cells)
    dots = "..." if ascii_only else "…"
    return set_cell_size(label, cells - len(dots)) + dots


def bar_of(probability: float, *, ascii_only: bool) -> str:
    """Return a bar of up to `BAR_CELLS` cells, exact to an eighth of a cell."""
    if ascii_only:
        return "#" * round(probability * BAR_CELLS)
    whole, eighths = divmod(round(probability * BAR_CELLS * 8), 8)
    return (_FULL * whole + _EIGHTHS[eighths]).rstrip()


def show_warning(console: Console, warning: str) -> None:
    """Print something to think about."""
    console.print(Text(f"{INDENT}! {warning}", style=_WARNING))


def _warnings(result: Result) -> Iterable[str]:
    if is_low(result.allowed_token_mass):
        yield f"low token mass: {LOW_MASS_MEANS}"
    if result.orders_agree is False:
        first, second = (printable(_best_of(order, result)) for order in result.orders)
        yield f"the orders disagree: as declared {first}, reversed {second}"


def is_low(mass: float) -> bool:
    """Return whether an allowed token mass is a hint to look closer; it is no verdict."""
    return mass < LOW_MASS


def _best_of(order: OrderScores, result: Result) -> str:
    return result.option_ids[order.probabilities.index(max(order.probabilities))]


def _cost(result: Result) -> str:
    timing = result.timing
    return (
        f"token mass {result.allowed_token_mass:.3f}, "
        f"{result.input_tokens} tokens ({result.cached_tokens} cached), "
        f"{milliseconds(timing.forward_seconds)} ({milliseconds(timing.queue_seconds)} queued)"
    )


def model_line(model: ModelIdentity) -> str:
    """Return what answered, in a line."""
    where = f"{model.threads} threads"
    if model.gpu_layers:
        where += f", {model.gpu_layers} layers on the GPU"
    return (
        f"{printable(model.file)}, {printable(model.quantization)}, "
        f"SHA-256 {printable(model.sha256[:16])}, {where}"
    )


def milliseconds(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds * 1000:.0f} ms"
