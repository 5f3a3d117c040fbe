"""Faults of what scores, in live adapters: each has one outcome, and no answer is ever wrong."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import numpy as np
import pytest

from adapter import seal
from adapter.artifact import Artifact, digest
from adapter.seal import Seal
from tests.adapter_process import PATIENCE, ROOT, AdapterProcess
from tests.gguf_models import BYTES_TEMPLATE, tiny_tensors, write_tiny_model
from tests.test_load import metric, open_request, read_response, request_for, wait_for_waiting

FAULTY = ROOT / "tests" / "faulty_adapter.py"
# A byte that is in no other prompt here, and the token that it is.
POISON, POISON_TOKEN = "~", 3 + ord("~")


def adapter_on(model: Path, **variables: Any) -> AdapterProcess:
    return AdapterProcess(BALLOT_GGUF_PATH=str(model), BALLOT_THREADS="1", **variables)


def bits(response: httpx.Response) -> Any:
    result = response.json()["result"]
    return result["option_logits"], result["allowed_token_mass"]


def score(client: httpx.Client, request: Any) -> httpx.Response:
    return client.post("/invocations", json=request)


def outcome(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


# --- the process is killed


def test_callers_of_a_killed_process_get_no_answer_and_its_successor_gives_the_same_bits(
    byte_model: Path, support_route: dict[str, Any], pool: ThreadPoolExecutor
) -> None:
    # 3,500 tokens, in several decodes each.
    long = [request_for(support_route, f"{index} " + "word " * 700) for index in range(3)]
    with adapter_on(byte_model).wait_ready() as adapter, adapter.client() as client:
        before = bits(score(client, support_route))
        waits = metric(client, "ballot_queue_wait_seconds_count")
        callers = [pool.submit(score, client, request) for request in long]
        while metric(client, "ballot_queue_wait_seconds_count") == waits:
            pass
        os.kill(adapter.process.pid, signal.SIGKILL)

        ends = [caller.exception() or caller.result() for caller in callers]
        assert adapter.wait() == -signal.SIGKILL
        port = str(adapter.port)

    broken = [end for end in ends if isinstance(end, httpx.TransportError)]
    whole = [end for end in ends if isinstance(end, httpx.Response)]
    assert broken
    assert len(broken) + len(whole) == 3
    # Whoever was answered before the end was answered in full.
    assert all(answer.status_code == 200 and bits(answer) for answer in whole)
    with adapter_on(byte_model, BALLOT_PORT=port).wait_ready() as adapter:
        with adapter.client() as client:
            assert bits(score(client, support_route)) == before
        assert str(adapter.port) == port


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_says_where_each_thread_was(byte_model: Path, number: signal.Signals) -> None:
    with adapter_on(byte_model).wait_ready() as adapter:
        # As when llama.cpp gives up: the signal ends the process, and no handler can prevent it.
        os.kill(adapter.process.pid, number)
        status = adapter.wait()
        told = "".join(adapter.lines)

    assert status == -number
    assert "Fatal Python error: " in told
    assert "admission.py" in told


# --- logits that are not finite


@pytest.fixture(scope="module")
def poisonable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterProcess]:
    """An adapter whose model makes NaN of any prompt with `POISON` in it, and of no other."""
    path = tmp_path_factory.mktemp("poison") / "poison.gguf"
    tensors = tiny_tensors()
    # Of its own, so that the poisoned row is read where the token is in the prompt, and only there.
    tensors["output.weight"] = tensors["token_embd.weight"].copy()
    tensors["token_embd.weight"][POISON_TOKEN] = np.nan
    write_tiny_model(path, chat_template=BYTES_TEMPLATE, tensors=tensors)
    with adapter_on(path).wait_ready() as adapter:
        yield adapter


def with_question(request: dict[str, Any], question: str) -> dict[str, Any]:
    changed = copy.deepcopy(request)
    changed["decision"]["question"] = question
    return changed


def test_nan_fails_its_own_request_and_leaves_nothing_behind(
    poisonable: AdapterProcess, support_route: dict[str, Any]
) -> None:
    state = support_route["decision"]["state"]
    question = support_route["decision"]["question"]
    neighbours = [
        support_route,
        with_question(support_route, "Another one?"),
        request_for(support_route, "short"),
    ]
    poisoned = [
        # Behind a state that memory holds, at the state's end, at its start, and all over.
        with_question(support_route, question + POISON),
        request_for(support_route, f"{state}{POISON}"),
        request_for(support_route, f"{POISON}{state}"),
        request_for(support_route, POISON * 2000),
    ]
    with poisonable.client() as client:
        expected = [bits(score(client, neighbour)) for neighbour in neighbours]
        cold = [bits(score(client, neighbour)) for neighbour in neighbours]
        failures = []
        afterwards = []
        for poison in poisoned:
            # Twice: what the first may have left in memory, the second would find.
            failures += [outcome(score(client, poison)), outcome(score(client, poison))]
            afterwards += [bits(score(client, neighbour)) for neighbour in neighbours]

        assert cold == expected
        assert np.isfinite(expected[0][0]).all()
        assert failures == [(500, "scoring_failed")] * 8
        assert afterwards == expected * 4
        assert client.get("/ping").status_code == 200


def test_nan_beside_good_decisions_fails_the_request_that_it_is_in(
    poisonable: AdapterProcess, support_route: dict[str, Any]
) -> None:
    good = support_route["decision"]
    bad = {**good, "id": "bad", "question": POISON}
    with poisonable.client() as client:
        expected = bits(score(client, support_route))
        mixed = client.post("/invocations", json={"decisions": [good, bad]})

        assert outcome(mixed) == (500, "scoring_failed")
        assert bits(score(client, support_route)) == expected


def test_a_poisoned_state_that_is_given_up_halfway_poisons_nobody(
    poisonable: AdapterProcess, support_route: dict[str, Any]
) -> None:
    body = json.dumps(request_for(support_route, POISON * 3000)).encode()
    with poisonable.client() as client:
        expected = bits(score(client, support_route))
        for _ in range(5):
            waits = metric(client, "ballot_queue_wait_seconds_count")
            connection = open_request(poisonable.port, body)
            while metric(client, "ballot_queue_wait_seconds_count") == waits:
                pass
            connection.close()
            assert bits(score(client, support_route)) == expected


def test_three_different_prompts_in_a_row_turn_it_unhealthy_until_one_is_scored(
    poisonable: AdapterProcess, support_route: dict[str, Any]
) -> None:
    def ping() -> tuple[int, str]:
        answer = client.get("/ping")
        return answer.status_code, answer.json()["status"]

    with poisonable.client() as client:
        score(client, support_route)
        for _ in range(5):
            score(client, request_for(support_route, f"{POISON} the same"))
        same = ping()
        conditions = []
        for index in range(3):
            score(client, request_for(support_route, f"{POISON} {index}"))
            conditions.append(ping())
        while_unhealthy = score(client, support_route)

        assert same == (200, "ready")
        assert conditions == [(200, "ready"), (503, "unhealthy"), (503, "unhealthy")]
        assert while_unhealthy.status_code == 200
        assert ping() == (200, "ready")


# --- the worker's thread ends


def test_the_workers_death_refuses_all_and_ends_the_process(
    byte_model: Path, support_route: dict[str, Any], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    trigger = tmp_path / "die"
    command = (sys.executable, str(FAULTY), "worker-dies", str(trigger))
    with AdapterProcess(
        command=command, BALLOT_GGUF_PATH=str(byte_model), BALLOT_THREADS="1"
    ).wait_ready() as adapter:
        with adapter.client() as client:
            assert score(client, support_route).status_code == 200
            body = json.dumps(support_route).encode()
            # Accepted, but not there yet: while it is awaited the process goes on answering.
            late = open_request(adapter.port, body[:-1], content_length=len(body))
            wait_for_waiting(client, 0)
            trigger.touch()
            dying = score(client, support_route)
            status, _, refused = read_response(late)
            late.close()

            assert outcome(dying) == (503, "worker_failed")
            assert (status, refused["code"]) == (503, "worker_failed")
        assert adapter.wait() == 1
    last = json.loads(adapter.lines[-1])
    assert (last["level"], last["event"]) == ("error", "worker_failed")
    assert last["message"].startswith("the scoring worker died: Dead at ")
    assert "a prompt could stand here" not in "".join(adapter.lines)


# --- the worker hangs


def test_a_worker_that_hangs_is_unhealthy_until_it_goes_on(
    byte_model: Path, support_route: dict[str, Any], tmp_path: Path
) -> None:
    trigger = tmp_path / "hang"
    command = (sys.executable, str(FAULTY), "worker-hangs", str(trigger))
    with AdapterProcess(
        command=command,
        BALLOT_GGUF_PATH=str(byte_model),
        BALLOT_THREADS="1",
        BALLOT_REQUEST_TIMEOUT_SECONDS="2",
    ).wait_ready() as adapter:
        with adapter.client() as client:
            trigger.touch()
            assert outcome(score(client, support_route)) == (503, "deadline_exceeded")
            while (ping := client.get("/ping")).status_code == 200:
                pass
            assert ping.json() == {"status": "unhealthy"}
            assert metric(client, "ballot_healthy") == 0
            trigger.unlink()
            while client.get("/ping").status_code != 200:
                pass
            while (answer := score(client, support_route)).status_code != 200:
                assert answer.status_code == 503
        assert adapter.terminate() == 0
    records = [json.loads(line) for line in adapter.lines]
    (told,) = [record for record in records if record["event"] == "unhealthy"]
    assert (told["level"], told["hanging"]) == ("error", True)


# --- the model's file


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(bytes(4096))


def overwrite_and_hide_it(path: Path) -> None:
    stat = path.stat()
    overwrite(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(bytes(100_000))
    new.rename(path)


HARMLESS: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "replaced": replace,
    "touched": Path.touch,
    "made unreadable": lambda path: path.chmod(0),
}
HARMFUL: dict[str, Callable[[Path], None]] = {
    "overwritten": overwrite,
    "overwritten with its old time": overwrite_and_hide_it,
    "truncated": truncate,
    "emptied": lambda path: os.truncate(path, 0),
}


def copy_of(model: Path, folder: Path) -> Path:
    return Path(shutil.copy(model, folder / "model.gguf"))


def test_what_leaves_the_models_bytes_alone_changes_nothing(
    byte_model: Path, support_route: dict[str, Any], tmp_path: Path
) -> None:
    for name, change in HARMLESS.items():
        (tmp_path / name).mkdir()
        path = copy_of(byte_model, tmp_path / name)
        with adapter_on(path).wait_ready() as adapter, adapter.client() as client:
            before = bits(score(client, support_route))
            change(path)
            after = [bits(score(client, support_route)) for _ in range(2)]
            assert (name, after) == (name, [before, before])
            assert client.get("/ping").status_code == 200
            assert adapter.terminate() == 0
        logged = [json.loads(line) for line in adapter.lines]
        touched = [record for record in logged if record["event"] == "model_touched"]
        assert [sorted(record) for record in touched] == [["event", "level", "seconds", "time"]]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_touched_model_is_read_again_once_whoever_asks(
    byte_model: Path, tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy_of(byte_model, tmp_path)
    sealed = Seal(Artifact((path,)))
    expected = sealed.sha256()
    reading, asked_again = threading.Event(), threading.Event()
    reads = []

    def read(files: list[BinaryIO]) -> str:
        reads.append(files)
        reading.set()
        assert asked_again.wait(PATIENCE)
        return digest(files)

    def ask_again() -> str:
        asked_again.set()
        return expected

    monkeypatch.setattr(seal, "digest", read)
    path.touch()
    first = pool.submit(sealed.verify, lambda: expected)
    assert reading.wait(PATIENCE)
    second = pool.submit(sealed.verify, ask_again)
    first.result()
    second.result()
    assert len(reads) == 1
    assert not sealed.is_touched


@pytest.mark.parametrize("scores", [True, False])
def test_a_model_that_is_out_of_reach_ends_it_without_an_answer(
    scores: bool, byte_model: Path, support_route: dict[str, Any], tmp_path: Path
) -> None:
    path, trigger = copy_of(byte_model, tmp_path), tmp_path / "stale"
    command = (sys.executable, str(FAULTY), "model-stale", str(trigger))
    with AdapterProcess(
        command=command, BALLOT_GGUF_PATH=str(path), BALLOT_THREADS="1"
    ).wait_ready() as adapter:
        with adapter.client() as client:
            assert score(client, support_route).status_code == 200
            trigger.touch()
            # It may be noticed, and the port be closed, before the request comes.
            with contextlib.suppress(httpx.ConnectError):
                if scores:
                    assert outcome(score(client, support_route)) == (503, "worker_failed")
        assert adapter.wait() == 1
    last = json.loads(adapter.lines[-1])
    assert last["event"] == "worker_failed"
    assert last["message"] == (
        f"the model's file cannot be read any more: {path} (Stale file handle); mend its disk or "
        "mount, and start again"
    )


@pytest.mark.parametrize("name", HARMFUL)
def test_what_changes_the_models_bytes_ends_it_without_an_answer(
    name: str, byte_model: Path, support_route: dict[str, Any], tmp_path: Path
) -> None:
    path = copy_of(byte_model, tmp_path)
    with adapter_on(path).wait_ready() as adapter:
        with adapter.client() as client:
            assert score(client, support_route).status_code == 200
            HARMFUL[name](path)
            # It may be noticed, and the port be closed, before the request comes.
            with contextlib.suppress(httpx.ConnectError):
                assert outcome(score(client, support_route)) == (503, "worker_failed")
        assert adapter.wait() == 1
    last = json.loads(adapter.lines[-1])
    assert last["event"] == "worker_failed"
    assert last["message"].startswith("the model's file was written to while it was in use: ")


def test_a_changed_model_is_noticed_although_nothing_is_scored(
    byte_model: Path, tmp_path: Path
) -> None:
    path = copy_of(byte_model, tmp_path)
    with adapter_on(path).wait_ready() as adapter:
        overwrite(path)
        assert adapter.wait() == 1
    assert json.loads(adapter.lines[-1])["event"] == "worker_failed"


# --- memory


def test_a_state_cache_without_memory_shrinks_and_no_answer_changes(
    byte_model: Path, support_route: dict[str, Any]
) -> None:
    # Each leaves a snapshot of half a megabyte: together more than what is left.
    requests = [request_for(support_route, f"{index} " + "word " * 400) for index in range(12)]
    with adapter_on(byte_model).wait_ready() as adapter, adapter.client() as client:
        expected = [bits(score(client, request)) for request in requests]
        evictions = metric(client, "ballot_state_cache_evictions_total")
        assert adapter.terminate() == 0
    with adapter_on(byte_model).wait_ready() as adapter, adapter.client() as client:
        score(client, support_route)
        limit = metric(client, "ballot_state_cache_limit_bytes")
        status = Path(f"/proc/{adapter.process.pid}/status").read_text()
        kilobytes = next(line.split()[1] for line in status.splitlines() if "VmData" in line)
        bound = (int(kilobytes) << 10) + (3 << 20)
        resource.prlimit(adapter.process.pid, resource.RLIMIT_DATA, (bound, bound))
        answers = [score(client, request) for request in requests]

        assert [answer.status_code for answer in answers] == [200] * 12
        assert [bits(answer) for answer in answers] == expected
        assert evictions == 0
        assert metric(client, "ballot_state_cache_limit_bytes") < limit
        assert adapter.terminate() == 0
    events = [json.loads(line)["event"] for line in adapter.lines]
    assert "state_cache_halved" in events
