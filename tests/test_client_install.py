"""The client in a Python of its own: installed alone, it is light, complete, and works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.adapter_process import ROOT, AdapterProcess

BUILD_OUTPUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
NOT_CLIENT = ("llama_cpp", "gguf", "numpy", "jinja2", "aws_cdk", "constructs", "jsii", "adapter")


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command outside of this checkout and its settings; return what it prints."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of a Python into which only the client was installed."""
    folder = tmp_path_factory.mktemp("client")
    source, place = folder / "source", folder / "python"
    shutil.copytree(ROOT / "client", source, ignore=BUILD_OUTPUT)
    run([sys.executable, "-m", "venv", place], folder)
    run([place / "bin" / "python", "-m", "pip", "install", "--quiet", source], folder)
    return place / "bin"


def test_nothing_of_llama_cpp_or_the_cdk_comes_with_it(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(run([installed / "python", "-m", "pip", "list", "--format=json"], tmp_path))
    finding = (
        "import importlib.util, json, sys;"
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"
    )
    importable = json.loads(run([installed / "python", "-c", finding, *NOT_CLIENT], tmp_path))

    names = {package["name"] for package in listed}
    assert {"ballot", "boto3", "httpx", "rich", "starlette", "typer", "uvicorn"} <= names
    assert importable == []


def test_it_comes_whole(installed: Path, tmp_path: Path) -> None:
    place = run(
        [installed / "python", "-c", "import ballot; print(ballot.__path__[0])"], tmp_path
    ).strip()

    def files(folder: Path) -> set[str]:
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {str(path) for path in found if "__pycache__" not in path.parts}

    assert files(Path(place)) == files(ROOT / "client" / "ballot")
    assert Path(place).is_relative_to(installed.parent)


def test_it_decides(
    installed: Path, tmp_path: Path, adapter: AdapterProcess, support_route: dict[str, Any]
) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(support_route))

    printed = run(
        [installed / "ballot", "decide", request, "--url", adapter.url, "--json"], tmp_path
    )

    result = json.loads(printed)["result"]
    assert result["option_ids"] == ["account_access", "billing", "sales"]
    assert sum(result["probabilities"]) == pytest.approx(1)
