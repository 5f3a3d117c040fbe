"""The HTML report: one file that needs nothing else, no script and no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ballot.quality.figures import (
    Band,
    Calibration,
    Confusion,
    Cost,
    Group,
    Latency,
    Mass,
    Orders,
    Report,
    Wrong,
)
from ballot.quality.plots import bar, coverage_plot, latency_plot, reliability_plot, share_bar
from ballot.quality.runs import Failure, Manifest
from ballot.quality.statistics import Bin, Coverage, Percentiles, Share
from ballot.quality.wording import (
    NOTHING,
    count_of,
    findings,
    mean_interval,
    number,
    percent,
    seconds,
    served_line,
)

_INTERVAL = "95 % interval"
_MOST_CARDS, _MOST_OPTIONS = 100, 8
_MOST_MATRICES, _MOST_LABELS = 6, 12
# Beyond it the words in a cell would no longer stand out.
_DEEPEST_SHADE = 0.5

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #f6f7f9; --card: #fff; --soft: #626b76;
  --line: #d8dde3; --rail: #e8ebef; --s0: #2563a8; --s1: #b8570f; --good: #1a7f45; --bad: #c4322b;
  --band: #2563a826; --hit: 37 99 168; --miss: 196 50 43; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #111418; --card: #1a1e23;
  --soft: #9aa3ae; --line: #343b43; --rail: #2a3037; --s0: #6fb1f2; --s1: #f0a35e; --good: #4cc282;
  --bad: #ff7b72; --band: #6fb1f22e; --hit: 58 128 200; --miss: 214 80 72; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; } h3 { font-size: 1rem; margin: 0 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; } .soft { color: var(--soft); }
header p { overflow-wrap: anywhere; }
.tiles { display: grid; gap: .75rem; margin: 1.5rem 0 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(12rem, 45%), 1fr)); }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.tile { padding: .75rem 1rem; } .card { padding: 1rem; min-width: 0; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { display: block; color: var(--soft); font-size: .85rem; line-height: 1.35; }
.pair { display: grid; gap: 1.25rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
.cards { display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
.card header { margin-bottom: .5rem; line-height: 1.35; overflow-wrap: anywhere; }
.card header small { display: block; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; white-space: normal; vertical-align: bottom; }
th:first-child { text-align: left; padding-left: 0; } tbody th { font-weight: 400; }
.dense table { font-size: .82rem; } .dense :is(th, td) { padding-inline: .3rem; }
tr > :last-child { padding-right: 0; } tbody tr:last-child > * { border-bottom: 0; }
.options th, .options td { border: 0; padding: .1rem .25rem; }
.options th { padding-left: 0; white-space: normal; overflow-wrap: anywhere; width: 45%; }
.options svg.share { width: 5rem; }
.options .right th { color: var(--good); font-weight: 600; }
.options .given th { color: var(--bad); font-weight: 600; }
.matrix { width: auto; } .matrix td { text-align: center; min-width: 3.5rem; }
.matrix thead th { text-align: center; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul { margin: .5rem 0; padding-left: 1.2rem; max-width: 50rem; } li { margin: .3rem 0; }
svg { display: block; width: 100%; } svg.plot { height: auto; font-size: 11px; }
svg.share { height: .7rem; width: 4.5rem; border-radius: 2px; }
svg text { fill: var(--soft); } .grid { stroke: var(--line); stroke-width: .6; }
.ideal { stroke: var(--soft); stroke-dasharray: 4 4; } .band { fill: var(--band); }
.whisker { stroke: var(--ink); stroke-width: 1.4; opacity: .75; }
.share .whisker { stroke-width: 1.6; } .rail { fill: var(--rail); } .fill { fill: var(--s0); }
.share .whisker { vector-effect: non-scaling-stroke; }
polyline { fill: none; stroke-width: 2; } polyline.s0 { stroke: var(--s0); }
circle.s0 { fill: var(--s0); } rect.s1 { fill: var(--s1); } .dot { opacity: .65; }
@media (max-width: 30rem) { body { padding: 1.25rem .75rem 3rem; } dl { display: block; }
  dd { margin-bottom: .4rem; } .card { padding: .75rem; } table, .dense table { font-size: .8rem; }
  th, td, .dense :is(th, td) { padding-inline: .2rem; } svg.share { width: 2.5rem; }
  svg.plot { font-size: 14px; } .wide svg.share { display: none; }
  th:first-child { white-space: normal; overflow-wrap: anywhere; } .tile b { font-size: 1.3rem; } }
@media print { body { background: none; } .card, .tile { break-inside: avoid; } }
"""


def page(report: Report) -> str:
    """Return the whole report."""
    manifest = report.manifest
    return "\n".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(manifest.settings.data_name)}: decisions measured</title>",
            f"<style>{_STYLE}</style><body>",
            f"<header><h1>{escape(manifest.settings.data_name)}</h1>",
            f'<p class="soft">{escape(served_line(manifest.served))}</p></header>',
            _tiles(report),
            _list(findings(report)),
            _groups(report),
            _calibration(report.calibration),
            _selective(report.selective),
            _orders(report.orders),
            _confusion(report.confusion),
            _latency(report.latency),
            _wrong(report.wrong),
            _unanswered(report.unanswered),
            _measured(manifest),
            "</body></html>\n",
        )
    )


def _tiles(report: Report) -> str:
    calibration = report.calibration
    tiles = [
        (
            "accuracy",
            percent(report.accuracy.value),
            f"{count_of(report.accuracy)}; {_range(report.accuracy)} %",
        ),
        (
            "macro accuracy",
            percent(report.macro_by_family or report.macro_by_kind),
            "families count alike" if report.macro_by_family else "types count alike",
        ),
        (
            "ECE, 10 equal bins",
            number(calibration.error),
            f"by chance up to {number(calibration.error_by_chance)}",
        ),
        (
            "log loss (NLL)",
            number(report.log_loss.value),
            f"nats; {mean_interval(report.log_loss)}",
        ),
        ("Brier score", number(report.brier.value), f"0 to 2; {mean_interval(report.brier)}"),
        *_latency_tile(report.latency.client),
        (
            "tokens an answer",
            NOTHING if report.tokens.per_answer is None else f"{report.tokens.per_answer:,.0f}",
            f"{report.tokens.input:,} in all, {report.tokens.cached:,} cached",
        ),
        *_mass_tile(report.mass),
        *_cost_tile(report.cost),
    ]
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in tiles)}</div>'


def _latency_tile(client: Percentiles | None) -> list[tuple[str, str, str]]:
    if client is None:
        return []
    return [("client p50", seconds(client.p50), f"p95 {seconds(client.p95)}")]


def _mass_tile(mass: Mass | None) -> list[tuple[str, str, str]]:
    if mass is None:
        return []
    return [("token mass, median", number(mass.p50), f"least {number(mass.least)}")]


def _cost_tile(cost: Cost | None) -> list[tuple[str, str, str]]:
    if cost is None:
        return []
    told = f"at {cost.hourly_price:g} an hour, {seconds(cost.seconds_per_decision)} each"
    return [("1,000 decisions cost", f"{cost.per_thousand:.3g}", told)]


def _tile(name: str, value: str, beside: str) -> str:
    return (
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(beside)}</span></div>"
    )


def _list(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _groups(report: Report) -> str:
    tables = [
        f'<div class="card"><h3>By {name}</h3><div class="wide">{_group_table(groups)}</div></div>'
        for name, groups in (("type", report.by_kind), ("family", report.by_family))
        if groups
    ]
    if not tables:
        return ""
    return (
        "<h2>Where it is right</h2><p>Bars are accuracies, lines over them their 95 % Wilson "
        "intervals. Where the lines of two groups overlap widely, the data does not say which is "
        f'better.</p><div class="pair">{"".join(tables)}</div>'
    )


def _group_table(groups: Iterable[Group]) -> str:
    head = ("", "accuracy", "", "right", _INTERVAL, "confidence")
    rows = [
        (
            escape(group.name),
            percent(group.correct.value),
            share_bar(group.correct),
            _of(group.correct),
            _range(group.correct),
            percent(group.mean_confidence),
        )
        for group in groups
    ]
    return _table(head, rows)


def _calibration(calibration: Calibration) -> str:
    if calibration.error is None:
        return ""
    return (
        "<h2>Can a confidence be read as a chance?</h2>"
        "<p>Dots on the dashed line say yes: of the answers with such a confidence, that share is "
        "right. Below it they are too confident. A dot's area is the number of answers, the "
        "upright line the 95 % interval of their accuracy.</p>"
        f'<div class="pair"><div class="card">{reliability_plot(calibration.bins)}</div>'
        '<div class="card"><h3>In ten bins of equal width</h3>'
        f'<div class="wide">{_bin_table(calibration.bins)}</div>'
        f'<p class="soft">Expected calibration error {number(calibration.error)} in these bins; '
        f"{number(calibration.equal_count_error)} in {len(calibration.equal_count_bins)} bins of "
        "about as many answers. Were every confidence true, so many answers would still show up "
        f"to {number(calibration.error_by_chance)} (95 %).</p></div></div>"
    )


def _bin_table(bins: Iterable[Bin]) -> str:
    head = ("confidence", "answers", "mean", "accuracy", _INTERVAL)
    rows = [
        (
            f"{one.low:.1f} to {one.high:.1f}",
            f"{one.correct.total:,}",
            percent(one.mean_confidence),
            percent(one.correct.value),
            _range(one.correct),
        )
        for one in bins
    ]
    return _table(head, rows)


def _selective(points: Sequence[Coverage]) -> str:
    if not points:
        return ""
    return (
        "<h2>What a threshold would buy</h2>"
        "<p>Take only answers of at least some confidence: the fewer you take, the more of them "
        "should be right. The band is the 95 % interval of each point. To choose a threshold, use "
        "<code>ballot threshold</code>, which holds data back; read off here it flatters.</p>"
        f'<div class="pair"><div class="card">{coverage_plot(points)}</div>'
        f'<div class="card"><h3>The most confident answers</h3>'
        f'<div class="wide">{_coverage_table(points)}</div></div></div>'
    )


def _coverage_table(points: Sequence[Coverage]) -> str:
    head = ("share taken", "least confidence", "right", "accuracy", _INTERVAL)
    chosen = [
        next(point for point in points if point.coverage >= tenths / 10) for tenths in range(1, 11)
    ]
    rows = [
        (
            percent(point.coverage),
            number(point.least_confidence),
            _of(point.correct),
            percent(point.correct.value),
            _range(point.correct),
        )
        for point in dict.fromkeys(chosen)
    ]
    return _table(head, rows)


def _orders(orders: Orders | None) -> str:
    if orders is None:
        return ""
    rows = [
        (escape(name), percent(share.value), share_bar(share), _of(share), _range(share))
        for name, share in (
            ("right, options as declared", orders.correct_as_declared),
            ("right, options reversed", orders.correct_reversed),
            ("right, both averaged", orders.correct_averaged),
            ("another answer when reversed", orders.flips),
        )
    ]
    return (
        "<h2>Does the order of the options matter?</h2>"
        f'<div class="card"><div class="wide">{_table(("", "share", "", "", _INTERVAL), rows)}'
        '</div><p class="soft">The probability of the right option moves by '
        f"{number(orders.mean_shift)} on average.</p></div>"
    )


def _confusion(matrices: Sequence[Confusion]) -> str:
    shown = [one for one in matrices if one.total > 1 and len(one.labels) <= _MOST_LABELS]
    shown = shown[:_MOST_MATRICES]
    if not shown:
        return ""
    tables = [f'<div class="card"><div class="wide">{_matrix(one)}</div></div>' for one in shown]
    left = len(matrices) - len(shown)
    more = (
        f'<p class="soft">{left:,} more with other options are in report.json.</p>' if left else ""
    )
    return (
        "<h2>What is taken for what</h2><p>Rows are what was expected, columns what was answered, "
        "among decisions with the same options.</p>"
        f'<div class="pair">{"".join(tables)}</div>{more}'
    )


def _matrix(matrix: Confusion) -> str:
    head = "".join(f"<th>{escape(label)}</th>" for label in matrix.labels)
    lines = []
    for row, (label, counts) in enumerate(zip(matrix.labels, matrix.counts, strict=True)):
        total = sum(counts)
        cells = "".join(
            _shaded(count, total, is_hit=row == column) for column, count in enumerate(counts)
        )
        lines.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    return (
        f'<table class="matrix"><thead><tr><th>{matrix.total:,} decisions</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _shaded(count: int, total: int, *, is_hit: bool) -> str:
    if not count:
        return '<td class="soft">0</td>'
    shade = f"rgb(var(--{'hit' if is_hit else 'miss'}) / {_DEEPEST_SHADE * count / total:.2f})"
    return f'<td style="background:{shade}">{count:,}</td>'


def _latency(latency: Latency) -> str:
    if latency.client is None or latency.container is None:
        return ""
    return (
        "<h2>How long it takes</h2>"
        "<p>Client: what the caller waited, with the network and any retries. Container: from the "
        "request's arrival to the answer, with the wait for those before it.</p>"
        f'<div class="pair"><div class="card">{latency_plot(latency.answers)}</div>'
        '<div class="card"><h3>Seconds, by input tokens</h3>'
        f'<div class="wide dense">{_band_table(latency.bands)}</div>'
        f'<p class="soft">All {len(latency.answers):,}: client {_percentiles(latency.client)}; '
        f"container {_percentiles(latency.container)}.</p></div></div>"
    )


def _band_table(bands: Iterable[Band]) -> str:
    head = ("tokens", "answers", "client p50", "p95", "p99", "container p50", "p95", "p99")
    rows = [
        (
            f"{band.least_tokens:,} to {band.below_tokens - 1:,}",
            f"{band.count:,}",
            *(f"{value:.3g}" for of in _sides(band) for value in (of.p50, of.p95, of.p99)),
        )
        for band in bands
    ]
    return _table(head, rows)


def _sides(band: Band) -> tuple[Percentiles, Percentiles]:
    return band.client, band.container


def _percentiles(of: Percentiles) -> str:
    return (
        f"p50 {seconds(of.p50)}, p95 {seconds(of.p95)}, p99 {seconds(of.p99)}, "
        f"mean {seconds(of.mean)}"
    )


def _wrong(wrong: Sequence[Wrong]) -> str:
    if not wrong:
        return ""
    left = len(wrong) - _MOST_CARDS
    more = f'<p class="soft">{left:,} less confident ones are in report.json.</p>'
    cards = "".join(map(_wrong_card, wrong[:_MOST_CARDS]))
    return (
        f"<h2>Wrong answers: {len(wrong):,}</h2>"
        "<p>The most confident first: these are the ones that no threshold catches. Green is what "
        "was expected, red what was answered.</p>"
        f'<div class="cards">{cards}</div>{more if left > 0 else ""}'
    )


def _wrong_card(wrong: Wrong) -> str:
    told = [wrong.family or wrong.kind, f"token mass {wrong.allowed_token_mass:.3f}"]
    if not wrong.is_valid:
        told.append("not valid: the probabilities do not sum to 1")
    rows = "".join(_option_row(wrong, *option) for option in _shown_options(wrong))
    left = len(wrong.option_ids) - _MOST_OPTIONS
    more = f'<p class="soft">and {left:,} less probable options</p>' if left > 0 else ""
    return (
        f'<article class="card"><header>{escape(wrong.id)}<small>{escape(", ".join(told))}</small>'
        f'</header><table class="options"><tbody>{rows}</tbody></table>{more}</article>'
    )


def _shown_options(wrong: Wrong) -> list[tuple[str, float]]:
    """Return the options as declared; of many, the expected one and the most probable others."""
    options = list(zip(wrong.option_ids, wrong.probabilities, strict=True))
    ranked = sorted(options, key=lambda option: (option[0] != wrong.expected, -option[1]))
    kept = set(ranked[:_MOST_OPTIONS])
    return [option for option in options if option in kept]


def _option_row(wrong: Wrong, id: str, probability: float) -> str:
    kind, mark = "", ""
    if id == wrong.expected:
        kind, mark = ' class="right"', " (expected)"
    elif id == wrong.predicted:
        kind, mark = ' class="given"', " (answered)"
    return (
        f"<tr{kind}><th>{escape(id)}{mark}</th><td>{bar(probability)}</td>"
        f"<td>{probability:.4f}</td></tr>"
    )


def _unanswered(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    shown = failures[:_MOST_CARDS]
    cards = "".join(
        f'<article class="card"><header>{escape(one.id)}<small>{escape(one.code)}</small></header>'
        f"{escape(one.message)}</article>"
        for one in shown
    )
    left = len(failures) - len(shown)
    more = f'<p class="soft">{left:,} more are in report.json.</p>' if left else ""
    return f'<h2>No answer: {len(failures):,}</h2><div class="cards">{cards}</div>{more}'


def _measured(manifest: Manifest) -> str:
    settings, served = manifest.settings, manifest.served
    facts = {
        "data": f"{settings.data_name}, {settings.examples:,} examples",
        "data's SHA-256": settings.data_sha256,
        f"asked {settings.target_kind}": settings.target,
        "at a time": str(settings.concurrency),
        "client": f"ballot {manifest.ballot_version}",
    }
    if served:
        model = served.model
        facts |= {
            "model": f"{model.file}, {model.architecture}, {model.quantization}",
            "model's SHA-256": model.sha256,
            "runs on": f"{', '.join(model.backends)}; {model.threads} threads, "
            f"{model.gpu_layers} layers on the GPU; llama.cpp {model.llama_cpp}",
            "prompt": f"{served.prompt_version}, option orders: {served.orders}",
            "calibration's SHA-256": served.calibration_sha256 or "none",
            "readout": served.readout,
        }
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()
    )
    return f'<h2>What was measured</h2><div class="card"><dl>{items}</dl></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are HTML, and the first of a row is its heading."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = [f"<tr><th>{row[0]}</th>{_cells(row[1:])}</tr>" for row in rows]
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _of(share: Share) -> str:
    return f"{share.count:,}/{share.total:,}"


def _range(share: Share) -> str:
    return f"{share.low * 100:.1f}\u2013{share.high * 100:.1f}" if share.total else NOTHING


def _cells(contents: Iterable[str]) -> str:
    return "".join(f"<td>{content}</td>" for content in contents)
