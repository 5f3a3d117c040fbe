"""Other people's judges of a System One server: the suite jevcompat, and TypeSafe's own SDK."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Noul,
    RetryPolicy,
    Score,
    TypeSafeAPIError,
    TypeSafeBadRequestError,
    TypeSafeClient,
    TypeSafeInternalServerError,
    TypeSafeNotFoundError,
    TypeSafeUnprocessableEntityError,
)

from tests.adapter_process import PATIENCE, ROOT, AdapterProcess
from tests.gguf_models import write_hybrid_model
from tests.test_load import open_request

NAME = "SmolLM2-135M-Instruct.Q4_1"
TICKET = "I was charged twice for my March invoice. Please refund me today."
# They are about a key, which is the gateway's to ask for: the adapter has none.
NOT_HERE = {"auth.bearer", "auth.missing", "auth.invalid"}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterProcess]:
    """The adapter with room for the 255 described options of jevcompat: 5,108 tokens.

    The model is a random one, small enough for those not to take a minute: the suite judges the
    API, and what it wants of answers holds for any model's.
    """
    model = tmp_path_factory.mktemp("model") / "qwen35-random.gguf"
    write_hybrid_model(model)
    with AdapterProcess(BALLOT_GGUF_PATH=str(model), BALLOT_CONTEXT_TOKENS="8192") as running:
        yield running.wait_ready()


def test_jevcompat_finds_the_adapter_conformant(roomy: AdapterProcess, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    jevcompat = Path(sys.executable).with_name("jevcompat")
    done = subprocess.run(
        [jevcompat, "test", roomy.url, "--json", report, "--timeout", "120"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(report.read_text())
    status = {item["id"]: item["status"] for item in found["results"]}
    assert {name for name, result in status.items() if result != "pass"} == NOT_HERE
    assert len(status) == 48
    assert found["summary"]["verdict"] == "conformant"


def sdk(url: str, **options: Any) -> TypeSafeClient:
    defaults = {"timeout": PATIENCE, "retry": RetryPolicy(max_retries=0)}
    return TypeSafeClient(api_key="any", base_url=url, **{**defaults, **options})


QUESTIONS: dict[str, Noul | Choice | Score] = {
    "refund": Noul(instructions="Is the customer asking for money back?"),
    "team": Choice(instructions="Which team?", criteria={"Billing": "Payments", "Technical": None}),
    "anger": Score(instructions="How angry?", criteria=["Calm", {"label": "Angry"}]),
}


def test_the_official_sdk_reads_every_answer(adapter: AdapterProcess) -> None:
    with sdk(adapter.url) as client:
        answer = client.system_one(state={"text": TICKET}, questions=QUESTIONS)

    assert answer.model == NAME
    assert 0 < answer.nouls["refund"].noul < 1
    assert answer.choices["team"].choice in {"Billing", "Technical"}
    assert sum(answer.choices["team"].probabilities.values()) == pytest.approx(1)
    assert answer.scores["anger"].legend == {0: "Calm", 1: {"label": "Angry"}}
    assert answer.scores["anger"].score == pytest.approx(answer.scores["anger"].probabilities[1])
    assert answer.usage.input_tokens is not None
    assert answer.usage.input_tokens > 150
    assert answer.usage.output_tokens == 0


def test_the_official_asynchronous_sdk_gets_the_same_bits(adapter: AdapterProcess) -> None:
    async def ask() -> Any:
        async with AsyncTypeSafeClient(
            api_key="any", base_url=adapter.url, timeout=PATIENCE
        ) as client:
            return await client.system_one(state=TICKET, questions=QUESTIONS)

    with sdk(adapter.url) as client:
        answer = client.system_one(state=TICKET, questions=QUESTIONS)
    assert asyncio.run(ask()).answers == answer.answers


def test_the_official_sdk_lists_the_model(adapter: AdapterProcess) -> None:
    with sdk(adapter.url) as client:
        models = client.models.list().models

    assert [model.name for model in models] == [NAME]


def test_the_official_sdk_raises_its_own_errors(adapter: AdapterProcess) -> None:
    with sdk(adapter.url) as client:
        with pytest.raises(TypeSafeUnprocessableEntityError) as invalid:
            client.system_one(state=TICKET, questions={"q": {"type": "score", "criteria": ["x"]}})
        with pytest.raises(TypeSafeBadRequestError, match="there is no model 'gpt-5' here"):
            client.system_one(state=TICKET, questions=QUESTIONS, model="gpt-5")
        with pytest.raises(
            TypeSafeAPIError, match=r"413 the prompt has .* the limit is 4096"
        ) as long:
            client.system_one(state="word " * 9000, questions=QUESTIONS)
    with sdk(f"{adapter.url}/v1") as client, pytest.raises(TypeSafeNotFoundError):
        client.system_one(state=TICKET, questions=QUESTIONS)

    assert "questions.q.score.criteria: there must be at least 2, not 1" in str(invalid.value)
    assert invalid.value.request_id is not None
    assert long.value.status == 413


def ask_until_refused(client: TypeSafeClient) -> None:
    while True:
        client.system_one(state=TICKET, questions=QUESTIONS)


def test_the_official_sdk_comes_back_when_told_to() -> None:
    running = AdapterProcess(BALLOT_MAX_QUEUE="0", BALLOT_BODY_TIMEOUT_SECONDS="3600")
    with running.wait_ready() as adapter:
        # A body that never ends holds the only permit.
        with (
            open_request(adapter.port, b"{", content_length=10_000),
            sdk(adapter.url) as client,
            pytest.raises(TypeSafeInternalServerError) as busy,
        ):
            ask_until_refused(client)
        retries = RetryPolicy(max_retries=20, timeout=PATIENCE)
        with sdk(adapter.url, retry=retries) as client:
            assert client.system_one(state=TICKET, questions=QUESTIONS).model == NAME

    assert (busy.value.status, busy.value.headers["retry-after"]) == (503, "1")
    assert "requests are being served, which is the limit" in str(busy.value)


def test_the_documented_example_runs(adapter: AdapterProcess) -> None:
    page = (ROOT / "docs" / "system-one.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    example = found[1].replace("127.0.0.1:8080", f"127.0.0.1:{adapter.port}")
    assert str(adapter.port) in example

    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True
    )
    noul, team, anger = done.stdout.split()
    assert 0 < float(noul) < 1
    assert team in {"billing", "tech"}
    assert 0 < float(anger) < 2
