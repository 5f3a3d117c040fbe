"""A run's folder keeps every answer, is never another run's, and is read in the data's order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballot.decision import Scoring
from ballot.errors import ScoringFailed, TransportFailed
from ballot.quality.examples import Example, parse_jsonl
from ballot.quality.runs import Record, RunError, Settings, load_run, open_run
from ballot.results import Result
from ballot.wire import Fields
from tests.adapter_process import ROOT
from tests.cli_process import MODEL
from tests.evaluation import decide, native_line

SETTINGS = Settings(
    data_name="data.jsonl",
    data_sha256="ab" * 32,
    mapping_sha256=None,
    examples=3,
    target_kind="url",
    target="http://127.0.0.1:8080",
    scoring=Scoring(),
    concurrency=1,
)
LINES = [native_line(f"e-{index}", family=f"family-{index}") for index in range(3)]
EXAMPLES: tuple[Example, ...] = parse_jsonl(
    "d", "\n".join(map(json.dumps, LINES)).encode()
).examples


def answer(index: int, **more: Any) -> Result:
    decision = json.loads(json.dumps(EXAMPLES[index].decision.as_json()))
    return Result.from_answer(Fields.of(decide(decision, **more), "result"))


def keep(record: Record, index: int, **more: Any) -> None:
    record.keep_result(index, EXAMPLES[index], answer(index, **more), 0.5 + index)


def write_run(folder: Path, *indexes: int, settings: Settings = SETTINGS) -> Path:
    with open_run(folder, settings) as record:
        for index in indexes:
            keep(record, index)
    return folder


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(RunError) as caught:
        act()
    return caught.value.code


def test_a_finished_run_says_what_was_answered(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with open_run(folder, SETTINGS) as record:
        keep(record, 0)
        error = ScoringFailed("no finite logits", code="scoring_failed", status=500)
        record.keep_error(1, EXAMPLES[1], error, 1.5, retryable=False)
        keep(record, 2, mass=0.75)

    run = load_run(folder)

    first, last = run.rows
    assert (first.id, first.family, first.expected, first.kind) == (
        "e-0",
        "family-0",
        "green",
        "native",
    )
    assert first.option_ids == ("red", "green", "blue")
    assert first.probabilities == (4 / 7, 2 / 7, 1 / 7)
    assert (first.client_seconds, first.container_seconds) == (0.5, 0.415)
    assert (first.input_tokens, first.cached_tokens) == (143, 71)
    assert (last.id, last.allowed_token_mass) == ("e-2", 0.75)
    [failure] = run.failures
    assert (failure.id, failure.code, failure.status) == ("e-1", "scoring_failed", 500)
    assert run.manifest.settings == SETTINGS
    assert run.manifest.served is not None
    assert run.manifest.served.model.sha256 == MODEL["sha256"]
    assert run.manifest.served.layout == "evidence_first"
    assert run.manifest.served.calibration_sha256 is None


def test_every_answer_is_kept_as_it_came(tmp_path: Path) -> None:
    raw = decide(LINES[0]["decision"], x_new={"of": [1, 2.5, None]})
    with open_run(tmp_path, SETTINGS) as record:
        record.keep_result(0, EXAMPLES[0], Result.from_answer(Fields.of(raw, "r")), 0.1)

    [line] = (tmp_path / "answers.jsonl").read_text().splitlines()

    assert json.loads(line)["result"] == raw


def test_both_orders_are_read(tmp_path: Path) -> None:
    shares = {"probabilities": [0.25, 0.5, 0.25], "option_logits": [1.0, 2.0, 1.0]}
    order = {**decide(LINES[0]["decision"]), **shares}
    with open_run(tmp_path, replace(SETTINGS, examples=1)) as record:
        keep(record, 0, orders=[order, order], orders_agree=False)

    run = load_run(tmp_path)

    assert [one.probabilities for one in run.rows[0].orders] == [(0.25, 0.5, 0.25)] * 2
    assert run.rows[0].orders_agree is False
    assert run.manifest.served is not None
    assert run.manifest.served.orders == 2


def test_the_order_in_which_answers_came_does_not_matter(tmp_path: Path) -> None:
    straight = load_run(write_run(tmp_path / "straight", 0, 1, 2))
    mixed = load_run(write_run(tmp_path / "mixed", 2, 0, 1))

    assert mixed.rows == straight.rows


def test_a_torn_last_line_is_asked_again(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 1)
    answers = tmp_path / "answers.jsonl"
    whole = answers.read_bytes()
    second = whole.index(b"\n") + 1

    for end in (second + 1, second + 200, len(whole) - 1):
        answers.write_bytes(whole[:end])
        with open_run(tmp_path, SETTINGS) as record:
            assert record.done == {0}
            keep(record, 1)
        assert answers.read_bytes() == whole


def test_a_failure_is_asked_again_only_if_no_answer_came(tmp_path: Path) -> None:
    lost = TransportFailed("reset", code="connection_failed", retryable=True)
    with open_run(tmp_path, SETTINGS) as record:
        record.keep_error(0, EXAMPLES[0], lost, 0.1, retryable=True)
        record.keep_error(1, EXAMPLES[1], lost, 0.1, retryable=False)
        keep(record, 2)

    with open_run(tmp_path, SETTINGS) as record:
        assert record.done == {1, 2}
        keep(record, 0)

    run = load_run(tmp_path)
    assert [row.id for row in run.rows] == ["e-0", "e-2"]
    assert [failure.id for failure in run.failures] == ["e-1"]


def test_other_settings_are_refused_and_every_difference_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, 0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = replace(
        SETTINGS,
        data_sha256="cd" * 32,
        scoring=Scoring(orders=2, layout="criterion_first"),
        concurrency=4,
        target="http://127.0.0.1:9090",
    )

    with pytest.raises(RunError) as caught, open_run(tmp_path, other):
        pass

    assert caught.value.code == "run_differs"
    for told in (
        f'data_sha256 was "{"ab" * 32}" and is "{"cd" * 32}"',
        "scoring.orders was not given and is 2",
        'scoring.layout was not given and is "criterion_first"',
        "concurrency was 1 and is 4",
        'target was "http://127.0.0.1:8080" and is "http://127.0.0.1:9090"',
    ):
        assert told in caught.value.message
    assert "target_kind" not in caught.value.message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_may_be_renamed(tmp_path: Path) -> None:
    write_run(tmp_path, 0)

    with open_run(tmp_path, replace(SETTINGS, data_name="renamed.jsonl")) as record:
        assert record.done == {0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": {**MODEL, "sha256": "0" * 64}}, "model.sha256 was"),
        ({"model": {**MODEL, "gpu_layers": 33}}, "model.gpu_layers was 0 and is 33"),
        ({"prompt_version": "criterion-first-v1"}, "prompt_version was"),
        (
            {"calibration": {"sha256": "ee", "temperature": 2.0, "position_prior": False}},
            "calibration_sha256 was not given",
        ),
    ],
)
def test_an_answer_of_another_model_is_not_kept(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    write_run(tmp_path, 0)
    before = (tmp_path / "answers.jsonl").read_bytes()

    with (
        pytest.raises(RunError) as caught,
        open_run(tmp_path, SETTINGS) as record,
    ):
        keep(record, 1, **change)

    assert caught.value.code == "run_differs"
    assert told in caught.value.message
    assert (tmp_path / "answers.jsonl").read_bytes() == before


def test_instances_of_one_endpoint_may_have_other_threads(tmp_path: Path) -> None:
    with open_run(tmp_path, SETTINGS) as record:
        keep(record, 0)
        keep(record, 1, model={**MODEL, "threads": 32})
        keep(record, 2)

    assert len(load_run(tmp_path).rows) == 3


def test_an_unfinished_run_is_no_result(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 2)

    with pytest.raises(RunError, match="1 of 3") as caught:
        load_run(tmp_path)

    assert caught.value.code == "run_unfinished"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    assert code_of(lambda: write_run(tmp_path, 0)) == "not_a_run"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert code_of(lambda: load_run(tmp_path)) == "no_run"
    assert code_of(lambda: load_run(tmp_path / "nowhere")) == "no_run"


def test_a_run_begins_where_one_was_killed_before_its_manifest_was_whole(tmp_path: Path) -> None:
    (tmp_path / "manifest.json.new").write_text('{"format"')

    assert len(load_run(write_run(tmp_path, 0, 1, 2)).rows) == 3


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"index": 9}',
        '{"index": 1, "id": "e-1", "kind": "native", "expected": "red", "client_seconds": 1}',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    write_run(tmp_path, 0, 1, 2)
    answers = tmp_path / "answers.jsonl"
    lines = answers.read_text().splitlines()
    answers.write_text("\n".join([lines[0], line, lines[2], ""]))

    with pytest.raises(RunError, match="line 2 is broken") as caught:
        load_run(tmp_path)

    assert caught.value.code == "broken_run"
    assert code_of(lambda: write_run(tmp_path)) == "broken_run"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 2}', '{"format": 1}', "[" * 100_000],
    ids=lambda text: text[:20],
)
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    write_run(tmp_path, 0, 1, 2)
    (tmp_path / "manifest.json").write_text(text)

    assert code_of(lambda: load_run(tmp_path)) == "broken_run"
    assert code_of(lambda: write_run(tmp_path)) == "broken_run"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_two_processes_are_not_at_one_run(tmp_path: Path) -> None:
    script = (
        "import sys; from tests.test_quality_runs import *\n"
        "with open_run(Path(sys.argv[1]), SETTINGS): print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}:{ROOT / 'container'}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert code_of(lambda: write_run(tmp_path, 0)) == "run_in_use"
        other.kill()
        other.wait()

    assert len(load_run(write_run(tmp_path, 0, 1, 2)).rows) == 3


def test_nothing_is_kept_of_a_run_that_is_over(tmp_path: Path) -> None:
    with open_run(tmp_path, SETTINGS) as record:
        keep(record, 0)

    assert code_of(lambda: keep(record, 1)) == "run_over"
    assert len((tmp_path / "answers.jsonl").read_bytes().splitlines()) == 1
