"""The HTML report: one file that needs nothing else, no script and no network."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from bench.plots import curve_plot, ratio_plot
from bench.report import COLUMNS, ModelRun, Run, cells

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #8a919a;
  --line: #d8dde3; --pass: #1a7f45; --miss: #c4322b; --s0: #2563a8; --s1: #c2671d;
  --s2: #5d8a3a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #15181c; --soft: #8f98a3;
  --line: #343b43; --pass: #4cc282; --miss: #ff7b72; --s0: #6fb1f2; --s1: #f0a35e;
  --s2: #9ccc6a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
td small { display: block; color: var(--soft); }
.pass { color: var(--pass); } .miss { color: var(--miss); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; font-size: 11px; }
svg text { fill: var(--ink); } .grid { stroke: var(--line); } .one { stroke: var(--soft); }
.bar { stroke: var(--soft); stroke-width: 3; } .dot { fill: var(--soft); }
.bar.pass { stroke: var(--pass); } .dot.pass { fill: var(--pass); }
.bar.miss { stroke: var(--miss); } .dot.miss { fill: var(--miss); }
.target { stroke: var(--ink); stroke-width: 2; }
polyline { fill: none; stroke-width: 2; } polyline.s0, line.s0 { stroke: var(--s0); }
polyline.s1, line.s1 { stroke: var(--s1); stroke-dasharray: 5 4; }
polyline.s2, line.s2 { stroke: var(--s2); stroke-dasharray: 2 3; }
circle.s0 { fill: var(--s0); } circle.s1 { fill: var(--s1); } circle.s2 { fill: var(--s2); }
"""


def page(run: Run) -> str:
    """Return the whole report."""
    facts = {
        "started": run.started,
        "took": f"{run.seconds:.0f} s",
        "llama-server": run.peer or "not given: set LLAMA_SERVER to compare with one",
        "load average": f"{_words(run.load_before)} before, {_words(run.load_after)} after",
        **{name.replace("_", " "): _words(value) for name, value in run.machine.items()},
    }
    return "\n".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Ballot bench</title><style>{_STYLE}</style>",
            "<h1>Ballot bench</h1>",
            f"<p>{escape(run.about)}</p>",
            _facts(facts),
            *(_model(model) for model in run.models),
            "</html>",
        )
    )


def _model(model: ModelRun) -> str:
    identity = {
        name: _words(value)
        for name, value in model.identity.items()
        if name not in ("time", "level", "event", "file")
    }
    rows = model.outcome.rows
    return "\n".join(
        (
            f"<h2>{escape(model.file)}</h2>",
            _facts(identity),
            *(f'<p class="miss">{escape(failure)}</p>' for failure in model.failures),
            f'<div class="wide">{_table(model)}</div>',
            f'<div class="wide">{ratio_plot(rows)}</div>',
            *(
                f'<h3>{escape(curve.title)}</h3><div class="wide">{curve_plot(curve)}</div>'
                for curve in model.outcome.curves
            ),
        )
    )


def _table(model: ModelRun) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    lines = []
    for row in model.outcome.rows:
        first, *rest, verdict = cells(row)
        note = f"<small>{escape(row.note)}</small>" if row.note else ""
        others = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(
            f'<tr><td>{escape(first)}{note}</td>{others}<td class="{verdict}">{verdict}</td></tr>'
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _facts(facts: dict[str, str]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()
    )
    return f"<dl>{items}</dl>"


def _words(value: object) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(str(item) for item in value)
    return str(value)
