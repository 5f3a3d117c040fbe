"""Policies: what is accepted, what is not, and which results a policy is not for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballot import Policy, PolicyError
from ballot.quality.policy import Bound
from ballot.results import Result
from tests.labelled_runs import result_of, row
from tests.scripted_endpoint import MODEL

POLICY: dict[str, Any] = {
    "version": 1,
    "measure": "confidence",
    "threshold": 0.8,
    "options": [2, 4],
    "least_mass": 0.25,
    "bound": {
        "model_sha256": MODEL["sha256"],
        "prompt_version": "direct-options-v1",
        "orders": 1,
        "calibration_sha256": None,
    },
    "measured": {"accuracy": 0.96},
}
CALIBRATION = {"sha256": "c" * 64, "temperature": 1.5, "position_prior": False}


def answered(*probabilities: float, mass: float = 0.9, **fields: Any) -> Result:
    item = row(0, (0.0,) * len(probabilities), 0, mass=mass)
    return result_of(replace(item, probabilities=probabilities), **fields)


def policy(**changes: Any) -> Policy:
    return Policy.from_json({**POLICY, **changes})


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (answered(0.8, 0.2), "accept"),
        (answered(0.1, 0.9, 0.0), "accept"),
        (answered(0.79, 0.21), "fallback"),
        (answered(0.8, 0.2, mass=0.25), "accept"),
        (answered(0.99, 0.01, mass=0.24), "abstain"),
        # Five options: it was never measured with so many.
        (answered(0.96, 0.01, 0.01, 0.01, 0.01), "fallback"),
    ],
)
def test_a_confidence_is_judged(result: Result, verdict: str) -> None:
    assert policy().judge(result) == verdict


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (answered(0.75, 0.25), "accept"),
        (answered(0.25, 0.75), "accept"),
        (answered(0.74, 0.26), "fallback"),
        (answered(0.75, 0.125, 0.125), "accept"),
        (answered(0.5, 0.5), "fallback"),
    ],
)
def test_a_margin_is_judged(result: Result, verdict: str) -> None:
    assert policy(measure="margin", threshold=0.5).judge(result) == verdict


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model": {**MODEL, "sha256": "1" * 64}},
            f"model_sha256 is {'1' * 64}, the policy's is {'0' * 64}",
        ),
        (
            {"prompt_version": "criterion-first-v1"},
            "prompt_version is criterion-first-v1, the policy's is direct-options-v1",
        ),
        (
            {"calibration": CALIBRATION},
            f"calibration_sha256 is {'c' * 64}, the policy's is none",
        ),
    ],
)
def test_a_result_of_something_else_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy().judge(answered(0.9, 0.1, **fields))
    assert caught.value.code == "policy_mismatch"
    assert caught.value.message == f"this policy is not for this result: {message}"


def test_a_result_of_two_orders_is_refused_by_a_policy_of_one() -> None:
    result = answered(0.9, 0.1)
    with pytest.raises(PolicyError, match="orders is 2, the policy's is 1"):
        policy().judge(replace(result, orders=(result, result)))


def test_a_result_without_the_calibration_is_refused() -> None:
    calibrated = policy(bound={**POLICY["bound"], "calibration_sha256": "c" * 64})
    assert calibrated.judge(answered(0.9, 0.1, calibration=CALIBRATION)) == "accept"
    with pytest.raises(PolicyError, match="calibration_sha256 is none"):
        calibrated.judge(answered(0.9, 0.1))


def test_a_policy_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy().as_json()))
    assert Policy.load(path) == policy()
    assert json.loads(path.read_text()) == POLICY
    assert policy().bound == Bound.of(answered(0.9, 0.1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "policy.version is not 1"),
        ({"measure": "entropy"}, "policy.measure is not one of: confidence, margin"),
        ({"threshold": 1.5}, "policy.threshold is not within 0 and 1"),
        ({"threshold": True}, "policy.threshold is not a number"),
        ({"threshold": None}, "policy.threshold is not a number"),
        ({"options": [4, 2]}, "policy.options is not two numbers in order"),
        ({"options": [2]}, "policy.options is not two numbers in order"),
        ({"options": "2"}, "policy.options is not an array"),
        ({"least_mass": -1}, "policy.least_mass is not within 0 and 1"),
        ({"bound": None}, "policy.bound is not an object"),
        ({"bound": {**POLICY["bound"], "orders": "1"}}, "policy.bound.orders is not a whole"),
    ],
)
def test_a_broken_policy_is_told(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({**POLICY, **changes}))
    with pytest.raises(PolicyError) as caught:
        Policy.load(path)
    assert caught.value.code == "invalid_policy"
    assert message in caught.value.message


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"version": 1}'])
def test_what_is_no_policy_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(content)
    with pytest.raises(PolicyError, match=r"policy\.json"):
        Policy.load(path)


def test_a_policy_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No such file"):
        Policy.load(tmp_path / "policy.json")
