"""The README's commands, run as they stand: only the port is a free one."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.adapter_process import DEMO_MODEL, ROOT, AdapterProcess, environment

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


def test_start_command_starts_the_adapter() -> None:
    command = readme_command("adapter").strip()
    assert command.endswith("../.venv/bin/python -m adapter")
    assert "BALLOT_MODEL_DIR=../.build/models" in command
    assert DEMO_MODEL.parent == ROOT / ".build" / "models"


def test_demo_prints_both_examples_and_says_that_the_model_is_a_toy() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        env={**environment(), "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    for words in (
        "examples/support-route.json",
        "support-route: Which queue should handle this request?",
        "examples/shared-state.json",
        "refund-allowed: Does the policy allow a refund for this ticket?",
        "next-step: What should happen next with this ticket?",
        "is a toy",
        "The adapter has stopped.",
    ):
        assert words in done.stdout
    assert done.stdout.count("█") > 0


def test_demo_says_why_it_cannot_go_on() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        env={**environment(), "MODEL": str(ROOT / "README.md")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("demo: ")
    assert "is not a GGUF file" in done.stderr.replace("\n", " ")
