"""The calibration of an endpoint in cdk.json: shipped as it is, or refused at synth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from adapter.calibration import read_calibration as read_in_adapter
from adapter.decision import LAYOUTS, ORDERS
from adapter.errors import StartupError
from adapter.prompt import PROMPT_VERSIONS
from adapter.settings import read_settings
from stacks import calibration
from stacks.environment import Endpoint, read_environment
from stacks.reading import SettingsError
from tests.api_model import violations
from tests.invalid_environments import changed
from tests.synthesis import only, synthesize
from tests.test_calibration import CONTENT, DEMO_SHA256

HOT = {"kind": "any", "options": [2, 9], "temperature": 50}
PAIR = {"options": 2, "log_prior": [0.5, -0.5]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(CONTENT))
    return path


def endpoint(**settings: Any) -> Endpoint:
    changes = {f"endpoints/cpu/{key}": value for key, value in settings.items()}
    return read_environment("dev", changed(changes)).endpoints[0]


def problems(endpoint_name: str = "cpu", **settings: Any) -> Iterator[str]:
    changes = {f"endpoints/{endpoint_name}/{key}": value for key, value in settings.items()}
    with pytest.raises(SettingsError) as error:
        read_environment("dev", changed(changes))
    yield from str(error.value).split("\n  ")[1:]


def test_the_container_gets_the_text_and_the_model_stays_as_it_is(
    path: Path, tmp_path: Path
) -> None:
    plain = synthesize("dev", tmp_path / "plain", settings=changed({}))
    with_calibration = synthesize(
        "dev", tmp_path / "with", settings=changed({"endpoints/cpu/calibration": str(path)})
    )
    before, after = (
        only(synthesis.templates["Ballot-dev-cpu"], "AWS::SageMaker::Model")["PrimaryContainer"]
        for synthesis in (plain, with_calibration)
    )
    assert before["ModelDataSource"] == after["ModelDataSource"]
    assert after["Environment"] == {**before["Environment"], "BALLOT_CALIBRATION": path.read_text()}
    read = read_in_adapter(str(read_settings(after["Environment"]).calibration))
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    read.check_bound(model_sha256=DEMO_SHA256, scoring=read.scoring)
    asked = {"ModelName": "m", "PrimaryContainer": {"Environment": after["Environment"]}}
    assert violations("sagemaker", "CreateModel", asked) == []


def test_a_line_feed_at_the_end_does_not_matter(path: Path) -> None:
    text = path.read_text()
    path.write_text(f"{text}\n")
    assert endpoint(calibration=str(path)).calibration == text


def test_layout_and_orders_reach_the_adapter(path: Path, tmp_path: Path) -> None:
    bound = {"layout": "criterion_first", "orders": 2, "prompt_version": "criterion-first-v1"}
    path.write_text(json.dumps({**CONTENT, **bound}))
    settings = changed(
        {
            "endpoints/cpu/calibration": str(path),
            "endpoints/cpu/layout": "criterion_first",
            "endpoints/cpu/orders": 2,
        }
    )
    template = synthesize("dev", tmp_path / "cdk", settings=settings).templates["Ballot-dev-cpu"]
    container = only(template, "AWS::SageMaker::Model")["PrimaryContainer"]
    read = read_settings(container["Environment"])
    assert (read.layout, read.orders) == ("criterion_first", 2)
    assert read.calibration == path.read_text()


@pytest.mark.parametrize(
    ("bound", "difference"),
    [
        (
            {"model_sha256": "0" * 64},
            f'its model_sha256 is "{"0" * 64}", the endpoint\'s is "{DEMO_SHA256}"',
        ),
        (
            {"prompt_version": "direct-options-v0"},
            'its prompt_version is "direct-options-v0", the endpoint\'s is "direct-options-v1"',
        ),
        (
            {"layout": "criterion_first"},
            'its layout is "criterion_first", the endpoint\'s is "evidence_first"',
        ),
        ({"orders": 2}, "its orders is 2, the endpoint's is 1"),
        ({"orders": None}, "its orders is null, the endpoint's is 1"),
    ],
)
def test_the_field_that_differs_is_named(
    bound: dict[str, Any], difference: str, path: Path
) -> None:
    path.write_text(json.dumps({**CONTENT, **bound}))
    (problem,) = problems(calibration=str(path))
    assert problem.startswith("dev.endpoints.cpu.calibration: ")
    assert problem.endswith(f" is bound to something else: {difference}")


def test_the_endpoints_own_layout_and_orders_count(path: Path) -> None:
    found = list(problems(calibration=str(path), layout="criterion_first", orders=2))
    assert [problem.partition(": its ")[2].partition(",")[0] for problem in found] == [
        'prompt_version is "direct-options-v1"',
        'layout is "evidence_first"',
        "orders is 1",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read as JSON: Expecting value"),
        (b"\xff", "cannot be read as JSON: 'utf-8' codec can't decode"),
        (b"[]", "is no calibration of version 1, which `ballot calibrate` writes"),
        (b'{"version": 2}', "is no calibration of version 1"),
    ],
)
def test_what_is_no_calibration_is_told(content: bytes, reason: str, path: Path) -> None:
    path.write_bytes(content)
    (problem,) = problems(calibration=str(path))
    assert reason in problem


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"temperatures": []}, "has neither temperatures nor priors"),
        ({"temperatures": {}}, "temperatures must be a list"),
        ({"temperatures": [1]}, "temperatures[0] must be an object"),
        ({"temperatures": [{}]}, "temperatures[0] has no kind"),
        ({"temperatures": [HOT]}, "temperatures[0].temperature must be a number from 0.05 to 20"),
        ({"temperatures": [{**HOT, "kind": "x"}]}, "temperatures[0].kind must be one of native"),
        (
            {"temperatures": [{**HOT, "options": [5, 2]}]},
            "temperatures[0].options must be two whole",
        ),
        ({"priors": [{"options": 3, "log_prior": [1, 2]}]}, "priors[0].log_prior must have one"),
        ({"priors": [{**PAIR, "kinds": ["any"]}]}, "priors[0].kinds must be a list of native"),
        ({"priors": [PAIR, PAIR]}, "has the priors of a number of options twice"),
        ({"note": "x"}, 'it has "note", which is not known'),
    ],
)
def test_what_the_adapter_would_not_start_with_is_told(
    changes: dict[str, Any], fault: str, path: Path
) -> None:
    path.write_text(json.dumps({**CONTENT, **changes}))
    with pytest.raises(StartupError):
        read_in_adapter(str(path))
    (problem,) = problems(calibration=str(path))
    assert f"is no calibration: {fault}" in problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"version": 1, "version": 1}', "an object has a key twice"),
        ('{"version": NaN}', "NaN is not a JSON number"),
        ('{"version": 1e999}', "the number 1e999 is too large"),
        ('{"\\ud800": 1}', "a string holds half of a surrogate pair"),
        ('{"fitted": ' + "[" * 64 + "]" * 64 + "}", "it nests deeper than 64 levels"),
    ],
)
def test_json_that_parsers_disagree_about_is_told(text: str, reason: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(StartupError):
        read_in_adapter(str(path))
    (problem,) = problems(calibration=str(path))
    assert problem.endswith(f"cannot be read as JSON: {reason}")


def test_a_file_that_is_not_there_is_told() -> None:
    assert list(problems(calibration="nowhere/calibration.json")) == [
        'dev.endpoints.cpu.calibration: "nowhere/calibration.json" cannot be read as JSON: No such '
        "file or directory"
    ]


def test_a_path_is_meant_from_the_folder_of_cdk_json() -> None:
    (problem,) = problems(calibration="cdk.json")
    assert "is no calibration of version 1" in problem


def test_one_that_no_variable_holds_is_told(path: Path) -> None:
    path.write_text(json.dumps(CONTENT, indent=40))
    (problem,) = problems(calibration=str(path))
    assert f"has {len(path.read_text())} characters; a container's variable holds 1024" in problem


@pytest.mark.parametrize(
    ("key", "value"), [("calibration", "x.json"), ("layout", "evidence_first"), ("orders", 2)]
)
def test_a_chat_endpoint_has_none(key: str, value: object) -> None:
    (problem,) = problems("chat", **{key: value})
    assert problem == f"dev.endpoints.chat.{key}: {json.dumps(value)} is for decision endpoints"


def test_what_the_stacks_know_of_the_adapter_is_so() -> None:
    assert (calibration.LAYOUTS, calibration.ORDERS) == (LAYOUTS, ORDERS)
    assert calibration.PROMPT_VERSIONS == PROMPT_VERSIONS


def test_a_variable_holds_what_the_api_takes() -> None:
    shape = get_session().get_service_model("sagemaker").shape_for("EnvironmentValue")
    assert shape.metadata["max"] == calibration.MOST_CHARACTERS
