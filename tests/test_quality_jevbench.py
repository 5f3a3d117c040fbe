"""`ballot bench jevbench` asks the pinned tasks and no others, and prints the article's row."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ballot.commands.bench import bench
from ballot.quality import jevbench
from ballot.quality.jevbench import BenchmarkError, Tier, fetch_tasks, read_tasks
from ballot.quality.runs import load_run
from tests.adapter_process import ROOT
from tests.cli_process import Scripted, ScriptedServer, ballot
from tests.evaluation import SAMPLE, Decider

# As published: fstandhartinger/jevbench at 1df665e, in bytes and SHA-256.
PUBLISHED = {
    "original.jsonl": "5c2414edb3006b8bfcb70fda433f0f9ca015759433849f8d3104328a1f7c4180",
    "easy.jsonl": "231df3c2c8e88a1a8c137ebe85de96ba70fabd330849098ac7b3c52c70b7172b",
    "hard.jsonl": "89e9e6becb33ed88c1de7d42dcc87531b2fb64cfaef4e1986faf7c37b3f80ebb",
}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Three files of four tasks each, pinned in place of the published ones."""
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    found = {name: b"".join(lines[place::3]) for place, name in enumerate(PUBLISHED)}
    found["easy.jsonl"] = found["easy.jsonl"].rstrip(b"\n")  # as a file may end
    tiers = tuple(Tier(name, hashlib.sha256(text).hexdigest()) for name, text in found.items())
    monkeypatch.setattr(jevbench, "TIERS", tiers)
    return found


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_the_pins_are_those_that_were_published() -> None:
    assert {tier.file: tier.sha256 for tier in jevbench.TIERS} == PUBLISHED
    assert jevbench.COMMIT.startswith("1df665e")
    assert f"/{jevbench.COMMIT}/datasets/public" in jevbench.BASE_URL


def test_a_local_copy_is_read_whole(tmp_path: Path, files: dict[str, bytes]) -> None:
    data = read_tasks(write(tmp_path, files))

    ids = [json.loads(line)["id"] for text in files.values() for line in text.splitlines()]
    assert [example.id for example in data.examples] == ids
    assert len(ids) == 12


def test_the_files_are_fetched(files: dict[str, bytes], tmp_path: Path) -> None:
    served = {name: Scripted(200, content) for name, content in files.items()}
    with ScriptedServer(Scripted(404), **served) as server:
        fetched = fetch_tasks(server.url)

    assert fetched == read_tasks(write(tmp_path, files))
    assert [request.path for request in server.received] == [f"/{name}" for name in files]


def test_a_changed_file_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    files["hard.jsonl"] = files["hard.jsonl"].replace(b"a", b"b", 1)

    with pytest.raises(BenchmarkError, match=r"hard\.jsonl .* SHA-256") as caught:
        read_tasks(write(tmp_path, files))

    assert caught.value.code == "other_data"


def test_a_missing_file_and_a_failed_fetch_are_told(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    del files["easy.jsonl"]
    with pytest.raises(BenchmarkError, match=r"easy\.jsonl: No such file"):
        read_tasks(write(tmp_path, files))
    with ScriptedServer(Scripted(404)) as server, pytest.raises(BenchmarkError, match="404"):
        fetch_tasks(server.url)
    with pytest.raises(BenchmarkError, match="cannot fetch"):
        fetch_tasks(server.url)  # nobody listens there any more


def preferred(task: dict[str, Any]) -> Any:
    """Return what the server answers, which finds the first option the most probable."""
    question = task["question"]
    if question["type"] == "choice":
        return next(iter(question["criteria"]))
    return {"noul": "yes", "score": 0}[question["type"]]


def test_the_command_asks_and_prints_the_articles_row(
    files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Decider() as server:
        out = tmp_path / "run"
        folder = write(tmp_path, files)
        assert bench("jevbench", url=server.url, data=folder, out=out) == 0

    tasks = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    right = sum(task["expected"] == preferred(task) for task in tasks)
    row = re.fullmatch(
        r"http://127\.0\.0\.1:\d+: (\d+) of (\d+) correct, p50 (\d+\.\d{3}) s, p95 (\d+\.\d{3}) s",
        capsys.readouterr().out.splitlines()[-1],
    )
    assert row is not None
    assert (int(row[1]), int(row[2])) == (right, 12)
    seconds = sorted(one.client_seconds for one in load_run(out).rows)
    assert seconds[5] - 0.001 <= float(row[3]) <= seconds[6] + 0.001
    assert float(row[3]) <= float(row[4]) <= seconds[-1] + 0.001


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    url = ("--url", "http://127.0.0.1:9")

    other = ballot("bench", "another", *url)
    empty = ballot("bench", "jevbench", "--data", str(tmp_path), *url)
    partial = ballot("bench", "jevbench", "--data", str(ROOT / "tests" / "data"), *url)

    assert other.returncode == 2
    assert "give jevbench" in other.stderr
    for ended in (empty, partial):
        assert ended.returncode != 0
        assert "original.jsonl: No such file" in ended.stderr
        assert "--data" in ended.stderr
