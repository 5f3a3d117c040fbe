"""The README's commands, run as they stand: only the port is a free one."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from scripts.demo import show_decisions, stack_event
from tests.adapter_process import ROOT, AdapterProcess, environment

README = (ROOT / "README.md").read_text()


def readme_command(name: str) -> str:
    match = re.search(rf"<!-- tested: {name} -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert match is not None, f"README.md has no block 'tested: {name}'"
    return match[1]


def test_curl_example_is_answered(adapter: AdapterProcess) -> None:
    command = readme_command("curl").replace("127.0.0.1:8080", f"127.0.0.1:{adapter.port}")
    assert str(adapter.port) in command

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)["result"]

    assert result["option_ids"] == ["account_access", "billing", "sales"]
    assert abs(sum(result["probabilities"]) - 1) < 1e-9


def test_the_ballot_command_shows_the_answer(adapter: AdapterProcess) -> None:
    command = readme_command("ballot").replace("127.0.0.1:8080", f"127.0.0.1:{adapter.port}")

    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )

    shown = re.findall(r"(account_access|billing|sales) +(0\.\d{4})", done.stdout)
    assert [name for name, _ in shown] == ["account_access", "billing", "sales"]
    assert sum(float(figure) for _, figure in shown) == pytest.approx(1, abs=2e-4)


def test_start_command_starts_the_adapter() -> None:
    command = readme_command("adapter").replace("-m adapter", "-m adapter selftest")
    assert "selftest" in command

    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT / "container",
        env={name: value for name, value in environment().items() if "BALLOT" not in name},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout.splitlines()[-1])["event"] == "model_loaded"


def test_demo_says_why_it_cannot_start() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        env={**environment(), "MODEL": str(ROOT / "README.md")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert "demo: " in done.stderr
    assert "is not a GGUF file" in done.stderr.replace("\n", " ")


def test_demo_shows_a_decision_as_bars(support_route: dict[str, Any]) -> None:
    result = {
        "probabilities": [0.75, 0.2, 0.05],
        "input_tokens": 130,
        "cached_tokens": 40,
        "allowed_token_mass": 0.045,
        "timing": {"forward_seconds": 0.2224},
    }
    console = Console(width=100, record=True, file=io.StringIO())

    show_decisions(console, "support-route.json", support_route, {"result": result})

    shown = [line.rstrip() for line in console.export_text().splitlines()]
    assert shown[1:6] == [
        "support-route: Which queue should handle this request?",
        "option          probability                            description",
        "account_access        0.750  ██████████████████░░░░░░  "
        "Account access and authentication support.",
        "billing               0.200  █████░░░░░░░░░░░░░░░░░░░  Billing and payment support.",
        "sales                 0.050  █░░░░░░░░░░░░░░░░░░░░░░░  Sales and product evaluation.",
    ]
    assert "130 tokens, 40 of them found in memory, 222 ms" in " ".join(shown)
    assert "the model was about to write something else" in " ".join(shown)


@pytest.mark.parametrize(
    ("line", "short"),
    [
        (
            "Ballot-local-chat | 5/8 | 7:29:08 PM | CREATE_COMPLETE | AWS::SageMaker::Model | "
            "Endpoint/Model (EndpointModel0F230181)",
            "Ballot-local-chat: Model create complete",
        ),
        ("Ballot-local-chat: deploying... [3/3]", "Ballot-local-chat: deploying... [3/3]"),
    ],
    ids=["event", "other"],
)
def test_demo_shortens_the_progress_of_a_deployment(line: str, short: str) -> None:
    assert stack_event(line) == short
