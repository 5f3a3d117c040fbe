"""Plots as SVG text: ratios on a common logarithmic axis, and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.rows import Curve, Row

_WIDTH, _LABELS, _LINE = 860, 380, 24
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 46
_HEIGHT = 320
_TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 4)


def ratio_plot(rows: Sequence[Row]) -> str:
    """Return the rows that are ratios: a dot at the median, a bar over the quartiles, the target.

    Left of 1 the adapter is the faster side.
    """
    ratios = [row for row in rows if row.unit == "ratio"]
    if not ratios:
        return ""
    height = _TOP + _LINE * len(ratios) + _BOTTOM
    parts = [_grid_line(tick, height) for tick in _TICKS]
    for index, row in enumerate(ratios):
        parts.append(_ratio_line(row, y=_TOP + _LINE * (index + 0.5)))
    return _svg(height, parts, title="Ratios")


def _ratio_x(value: float) -> float:
    low, high = math.log(_TICKS[0]), math.log(_TICKS[-1])
    inside = min(max(math.log(max(value, 1e-9)), low), high)
    return _LABELS + (inside - low) / (high - low) * (_WIDTH - _LABELS - _RIGHT)


def _grid_line(tick: float, height: float) -> str:
    x = _ratio_x(tick)
    kind = "one" if tick == 1 else "grid"
    return (
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
        + _text(x, height - _BOTTOM + 16, f"{tick:g}", anchor="middle")
    )


def _ratio_line(row: Row, *, y: float) -> str:
    value = row.value
    label = f"{row.what} / {row.against}"
    parts = [
        f"<g><title>{escape(label)}: {value.median:.3f}</title>",
        _text(_LABELS - 10, y + 4, _short(label), anchor="end"),
        f'<line class="bar {row.verdict}" x1="{_ratio_x(value.low):.1f}" '
        f'x2="{_ratio_x(value.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<circle class="dot {row.verdict}" cx="{_ratio_x(value.median):.1f}" cy="{y:.1f}" r="4"/>',
    ]
    if row.target is not None:
        x = _ratio_x(row.target.value)
        parts.append(
            f'<line class="target" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8:.1f}" y2="{y + 8:.1f}"/>'
        )
    return "".join((*parts, "</g>"))


def _short(label: str) -> str:
    return label if len(label) <= 58 else f"{label[:57]}…"


def curve_plot(curve: Curve) -> str:
    """Return a curve's series as lines with dots, from zero up."""
    points = [point for series in curve.series.values() for point in series]
    if not points:
        return ""
    x_end = nice_end(max(x for x, _ in points))
    y_end = nice_end(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + x / x_end * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - y / y_end * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = []
    for step in range(5):
        x, y = place(x_end * step / 4, y_end * step / 4)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{y_end * step / 4:g}", anchor="end"))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{x_end * step / 4:g}", anchor="middle"))
    for index, (name, series) in enumerate(curve.series.items()):
        parts.append(_series(name, [place(x, y) for x, y in series], index=index))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 8, curve.x_label, anchor="middle"))
    parts.append(_text(_LEFT, _TOP - 6, curve.y_label, anchor="end"))
    return _svg(_HEIGHT, parts, title=curve.title)


def _series(name: str, places: Sequence[tuple[float, float]], *, index: int) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle class="s{index}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    legend_y = _TOP + 16 * (index + 1)
    legend = (
        f'<line class="s{index}" x1="{_LEFT + 12}" x2="{_LEFT + 36}" '
        f'y1="{legend_y}" y2="{legend_y}"/>' + _text(_LEFT + 42, legend_y + 4, name, anchor="start")
    )
    return f'<polyline class="s{index}" points="{line}"/>{dots}{legend}'


def nice_end(value: float) -> float:
    """Return the smallest of 1, 2, 4 or 8 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value)


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], *, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
