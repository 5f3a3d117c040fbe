"""Plots as SVG text, in the colours that the page's style gives their classes.

They are drawn small, so that their text can be read at a phone's width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from ballot.quality.figures import Timed
from ballot.quality.statistics import Bin, Coverage, Share

_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 20, 24, 44
_MOST_DOTS = 1000
# With fewer answers the interval is most of what there is.
_TELLING_COVERAGE = 0.1
_FIFTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_Item = TypeVar("_Item")
_LARGEST_DOT, _SMALLEST_DOT = 8.0, 2.5


@dataclass(frozen=True)
class _Axis:
    """A range of values and the pixels that it goes over; marks have their words."""

    low: float
    high: float
    start: float
    end: float
    marks: tuple[tuple[float, str], ...]
    scale: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        low, high = self.scale(self.low), self.scale(self.high)
        part = (self.scale(value) - low) / (high - low)
        return self.start + part * (self.end - self.start)


def _across(low: float, high: float, marks: Iterable[tuple[float, str]]) -> _Axis:
    return _Axis(low, high, _LEFT, _WIDTH - _RIGHT, tuple(marks))


def _upward(low: float, high: float, marks: Iterable[tuple[float, str]]) -> _Axis:
    return _Axis(low, high, _HEIGHT - _BOTTOM, _TOP, tuple(marks))


def _percents(values: Iterable[float]) -> list[tuple[float, str]]:
    return [(value, f"{value:.0%}") for value in values]


def reliability_plot(bins: Sequence[Bin]) -> str:
    """Return accuracy against confidence: a dot a bin, its area the answers in it, on a diagonal.

    Upright lines are the intervals of the accuracies.
    """
    filled = [one for one in bins if one.mean_confidence is not None]
    x, y = _across(0, 1, _percents(_FIFTHS)), _upward(0, 1, _percents(_FIFTHS))
    most = max((one.correct.total for one in filled), default=1)
    diagonal = _line("ideal", x(0), y(0), x(1), y(1))
    dots = [_bin_dot(one, x, y, most=most) for one in filled]
    axes = _axes(x, y, across="confidence", upward="accuracy")
    return _svg("Accuracy against confidence", [axes, diagonal, *dots])


def _bin_dot(one: Bin, x: _Axis, y: _Axis, *, most: int) -> str:
    assert one.mean_confidence is not None
    assert one.correct.value is not None
    radius = max(_SMALLEST_DOT, _LARGEST_DOT * math.sqrt(one.correct.total / most))
    across = x(one.mean_confidence)
    told = (
        f"confidence {one.mean_confidence:.3f}, accuracy {one.correct.value:.3f}, "
        f"{one.correct.total} answers"
    )
    return (
        f"<g><title>{told}</title>"
        + _line("whisker", across, y(one.correct.low), across, y(one.correct.high))
        + f'<circle class="s0" cx="{across:.1f}" cy="{y(one.correct.value):.1f}" r="{radius:.1f}"/>'
        + "</g>"
    )


def coverage_plot(points: Sequence[Coverage]) -> str:
    """Return accuracy against coverage as a line, in the band of its intervals."""
    telling = [point.correct.low for point in points if point.coverage >= _TELLING_COVERAGE]
    bottom = math.floor(min(telling, default=0.0) * 10) / 10
    steps = round((1 - bottom) * 10)
    marks = [1 - tenth / 10 for tenth in range(0, steps + 1, 1 if steps <= 6 else 2)]
    x, y = _across(0, 1, _percents(_FIFTHS)), _upward(bottom, 1, _percents(marks))
    shown = _thinned(points)
    upper = [(x(point.coverage), y(point.correct.high)) for point in shown]
    lower = [(x(point.coverage), y(max(bottom, point.correct.low))) for point in reversed(shown)]
    middle = [(x(point.coverage), y(max(bottom, point.correct.value or 0.0))) for point in shown]
    curves = [
        f'<polygon class="band" points="{_places([*upper, *lower])}"/>',
        f'<polyline class="s0" points="{_places(middle)}"/>',
        *(_circle("s0", *place, radius=2.5) for place in middle if len(middle) <= 40),
    ]
    axes = _axes(x, y, across="coverage: the share of answers taken", upward="accuracy")
    return _svg("Accuracy against coverage", [axes, *curves])


def latency_plot(answers: Sequence[Timed]) -> str:
    """Return seconds against input tokens, a pair of dots an answer, on logarithmic axes."""
    shown = _thinned(answers)
    seconds = [max(one, 1e-4) for timed in shown for one in _both(timed)]
    tokens = [max(timed.input_tokens, 1) for timed in shown]
    x = _logarithmic(tokens, _LEFT, _WIDTH - _RIGHT, "{:,g}".format)
    y = _logarithmic(seconds, _HEIGHT - _BOTTOM, _TOP, _seconds)
    dots = []
    for timed in shown:
        across = x(max(timed.input_tokens, 1))
        client, container = (y(max(one, 1e-4)) for one in _both(timed))
        dots.append(_circle("s0 dot", across, client, radius=3))
        dots.append(
            f'<rect class="s1 dot" x="{across - 2.5:.1f}" y="{container - 2.5:.1f}" '
            'width="5" height="5"/>'
        )
    legend = (
        _circle("s0", _WIDTH - 176, 10, radius=4)
        + _text(_WIDTH - 168, 14, "client", anchor="start")
        + f'<rect class="s1" x="{_WIDTH - 100}" y="6" width="8" height="8"/>'
        + _text(_WIDTH - 88, 14, "container", anchor="start")
    )
    axes = _axes(x, y, across="input tokens", upward="seconds")
    return _svg("Latency against input tokens", [axes, *dots, legend])


def _both(timed: Timed) -> tuple[float, float]:
    return timed.client_seconds, timed.container_seconds


def _logarithmic(
    values: Sequence[float], start: float, end: float, words: Callable[[float], str]
) -> _Axis:
    """Return an axis from the mark below the values to that above them."""
    low, high = min(values, default=1), max(values, default=10)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    first = max(index for index, step in enumerate(steps) if step <= low)
    last = min(index for index, step in enumerate(steps) if step >= high and index > first)
    marks = steps[first : last + 1]
    sparse = marks if len(marks) <= 8 else [one for one in marks if f"{one:e}".startswith("1")]
    return _Axis(
        marks[0],
        marks[-1],
        start,
        end,
        tuple((one, words(one)) for one in sparse),
        scale=math.log,
    )


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


def share_bar(share: Share) -> str:
    """Return a share as a bar for a table's cell, with a line over its interval."""
    return bar(share.value or 0.0, _line("whisker", share.low * 100, 5, share.high * 100, 5))


def bar(value: float, over: str = "") -> str:
    """Return a bar for a table's cell, as long as the part of 1 that `value` is."""
    width = min(1.0, max(0.0, value)) * 100
    return (
        '<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rail" width="100" height="10"/>'
        f'<rect class="fill" width="{width:.1f}" height="10"/>{over}</svg>'
    )


def _axes(x: _Axis, y: _Axis, *, across: str, upward: str) -> str:
    parts = []
    for value, words in x.marks:
        parts.append(_line("grid", x(value), y.start, x(value), y.end))
        parts.append(_text(x(value), y.start + 16, words, anchor="middle"))
    for value, words in y.marks:
        parts.append(_line("grid", x.start, y(value), x.end, y(value)))
        parts.append(_text(x.start - 6, y(value) + 4, words, anchor="end"))
    parts.append(_text((x.start + x.end) / 2, _HEIGHT - 8, across, anchor="middle"))
    parts.append(_text(4, 14, upward, anchor="start"))
    return "".join(parts)


def _thinned(items: Sequence[_Item]) -> Sequence[_Item]:
    """Return evenly spaced items, with the last of them, where there are too many to draw."""
    if len(items) <= _MOST_DOTS:
        return items
    last = len(items) - 1
    return [items[round(index * last / (_MOST_DOTS - 1))] for index in range(_MOST_DOTS)]


def _places(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _circle(kind: str, x: float, y: float, *, radius: float) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
