"""A short run of every fuzz target, unguided: `make fuzz` runs them for long, guided by coverage.

What once was a finding is tried first, and each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguf_header
from tests.adapter_process import ROOT
from tests.fuzz import files
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

PATHS = ("client", "container", "lambda", "model", ".")
Edit = tuple[float, int, bytes]


@pytest.fixture(params=[*TARGETS.values()], ids=[*TARGETS])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


def damaged(data: bytes, edits: list[Edit]) -> bytes:
    """Return `data` with bytes cut out at some places, given as shares of it, and others put in."""
    for place, length, inserted in edits:
        start = round(place * len(data))
        data = data[:start] + inserted + data[start + length :]
    return data


def damages(target: Target) -> st.SearchStrategy[bytes]:
    edit = st.tuples(
        st.floats(0, 1),
        st.sampled_from([0, 0, 1, 2, 8, 40]),
        st.sampled_from(target.words) | st.binary(max_size=4),
    )
    seeds = st.sampled_from(target.seeds())
    return st.builds(damaged, seeds, st.lists(edit, max_size=4)) | st.binary(max_size=64)


def test_what_is_whole_is_taken_and_what_was_found_stays_mended(target: Target) -> None:
    check_all(target, [b"", *target.seeds(), *target.regressions])


# Hypothesis's own deadline would judge how fast this machine is.
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_input_is_read_rightly_or_refused(target: Target, data: Any) -> None:
    target.check(data.draw(damages(target)))


def temperature(value: float) -> bytes:
    changed = {"kind": "any", "options": [2, 9], "temperature": value}
    return json.dumps({**files.CALIBRATION, "temperatures": [changed]}).encode()


@pytest.mark.parametrize(
    ("name", "faulty", "fault", "data"),
    [
        ("strict-json", "adapter.strict_json._object", dict, b'{"a": 1, "a": 2}'),
        ("strict-json", "adapter.strict_json.MAX_DEPTH", 65, b"[" * 65 + b"]" * 65),
        ("native", "adapter.prompt._dumps", repr, None),
        ("native", "adapter.native.MIN_OPTIONS", 3, None),
        ("systemone", "adapter.systemone._highest", lambda _: 0, None),
        ("body", "adapter.body._gunzip", lambda raw, _: raw, None),
        ("gguf", "gguf_header._SCALARS", {**gguf_header._SCALARS, 4: ">I"}, None),
        ("manifest", "build_waiter.results._mismatch", lambda *_: "", b'{"sha256": "0"}'),
        ("source", "sources._is_file_name", lambda _: True, b'{"kind": "s3", "uri": "s3://bu/.."}'),
        ("calibration", "adapter.calibration.MOST_TEMPERATURE", 30.0, temperature(25.0)),
        ("calibration", "stacks.calibration_content.TEMPERATURES", (0.0, 30.0), temperature(25.0)),
    ],
)
def test_a_check_sees_a_fault(
    name: str, faulty: str, fault: object, data: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault, put into the code, is one that the check tells by `data` or else by a seed."""
    target = TARGETS[name]
    inputs = target.seeds() if data is None else [data]
    monkeypatch.setattr(faulty, fault)
    with pytest.raises((AssertionError, ValueError)):
        check_all(target, inputs)


def check_all(target: Target, inputs: Iterable[bytes]) -> None:
    for data in inputs:
        target.check(data)


def test_a_finding_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "finding").write_bytes(TARGETS["manifest"].regressions[0])
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--target", "manifest", "--replay", "finding"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(str(ROOT / name) for name in PATHS)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.returncode) == ("", 0), ended.stderr
