"""`ballot calibrate` and `ballot threshold`, run on the folder of a run as their users do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapter.calibration import read_calibration
from ballot import Policy
from tests.cli_process import ballot
from tests.labelled_runs import drawn_rows, result_of, row, surely_rows, write_run
from tests.scripted_endpoint import MODEL
from tests.test_quality_priors import BIAS, two_orders


@pytest.fixture(scope="module")
def overconfident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = drawn_rows(400, temperature=2.5, seed=1)
    return write_run(tmp_path_factory.mktemp("run") / "overconfident", rows)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "calibrated", surely_rows(1000, seed=5))


# --- calibrate


def test_a_calibration_is_written_and_told(overconfident: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    ended = ballot("calibrate", str(overconfident), "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == f"{out} is written\n"
    assert ended.stdout.startswith("choice, 3 options, 400 examples: kept\n  temperature 2.")
    assert "all answers, out of fold\n  NLL " in ended.stdout
    read = read_calibration(str(out))
    assert read.model_sha256 == MODEL["sha256"]
    assert read.temperatures[0].value == pytest.approx(2.5, rel=0.3)


def test_the_same_in_json(overconfident: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    ended = ballot("calibrate", str(overconfident), "--out", str(out), "--json")
    answer = json.loads(ended.stdout)
    assert answer["calibration"] == json.loads(out.read_text())
    assert answer["slices"][0]["verdict"] == "kept"
    assert answer["out_of_fold"]["ece"]["after"] < answer["out_of_fold"]["ece"]["before"]


def test_no_gain_is_no_calibration(calibrated: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    ended = ballot("calibrate", str(calibrated), "--out", str(out))
    assert ended.returncode == 1
    assert "not kept: answers out of fold are not shown to get better" in ended.stdout
    assert ended.stderr == (
        "ballot: no calibration is written: nothing is shown to make the answers better; "
        "label more decisions, or leave the probabilities as they are\n"
    )
    assert not out.exists()


def test_too_little_data_is_no_calibration(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", drawn_rows(40, temperature=2.5, seed=1))
    ended = ballot("calibrate", str(run), "--out", str(tmp_path / "c.json"))
    assert ended.returncode == 1
    assert "40 examples in 40 groups; a temperature needs 100 in 20" in ended.stdout


@pytest.mark.parametrize("command", [("calibrate",), ("threshold", "--target-accuracy", "0.9")])
def test_a_file_that_is_there_is_left_alone(
    command: tuple[str, ...], overconfident: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    out.write_text("mine")
    ended = ballot(*command, str(overconfident), "--out", str(out))
    assert (ended.returncode, out.read_text()) == (2, "mine")
    assert ended.stderr == (f"ballot: {out} is there already; name another file, or delete it\n")


@pytest.mark.parametrize("command", [("calibrate",), ("threshold", "--target-accuracy", "0.9")])
def test_a_folder_that_cannot_be_written_is_told(
    command: tuple[str, ...], calibrated: Path, overconfident: Path, tmp_path: Path
) -> None:
    run = overconfident if command == ("calibrate",) else calibrated
    ended = ballot(*command, str(run), "--out", str(tmp_path / "no" / "out.json"))
    assert ended.returncode == 2
    assert "cannot write" in ended.stderr
    assert "No such file or directory" in ended.stderr


@pytest.mark.parametrize("command", [("calibrate",), ("threshold", "--target-accuracy", "0.9")])
def test_what_is_no_run_is_told(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = ballot(*command, str(tmp_path), "--out", str(tmp_path / "out.json"))
    assert ended.returncode != 0
    assert ended.stderr.startswith(f"ballot: there is no run in {tmp_path}")
    assert ended.stderr.count("\n") == 1


def test_a_prompt_that_is_not_known_is_told(overconfident: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in overconfident.iterdir():
        text = file.read_text().replace("direct-options-v1", "direct-options-v9")
        (run / file.name).write_text(text.replace('"layout": "evidence_first"', '"layout": null'))
    ended = ballot("calibrate", str(run), "--out", str(tmp_path / "out.json"))
    assert ended.returncode == 2
    assert "the prompt version direct-options-v9 is not known here; update ballot" in ended.stderr


# --- threshold


def test_a_policy_is_written_and_judges(calibrated: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy.json"
    ended = ballot("threshold", str(calibrated), "--target-accuracy", "0.9", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("accept at a confidence of 0.")
    assert "(95 %, Clopper-Pearson)" in ended.stdout
    assert "of 500 held-out answers" in ended.stdout
    assert ended.stderr == (
        f"{out} is written. This is no authorization: it says how often answers like these were "
        "right, not what may be done with them.\n"
    )
    policy = Policy.load(out)
    assert policy.measured["asked"] == {"target_accuracy": 0.9}
    assert policy.judge(result_of(row(0, (9.0, 0.0), 0))) == "accept"
    assert policy.judge(result_of(row(0, (0.1, 0.0), 0))) == "fallback"


def test_costs_choose_a_policy(calibrated: Path, tmp_path: Path) -> None:
    costs, out = tmp_path / "costs.json", tmp_path / "policy.json"
    costs.write_text('{"right": 0, "wrong": 5, "fallback": 1}')
    ended = ballot(
        "threshold", str(calibrated), "--cost", str(costs), "--by", "margin", "--out", str(out),
        "--least-mass", "0.5", "--json",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["policy"] == json.loads(out.read_text())
    assert answer["chosen"]["saving"]["low"] > 0
    policy = Policy.load(out)
    # A wrong one is worth five fallbacks: accept from a confidence of 0.8 on, a margin of 0.6.
    assert policy.threshold == pytest.approx(0.6, abs=0.15)
    assert (policy.measure, policy.least_mass) == ("margin", 0.5)


def test_a_target_out_of_reach_is_no_policy(calibrated: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy.json"
    ended = ballot("threshold", str(calibrated), "--target-accuracy", "0.999", "--out", str(out))
    assert ended.returncode == 1
    assert ended.stderr.startswith("ballot: no policy is written: no confidence is shown to give")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --target-accuracy and --cost; see --help"),
        (("--target-accuracy", "1"), "--target-accuracy 1 can be shown by no number of answers"),
        (("--target-accuracy", "nan"), "--target-accuracy nan can be shown by no number"),
        (("--target-accuracy", "0.9", "--by", "entropy"), "--by entropy is not offered; give"),
        (("--target-accuracy", "0.9", "--least-mass", "2"), "--least-mass 2 is no share"),
        (("--cost", "/nowhere/costs.json"), "cannot read /nowhere/costs.json"),
    ],
)
def test_wrong_options_are_told(
    arguments: tuple[str, ...], message: str, calibrated: Path, tmp_path: Path
) -> None:
    ended = ballot("threshold", str(calibrated), "--out", str(tmp_path / "p.json"), *arguments)
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"right": 0, "wrong": 5}',
        '{"right": 0, "wrong": "5", "fallback": 1}',
        '{"right": 0, "wrong": true, "fallback": 1}',
        '{"right": 0, "wrong": 5, "fallback": 1, "abstain": 2}',
    ],
)
def test_what_is_no_costs_is_told(content: Any, calibrated: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(content)
    ended = ballot(
        "threshold", str(calibrated), "--cost", str(costs), "--out", str(tmp_path / "p.json")
    )
    assert ended.returncode == 2
    assert f"{costs} is no costs; give an object of three numbers" in ended.stderr


# --- one order


def test_priors_are_written_for_one_order(tmp_path: Path) -> None:
    rows = two_orders(500, bias=BIAS, seed=5, temperature=2)
    run = write_run(tmp_path / "run", rows)
    out = tmp_path / "calibration.json"
    ended = ballot("calibrate", str(run), "--one-order", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("places of 4 options, 500 examples: kept\n  log prior +1.")
    assert "\n  flips 0." in ended.stdout
    read = read_calibration(str(out))
    assert (read.scoring.orders, len(read.priors)) == (1, 1)


def test_priors_of_one_order_are_refused(overconfident: Path, tmp_path: Path) -> None:
    ended = ballot("calibrate", str(overconfident), "--one-order", "--out", f"{tmp_path}/c.json")
    assert ended.returncode == 2
    assert ended.stderr == (
        "ballot: --one-order needs a run of two orders; make one: ballot evaluate --orders 2\n"
    )
