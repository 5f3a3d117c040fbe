"""A run's report: its figures against other implementations, its files, its page in a browser."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from rich.console import Console

from ballot.commands.render_report import summary
from ballot.quality.figures import report_of
from ballot.quality.page import page
from ballot.quality.report import HTML_FILE, JSON_FILE, write_report
from ballot.quality.runs import Run, load_run
from tests.browser import chromium
from tests.cli_process import ballot
from tests.made_runs import drawn_rows, failure, order, row, run, written

ROWS = drawn_rows(300, seed=8, sharpness=1.5, orders=2)
DRAWN = run(ROWS, orders=2)
# Ids and errors that would do harm if they were taken for anything but text.
HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m\u202e"
CORNERS: dict[str, Run] = {
    "nothing": run([]),
    "one right": run([row("e", "no yes", "yes", (0.2, 0.8))]),
    "one wrong": run([row("e", "no yes", "no", (0.2, 0.8))]),
    "no answer": run([], [failure("e", "yes")]),
    "not valid": run([row("e", "no yes", "yes", (0.2, 0.9))]),
    "certain": run([row(f"e{i}", "no yes", "yes", (0.0, 1.0)) for i in range(30)]),
    "impossible": run([row(f"e{i}", "no yes", "no", (0.0, 1.0)) for i in range(30)]),
    "many options": run(
        [row("e", " ".join(f"o{i}" for i in range(255)), "o254", [1 / 255] * 255)] * 2
    ),
    "no time": run(
        [row("e", "no yes", "yes", (0.2, 0.8), client_seconds=0.0, container_seconds=0.0)]
    ),
    "hostile": run(
        [row(f"{HOSTILE} {i}", "no yes", "no", (0.2, 0.8), family=HOSTILE) for i in range(2)],
        [failure(HOSTILE + "\ud800", HOSTILE, message=HOSTILE, code=HOSTILE)],
        data_name=HOSTILE,
    ),
    "drawn": DRAWN,
}
each_corner = pytest.mark.parametrize("name", CORNERS)


def test_accuracies_are_scikit_learns() -> None:
    report = report_of(DRAWN)
    expected = np.array([one.expected for one in ROWS])
    answered = np.array([one.option_ids[int(np.argmax(one.probabilities))] for one in ROWS])

    assert report.accuracy.value == sklearn.metrics.accuracy_score(expected, answered)
    for groups, macro, names in (
        (report.by_kind, report.macro_by_kind, [one.kind for one in ROWS]),
        (report.by_family, report.macro_by_family, [str(one.family) for one in ROWS]),
    ):
        theirs = {
            name: sklearn.metrics.accuracy_score(
                expected[np.array(names) == name], answered[np.array(names) == name]
            )
            for name in sorted(set(names))
        }
        assert {group.name: group.correct.value for group in groups} == theirs
        assert macro == pytest.approx(np.mean(list(theirs.values())))


def test_accuracy_is_held_against_guessing() -> None:
    """Of two decisions between two options and one between four, a guess gets 1.25 right."""
    rows = [
        row("a", "no yes", "yes", (0.1, 0.9)),
        row("b", "no yes", "yes", (0.1, 0.9)),
        row("c", "a b c d", "a", (0.7, 0.1, 0.1, 0.1)),
    ]

    assert report_of(run(rows)).guessing == pytest.approx(1.25 / 3)
    assert report_of(run([], [failure("d", "yes")])).guessing is None
    assert "not shown to be better than a guess" in " ".join(_shown(run(rows[:2])).split())
    assert "A guess among the options would be right in" in " ".join(_shown(DRAWN).split())


def test_losses_are_scikit_learns() -> None:
    # Padded to four columns, for options that no decision of two has are never right there.
    rows = np.array([[*one.probabilities, 0.0, 0.0][:4] for one in ROWS])
    places = [one.option_ids.index(one.expected) for one in ROWS]

    report = report_of(DRAWN)

    assert report.log_loss.value == pytest.approx(
        sklearn.metrics.log_loss(places, rows, labels=range(4))
    )
    assert report.brier.value == pytest.approx(
        sklearn.metrics.brier_score_loss(places, rows, labels=range(4), scale_by_half=False)
    )


def test_confusions_are_scikit_learns_by_set_of_options() -> None:
    found = report_of(DRAWN).confusion

    assert sum(matrix.total for matrix in found) == len(ROWS)
    assert [matrix.total for matrix in found] == sorted((m.total for m in found), reverse=True)
    for matrix in found:
        same = [one for one in ROWS if set(one.option_ids) == set(matrix.labels)]
        theirs = sklearn.metrics.confusion_matrix(
            [one.expected for one in same],
            [one.option_ids[int(np.argmax(one.probabilities))] for one in same],
            labels=matrix.labels,
        )
        assert np.array_equal(matrix.counts, theirs)


def test_options_in_another_order_are_the_same_options() -> None:
    rows = [
        row("a", "no yes", "yes", (0.1, 0.9)),
        row("b", "yes no", "yes", (0.3, 0.7)),
    ]

    (matrix,) = report_of(run(rows)).confusion

    assert matrix.labels == ("no", "yes")
    assert matrix.counts == ((0, 0), (1, 1))


def test_what_the_order_does_is_what_it_does_to_each_answer() -> None:
    rows = [
        # Right both ways, right only as declared, right only reversed, wrong both ways.
        row("a", "x y", "x", (0.8, 0.2), orders=(order((0.9, 0.1)), order((0.7, 0.3)))),
        row("b", "x y", "x", (0.6, 0.4), orders=(order((0.8, 0.2)), order((0.4, 0.6)))),
        row("c", "x y", "x", (0.4, 0.6), orders=(order((0.1, 0.9)), order((0.7, 0.3)))),
        row("d", "x y", "x", (0.2, 0.8), orders=(order((0.2, 0.8)), order((0.2, 0.8)))),
        row("e", "x y", "x", (0.9, 0.1)),
    ]

    orders = report_of(run(rows)).orders

    assert orders is not None
    assert (orders.flips.count, orders.flips.total) == (2, 4)
    assert orders.correct_as_declared.count == 2
    assert orders.correct_reversed.count == 2
    assert orders.correct_averaged.count == 2
    assert orders.mean_shift == pytest.approx((0.2 + 0.4 + 0.6 + 0) / 4)
    assert report_of(run(rows[4:])).orders is None


def test_latencies_are_numpys_over_all_and_by_input_tokens() -> None:
    latency = report_of(DRAWN).latency
    seconds = np.array([(one.client_seconds, one.container_seconds) for one in ROWS])
    tokens = np.array([one.input_tokens for one in ROWS])

    def theirs(chosen: Any) -> list[list[float]]:
        return [list(np.percentile(seconds[chosen, side], [50, 95, 99])) for side in (0, 1)]

    def ours(of: Any) -> list[list[float]]:
        return [[side.p50, side.p95, side.p99] for side in (of.client, of.container)]

    assert np.allclose(ours(latency), theirs(tokens >= 0))
    assert sum(band.count for band in latency.bands) == len(ROWS)
    for band in latency.bands:
        inside = (tokens >= band.least_tokens) & (tokens < band.below_tokens)
        assert band.count == inside.sum()
        assert np.allclose(ours(band), theirs(inside))
        assert band.least_tokens in (0, band.below_tokens // 2)


@pytest.mark.parametrize(
    ("tokens", "band"), [(0, (0, 128)), (127, (0, 128)), (128, (128, 256)), (1024, (1024, 2048))]
)
def test_a_band_begins_with_its_least_tokens(tokens: int, band: tuple[int, int]) -> None:
    (found,) = report_of(run([row("e", "a b", "a", (1, 0), input_tokens=tokens)])).latency.bands

    assert (found.least_tokens, found.below_tokens) == band


def test_token_masses_are_numpys() -> None:
    mass = report_of(DRAWN).mass
    masses = [one.allowed_token_mass for one in ROWS]

    assert mass is not None
    assert [mass.p50, mass.p5, mass.least] == pytest.approx(np.percentile(masses, [50, 5, 0]))
    assert mass.low.count == sum(one < 0.5 for one in masses)


def test_what_is_not_answered_is_wrong_and_counts_for_nothing_else() -> None:
    good = row("a", "no yes", "yes", (0.1, 0.9), kind="noul", family="f")
    broken = row("b", "no yes", "yes", (0.5, 0.9), kind="noul", family="f")
    lost = failure("c", "yes", kind="noul", family="g")

    report = report_of(run([good, broken], [lost]))
    alone = report_of(run([good]))

    assert (report.accuracy.count, report.accuracy.total) == (1, 3)
    assert (report.answered.count, report.answered.total) == (1, 3)
    assert [(one.name, one.correct.count, one.correct.total) for one in report.by_family] == [
        ("f", 1, 2),
        ("g", 0, 1),
    ]
    assert report.macro_by_family == 0.25
    assert [one.id for one in report.wrong] == ["b"]
    assert not report.wrong[0].is_valid
    assert report.unanswered == (lost,)
    for name in ("log_loss", "brier", "calibration", "selective", "latency", "mass", "confusion"):
        assert getattr(report, name) == getattr(alone, name)


def test_distributions_that_jevbench_calls_valid_only_loosely_are_counted() -> None:
    rows = [row("a", "x y", "x", (0.5, 0.515)), row("b", "x y", "x", (0.5, 0.5))]

    report = report_of(run(rows))

    assert (report.answered.count, report.strictly_valid.count) == (2, 1)


def test_wrong_answers_begin_with_the_most_confident() -> None:
    wrong = report_of(DRAWN).wrong

    confidences = [max(one.probabilities) for one in wrong]
    assert confidences == sorted(confidences, reverse=True)
    assert {one.id for one in wrong} == {
        one.id for one in ROWS if one.option_ids[int(np.argmax(one.probabilities))] != one.expected
    }


def test_a_cost_is_the_price_of_the_time_between_answers() -> None:
    """3.60 an hour is 0.001 a second, and 1,000 decisions of half a second take 500 seconds."""
    rows = [row(f"e{i}", "a b", "a", (0.9, 0.1), client_seconds=0.5) for i in range(8)]

    serial = report_of(run(rows), hourly_price=3.6).cost
    four = report_of(run(rows, concurrency=4), hourly_price=3.6).cost
    # Half of what was asked came to nothing: what was answered pays for that.
    lost = [failure(f"f{i}", "a", client_seconds=0.5) for i in range(8)]
    half = report_of(run(rows, lost), hourly_price=3.6).cost

    assert serial is not None
    assert four is not None
    assert half is not None
    assert serial.per_thousand == pytest.approx(0.5)
    assert four.per_thousand == pytest.approx(0.125)
    assert half.per_thousand == pytest.approx(1.0)
    assert report_of(run(rows)).cost is None
    assert report_of(run([], lost), hourly_price=3.6).cost is None


@each_corner
def test_every_run_has_a_report(name: str, tmp_path: Path) -> None:
    made = replace(CORNERS[name], folder=tmp_path)

    report = write_report(made, hourly_price=2.0)

    values = json.loads((tmp_path / JSON_FILE).read_bytes(), parse_constant=_refuse)
    assert values["accuracy"]["count"] == report.accuracy.count
    assert values["manifest"]["format"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [HTML_FILE, JSON_FILE]
    checked = _checked((tmp_path / HTML_FILE).read_text(encoding="utf-8"))
    assert "script" not in checked.tags
    assert len(_shown(made)) > 0


def _refuse(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


class _Page(HTMLParser):
    """Reads a page strictly: tags close in order, and nothing points outside of the page."""

    _VOID = frozenset({"meta", "circle", "line", "rect", "polyline", "polygon"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.text: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {"src", "href", "action", "xlink:href", "onload"} & {name for name, _ in attrs}
        if tag not in self._VOID:
            self._open.append(tag)
        for _, value in attrs:
            assert value is None or ("url(" not in value and "nan" not in value.lower())

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._VOID:
            assert self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        assert "@import" not in data
        assert "url(" not in data
        if self._open and self._open[-1] != "style":
            self.text.append(data)


def _checked(text: str) -> _Page:
    checked = _Page()
    checked.feed(text)
    checked.close()
    assert checked._open == []
    return checked


def _shown(made: Run) -> str:
    screen = io.StringIO()
    Console(file=screen, width=80, color_system=None).print(summary(report_of(made)))
    return screen.getvalue()


def test_the_same_answers_give_the_same_bytes(tmp_path: Path) -> None:
    loaded = load_run(written(DRAWN, tmp_path / "one"))
    again = load_run(written(DRAWN, tmp_path / "two"))

    for made in (loaded, again):
        write_report(made)
    first = {name: (tmp_path / "one" / name).read_bytes() for name in (JSON_FILE, HTML_FILE)}
    write_report(loaded)

    for name, found in first.items():
        assert (tmp_path / "one" / name).read_bytes() == found
        assert (tmp_path / "two" / name).read_bytes() == found


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(DRAWN, folder=tmp_path)
    write_report(made)
    before = (tmp_path / JSON_FILE).read_bytes()

    def fail(path: Path, data: bytes) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(replace(CORNERS["one right"], folder=tmp_path))

    assert (tmp_path / JSON_FILE).read_bytes() == before


def test_the_page_has_the_figures_of_its_plots_as_text() -> None:
    report = report_of(DRAWN)

    text = " ".join(_checked(page(report)).text)

    for one in report.calibration.bins:
        if one.correct.value is not None:
            assert f"{one.correct.value * 100:.1f} %" in text
            assert f"{one.correct.low * 100:.1f}\u2013{one.correct.high * 100:.1f}" in text
    for band in report.latency.bands:
        assert f"{band.client.p95:.3g}" in text
        assert f"{band.container.p99:.3g}" in text
    for wrong in report.wrong[:100]:
        assert wrong.id in text
        assert all(f"{one:.4f}" in text for one in wrong.probabilities)


def test_of_very_many_wrong_answers_the_page_has_the_worst() -> None:
    rows = [
        row(f"wrong-{index:03}", "no yes", "no", (index / 1000, 1 - index / 1000))
        for index in range(300)
    ]

    text = " ".join(_checked(page(report_of(run(rows)))).text)

    assert "wrong-000" in text
    assert "wrong-250" not in text
    assert "200 less confident ones are in report.json." in text


def test_the_summary_fits_a_terminal_and_says_what_matters() -> None:
    report = report_of(DRAWN)

    shown = _shown(DRAWN)

    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    assert f"accuracy {report.accuracy.count / 3:.1f} % {report.accuracy.count} of 300" in words
    assert f"ECE, 10 equal bins {report.calibration.error:.3f}" in words
    assert "Confidences are too high" in words


def test_true_confidences_are_not_called_wrong() -> None:
    words = " ".join(_shown(run(drawn_rows(400, seed=2))).split())

    assert "Confidences show no fault" in words


def test_nothing_in_a_summary_steers_the_terminal() -> None:
    shown = _shown(CORNERS["hostile"])

    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_the_command_writes_the_report_of_a_run(tmp_path: Path) -> None:
    folder = written(DRAWN, tmp_path / "run")

    shown = ballot("report", str(folder), "--hourly-price", "1.36")
    as_json = ballot("report", str(folder), "--hourly-price", "1.36", "--json")

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1] == str(folder / HTML_FILE)
    values = json.loads((folder / JSON_FILE).read_bytes())
    assert json.loads(as_json.stdout) == values
    assert values["cost"]["hourly_price"] == 1.36
    assert values["accuracy"]["count"] == report_of(DRAWN).accuracy.count


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf"])
def test_what_is_no_price_is_refused(price: str, tmp_path: Path) -> None:
    ended = ballot("report", str(tmp_path), "--hourly-price", price)

    assert ended.returncode == 2
    assert f"--hourly-price {price} is no price" in ended.stderr


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    ended = ballot("report", str(tmp_path))

    assert ended.returncode != 0
    assert ended.stderr.startswith("ballot: there is no run in ")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def open_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Opens the page of a run of `CORNERS` without a network, and fails if it complains."""
    with chromium() as browser:

        def opened(name: str, **options: Any) -> Any:
            folder = tmp_path_factory.mktemp("report")
            write_report(replace(CORNERS[name], folder=folder))
            context = browser.new_context(offline=True, **options)
            shown = context.new_page()
            told: list[str] = []
            shown.on("console", lambda message: told.append(message.text))
            shown.on("pageerror", lambda error: told.append(str(error)))
            shown.on("dialog", lambda dialog: told.append(dialog.message))
            asked: list[str] = []
            shown.on("request", lambda request: asked.append(request.url))
            shown.goto((folder / HTML_FILE).as_uri())
            assert told == []
            assert asked == [(folder / HTML_FILE).as_uri()]
            return shown

        yield opened


@pytest.mark.parametrize("name", ["drawn", "nothing", "many options", "hostile"])
def test_the_page_opens_offline_and_fits_a_phone(open_page: Callable[..., Any], name: str) -> None:
    shown = open_page(name, viewport={"width": 375, "height": 700})

    assert shown.evaluate("document.documentElement.scrollWidth") == 375
    assert shown.locator("h1").is_visible()


def test_text_of_plots_can_be_read_at_a_phones_width(open_page: Callable[..., Any]) -> None:
    shown = open_page("drawn", viewport={"width": 375, "height": 700})

    heights = shown.evaluate(
        "[...document.querySelectorAll('svg.plot text')].map(t => t.getBoundingClientRect().height)"
    )
    assert len(heights) > 30
    assert min(heights) >= 10


def test_every_plot_stands_beside_a_table(open_page: Callable[..., Any]) -> None:
    pairs = open_page("drawn").evaluate(
        "[...document.querySelectorAll('svg.plot')].map("
        "plot => plot.closest('.pair').querySelectorAll('tbody tr').length)"
    )

    assert len(pairs) == 3
    assert all(pairs)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(open_page: Callable[..., Any], scheme: str) -> None:
    """Every contrast is at least WCAG 2.2's 4.5 to 1."""
    shown = open_page("drawn", color_scheme=scheme)

    colours = shown.evaluate(
        """[...document.querySelectorAll('h1, p, th, td, li, .tile b, .tile span, dt')].map(e => {
            let below = e;
            while (getComputedStyle(below).backgroundColor === 'rgba(0, 0, 0, 0)')
                below = below.parentElement || document.body;
            const card = getComputedStyle(e.closest('.card, .tile') || document.body);
            return [getComputedStyle(e).color, getComputedStyle(below).backgroundColor,
                card.backgroundColor];
        })"""
    )
    worst = min(
        _contrast(_rgb(ink)[:3], _over(_rgb(ground), _rgb(card)[:3]))
        for ink, ground, card in colours
    )
    assert worst >= 4.5


def _rgb(text: str) -> list[float]:
    """Return red, green, blue and opacity of a computed colour."""
    parts = text.strip("rgba()").replace(",", " ").replace("/", " ").split()
    numbers = [float(part) for part in parts]
    return numbers if len(numbers) == 4 else [*numbers, 1.0]


def _over(upper: list[float], lower: list[float]) -> list[float]:
    return [u * upper[3] + v * (1 - upper[3]) for u, v in zip(upper[:3], lower, strict=True)]


def _contrast(first: list[float], second: list[float]) -> float:
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[float]) -> float:
    """WCAG 2.2's relative luminance."""
    parts = [value / 255 for value in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
