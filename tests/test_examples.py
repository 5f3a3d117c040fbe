"""The example scripts, run as their first lines say, against emulated endpoints and an adapter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from ballot.gateway import SageMakerTarget
from examples.tool_guard import OPTIONS, QUESTION
from tests.adapter_process import PATIENCE, ROOT, AdapterProcess
from tests.emulated_endpoints import EmulatedEndpoints, emulated_endpoints
from tests.gateway_server import RunningGateway, running_gateway

EXAMPLES = ROOT / "examples"
NOTHING: Mapping[str, str] = MappingProxyType({})


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedEndpoints]:
    with emulated_endpoints(tmp_path_factory.mktemp("emulator")) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(endpoints: EmulatedEndpoints) -> Iterator[RunningGateway]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in endpoints.exports.items():
            environment.setenv(name, value)
        with running_gateway(
            decisions=SageMakerTarget(endpoints.decision, endpoints.aws.emulator.region),
            chat=SageMakerTarget(endpoints.chat, endpoints.aws.emulator.region),
        ) as running:
            yield running


def run(
    script: str,
    *arguments: str,
    stdin: str = "",
    status: int = 0,
    variables: Mapping[str, str] = NOTHING,
) -> subprocess.CompletedProcess[str]:
    """Run an example and check its exit status."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client"), **variables},
    )
    assert done.returncode == status, done.stderr
    return done


def test_boto3(endpoints: EmulatedEndpoints, adapter: AdapterProcess) -> None:
    request = json.loads((EXAMPLES / "support-route.json").read_text())
    with adapter.client() as client:
        expected = client.post("/invocations", json=request).json()["result"]
    printed = run("with_boto3.py", endpoints.decision, variables=endpoints.exports).stdout

    assert [line.split() for line in printed.splitlines()] == [
        [option, f"{probability:.4f}"]
        for option, probability in zip(
            expected["option_ids"], expected["probabilities"], strict=True
        )
    ]


def test_boto3_tells_the_containers_own_error(endpoints: EmulatedEndpoints, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text('{"decision": {"id": "x"}}')
    failed = run(
        "with_boto3.py", endpoints.decision, str(request), status=1, variables=endpoints.exports
    )

    assert failed.stderr == "missing_field: decision.state is missing\n"


def test_ballot_through_sagemaker_and_over_http_agree(
    endpoints: EmulatedEndpoints, gateway: RunningGateway
) -> None:
    through_sagemaker = run(
        "with_ballot.py", endpoints.decision, variables=endpoints.exports
    ).stdout
    over_http = run("with_ballot.py", gateway.url).stdout

    assert through_sagemaker == over_http
    assert [line.partition(":")[0] for line in over_http.splitlines()] == ["team", "angry"]


def test_typesafe(gateway: RunningGateway) -> None:
    printed = run("with_typesafe.py", gateway.url).stdout.splitlines()

    assert printed[0] == "answered by SmolLM2-135M-Instruct.Q4_1"
    assert [line.split()[0] for line in printed[1:]] == ["refund", "team", "anger"]


def test_openai(gateway: RunningGateway) -> None:
    assert len(run("with_openai.py", gateway.url).stdout.split()) > 3


CALL = {"tool": "read_file", "path": "notes.txt"}


def test_the_guard_runs_only_what_is_surely_harmless(adapter: AdapterProcess) -> None:
    """The demo's model is no judge: whatever it says must lead to the verdict of the thresholds."""
    request = {
        "decision": {
            "id": "decision",
            "state": {"tool_call": CALL},
            "question": QUESTION,
            "options": [{"id": one.id, "description": one.description} for one in OPTIONS],
        },
        "scoring": {"orders": 2},
    }
    with adapter.client() as client:
        result = client.post("/invocations", json=request).json()["result"]
    harmless = result["probabilities"][0]
    is_sure = harmless >= 0.95 and result["allowed_token_mass"] >= 0.5 and result["orders_agree"]
    printed = run("tool_guard.py", adapter.url, json.dumps(CALL)).stdout

    assert printed == f"{'run' if is_sure else 'ask'} (harmless: {harmless:.3f})\n"


def test_the_guard_asks_where_the_policy_is_of_another_model(
    adapter: AdapterProcess, tmp_path: Path
) -> None:
    bound = {
        "model_sha256": "0" * 64,
        "prompt_version": "direct-options-v1",
        "orders": 2,
        "calibration_sha256": None,
    }
    policy = {
        **{"version": 1, "measure": "confidence", "threshold": 0.0, "options": [2, 2]},
        **{"least_mass": 0.0, "bound": bound, "measured": {}},
    }
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    printed = run("tool_guard.py", adapter.url, json.dumps(CALL), str(tmp_path / "policy.json"))

    assert printed.stdout == "ask (no judgement: policy_mismatch)\n"


def test_the_guard_asks_when_there_is_no_judgement() -> None:
    printed = run("tool_guard.py", "http://127.0.0.1:9", json.dumps(CALL)).stdout

    assert printed.startswith("ask (no judgement: ")


def test_the_router_keeps_the_order_and_sends_what_is_unclear_to_the_front_desk(
    adapter: AdapterProcess,
) -> None:
    tickets = ["Password reset mail never came.", "Two charges in March.", "Parcel is late."]
    lines = run("ticket_router.py", adapter.url, stdin="\n".join(tickets)).stdout.splitlines()

    assert [line.split("  ")[-1] for line in lines] == tickets
    for line in lines:
        queue, probability, *_ = line.split()
        assert queue == "front-desk" or float(probability) >= 0.7


def test_examples_readme_lists_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert [p.name for p in sorted(EXAMPLES.iterdir()) if p.name not in text] == ["README.md"]
