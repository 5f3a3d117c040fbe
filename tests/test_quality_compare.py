"""Runs side by side: the pairs, their test, what differs, and what `ballot compare` shows of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats

from ballot.quality.compare import Comparison, ComparisonError, compare
from ballot.quality.figures import report_of
from ballot.quality.runs import Run, load_run
from tests.cli_process import ballot
from tests.made_runs import drawn_rows, failure, row, run, written


def answers(pattern: str, *, options: str = "no yes", prefix: str = "e") -> Run:
    """Return a run of decisions where yes is right, answered at 0.8: `+` right, `-` wrong."""
    rows = []
    for index, mark in enumerate(pattern):
        yes = 0.8 if mark == "+" else 0.2
        chances = (1 - yes, yes) if options.split()[1] == "yes" else (yes, 1 - yes)
        rows.append(row(f"{prefix}{index}", options, "yes", chances))
    return run(rows)


def counts(comparison: Comparison) -> tuple[int, ...]:
    (against,) = comparison.against_first
    return (
        against.common,
        against.both_right,
        against.only_first_right,
        against.only_this_right,
        against.both_wrong,
    )


def test_pairs_are_counted_and_tested() -> None:
    comparison = compare({"old": answers("++++--------"), "new": answers("+++-++++++--")})

    assert counts(comparison) == (12, 3, 1, 6, 2)
    assert comparison.against_first[0].p_value == pytest.approx(
        scipy.stats.binomtest(1, 7, 0.5).pvalue
    )
    assert comparison.reports[0] == report_of(answers("++++--------"))


def test_only_the_common_examples_are_paired() -> None:
    first = answers("++--")
    second = replace(first, rows=first.rows[1:3] + answers("+", prefix="other").rows)

    comparison = compare({"first": first, "second": second})

    assert counts(comparison) == (2, 1, 0, 0, 1)
    assert comparison.differences == ()


def test_an_order_of_the_options_makes_no_other_example() -> None:
    comparison = compare({"a": answers("+-"), "b": answers("+-", options="yes no")})

    assert counts(comparison) == (2, 1, 0, 0, 1)
    assert comparison.against_first[0].other_examples == 0


def test_examples_that_only_share_their_id_are_left_out_and_counted() -> None:
    first = answers("+++")
    kept, other_label, other_options = first.rows
    second = replace(
        first,
        rows=(
            kept,
            replace(other_label, expected="no"),
            row(other_options.id, "no maybe yes", "yes", (0.1, 0.1, 0.8)),
        ),
    )

    comparison = compare({"first": first, "second": second})

    assert counts(comparison) == (1, 1, 0, 0, 0)
    assert comparison.against_first[0].other_examples == 2


def test_no_answer_is_a_wrong_answer() -> None:
    first = answers("++")
    second = run(first.rows[:1], [failure("e1", "yes")])

    comparison = compare({"first": first, "second": second})

    assert counts(comparison) == (2, 1, 1, 0, 0)
    (difference,) = comparison.differences
    assert difference.id == "e1"
    assert difference.answers[0] is not None
    assert difference.answers[1] is None


def test_the_decisions_furthest_apart_come_first() -> None:
    def answered(*yes: float) -> Run:
        return run([row(f"e{i}", "no yes", "yes", (1 - p, p)) for i, p in enumerate(yes)])

    comparison = compare({"a": answered(0.6, 0.9, 0.9), "b": answered(0.4, 0.1, 0.8)})

    assert [one.id for one in comparison.differences] == ["e1", "e0"]
    assert comparison.differences[0].spread == pytest.approx(0.8)
    assert [one and one.is_correct for one in comparison.differences[0].answers] == [True, False]


def test_other_data_is_told() -> None:
    first = answers("+")
    same = compare({"a": first, "b": first})
    other = compare({"a": first, "b": run(first.rows, data_sha256="e" * 64)})

    assert same.against_first[0].same_data
    assert not other.against_first[0].same_data


def test_every_run_is_held_against_the_first() -> None:
    comparison = compare({"a": answers("+-"), "b": answers("++"), "c": answers("--")})

    assert [one.name for one in comparison.against_first] == ["b", "c"]
    assert [one.only_this_right for one in comparison.against_first] == [1, 0]
    assert [one.only_first_right for one in comparison.against_first] == [0, 1]


def test_one_run_is_nothing_to_compare() -> None:
    with pytest.raises(ComparisonError) as caught:
        compare({"a": answers("+")})

    assert caught.value.code == "too_few_runs"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two runs over the same 60 examples; the second is sharper and worse."""
    first = run(drawn_rows(60, seed=4))
    rows = [
        replace(one, probabilities=one.probabilities[::-1]) if index % 3 == 0 else one
        for index, one in enumerate(first.rows)
    ]
    return str(written(first, tmp_path / "cpu")), str(written(run(rows), tmp_path / "gpu"))


def test_the_command_shows_the_table_the_test_and_what_differs(folders: tuple[str, str]) -> None:
    shown = ballot("compare", *folders, "--top", "2")

    assert (shown.returncode, shown.stderr) == (0, "")
    comparison = compare({"cpu": _loaded(folders[0]), "gpu": _loaded(folders[1])})
    (against,) = comparison.against_first
    accuracy = comparison.reports[1].accuracy
    assert "cpu: Qwen_Qwen3.5-4B-Q4_K_M.gguf, CPU, evidence_first, 1 order\n" in shown.stdout
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["gpu", f"{accuracy.count}/60", f"{100 * accuracy.count / 60:.1f}"] in [
        line[:3] for line in lines
    ]
    assert f"gpu alone is right on {against.only_this_right}," in shown.stdout
    assert f"p = {against.p_value:.3f} (McNemar, exact)" in shown.stdout
    ids = [difference.id for difference in comparison.differences]
    assert [line[0] for line in lines if line and line[0] in ids] == ids[:2]
    assert f"and {len(ids) - 2} more: --all shows them" in shown.stdout


def test_the_command_shows_all_that_differs(folders: tuple[str, str]) -> None:
    shown = ballot("compare", *folders, "--all").stdout

    differences = compare({"cpu": _loaded(folders[0]), "gpu": _loaded(folders[1])}).differences
    assert all(difference.id in shown for difference in differences)
    assert "more: --all" not in shown


def test_equal_runs_differ_in_nothing(folders: tuple[str, str], tmp_path: Path) -> None:
    again = written(_loaded(folders[0]), tmp_path / "again")

    shown = ballot("compare", folders[0], str(again)).stdout

    assert "p = 1.000 (McNemar, exact): no difference" in shown
    assert "Every decision that all runs have is answered alike." in shown


def test_the_command_writes_json(folders: tuple[str, str]) -> None:
    shown = json.loads(ballot("compare", *folders, "--json").stdout)

    comparison = compare({"cpu": _loaded(folders[0]), "gpu": _loaded(folders[1])})
    assert shown["names"] == ["cpu", "gpu"]
    assert shown["against_first"][0]["p_value"] == comparison.against_first[0].p_value
    assert shown["reports"][1]["accuracy"]["count"] == comparison.reports[1].accuracy.count
    assert len(shown["differences"]) == len(comparison.differences)


def test_runs_with_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    paths = [str(written(answers("+-"), tmp_path / place / "run")) for place in ("a", "b")]

    shown = json.loads(ballot("compare", *paths, "--json").stdout)

    assert shown["names"] == paths


def test_wrong_usage_is_told(folders: tuple[str, str], tmp_path: Path) -> None:
    usage = {
        ("compare", folders[0]): "one run is nothing to compare",
        ("compare", folders[0], folders[0]): f"{folders[0]} is given twice",
        ("compare", *folders, "--top", "-1"): "--top -1 is no number of decisions",
    }
    for arguments, says in usage.items():
        ended = ballot(*arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert says in ended.stderr

    missing = ballot("compare", folders[0], str(tmp_path / "none"))
    assert missing.returncode != 0
    assert "there is no run in" in missing.stderr


def _loaded(folder: str) -> Run:
    return load_run(Path(folder))
