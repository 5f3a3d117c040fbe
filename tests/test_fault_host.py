"""Faults of the machine: logs that cannot be written, a clock that jumps. Answers stay right."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapter import logs
from adapter.logs import JsonFormatter, LineHandler
from tests.adapter_process import PATIENCE, ROOT, AdapterProcess, environment
from tests.test_fault_engine import FAULTY, bits, score
from tests.test_load import metric


@contextlib.contextmanager
def running(
    model: Path, *, stdout: int, stderr: int, close: tuple[int, ...] = (), level: str = "info"
) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Run an adapter with these files for its output; `close` are closed once it has them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter", "serve"],
        cwd=ROOT / "container",
        env=environment(
            BALLOT_GGUF_PATH=str(model),
            BALLOT_THREADS="1",
            BALLOT_PORT=str(port),
            BALLOT_LOG_LEVEL=level,
        ),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    for number in close:
        os.close(number)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
        try:
            wait_ready(process, client)
            yield process, client
        finally:
            process.kill()
            process.wait()


def wait_ready(process: subprocess.Popen[bytes], client: httpx.Client) -> None:
    while process.poll() is None:
        with contextlib.suppress(httpx.ConnectError):
            if client.get("/ping").status_code == 200:
                return
        time.sleep(0.02)
    raise AssertionError(f"the adapter ended with {process.returncode}")


@pytest.fixture(scope="module")
def expected(byte_model: Path) -> Any:
    """The bits of the article's decision where nothing is wrong."""
    request = json.loads((ROOT / "examples" / "support-route.json").read_text())
    adapter = AdapterProcess(BALLOT_GGUF_PATH=str(byte_model), BALLOT_THREADS="1")
    with adapter.wait_ready(), adapter.client() as client:
        return bits(score(client, request))


@pytest.mark.parametrize("name", ["full disk", "closed pipe"])
def test_logs_that_cannot_be_written_are_counted_and_nothing_else(
    name: str, byte_model: Path, support_route: dict[str, Any], expected: Any
) -> None:
    if name == "full disk":
        out = err = os.open("/dev/full", os.O_WRONLY)
        close: tuple[int, ...] = (out,)
    else:
        read, out = os.pipe()
        err_read, err = os.pipe()
        close = (read, out, err_read, err)
    with running(byte_model, stdout=out, stderr=err, close=close) as (process, client):
        before = metric(client, "ballot_log_lines_dropped_total")
        answers = [score(client, support_route) for _ in range(50)]
        malformed = client.post("/invocations", content=b"{", headers={"content-type": "a"})

        assert [bits(answer) for answer in answers] == [expected] * 50
        assert malformed.status_code == 415
        assert metric(client, "ballot_log_lines_dropped_total") == before + 51
        assert client.get("/ping").status_code == 200
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_full_standard_error_hears_no_tracebacks(
    byte_model: Path, support_route: dict[str, Any], tmp_path: Path
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    errors = os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT)
    with running(byte_model, stdout=full, stderr=errors, close=(full, errors)) as (process, client):
        for _ in range(5):
            assert score(client, support_route).status_code == 200
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert (tmp_path / "stderr").read_bytes() == b""


def test_a_log_that_nobody_reads_holds_nothing_up_and_says_later_what_it_lost(
    byte_model: Path, support_route: dict[str, Any], expected: Any
) -> None:
    read, out = os.pipe()
    pipe = running(byte_model, stdout=out, stderr=out, close=(out,), level="debug")
    with open(read, "rb") as reader, pipe as (process, client):  # noqa: PTH123 - a descriptor
        # A pipe holds 64 KiB: some hundreds of lines.
        while metric(client, "ballot_log_lines_dropped_total") < 20:
            client.get("/ping")
        assert bits(score(client, support_route)) == expected
        dropped = metric(client, "ballot_log_lines_dropped_total")
        records: list[dict[str, Any]] = []
        while not records or records[-1]["event"] != "log_lines_dropped":
            # It wakes up as there is room again; each scrape writes a line of its own.
            if len(records) % 50 == 49:
                client.get("/metrics")
            records.append(json.loads(reader.readline()))
        process.terminate()
        rest = [json.loads(line) for line in reader]
        assert process.wait(PATIENCE) == 0

    assert records[-1]["level"] == "warning"
    assert records[-1]["lines"] >= dropped
    assert [record["event"] for record in rest][-1] == "draining"


def test_a_line_that_was_broken_off_is_ended_before_the_next() -> None:
    read, out = os.pipe()
    handler = LineHandler(out)
    handler.setFormatter(JsonFormatter())
    with open(read, "rb") as reader:  # noqa: PTH123 - a descriptor
        # A pipe holds 64 KiB: 4 of the next line's 10 are left.
        os.write(out, b"x" * (60 << 10))
        handler.handle(logging.makeLogRecord({"msg": "y" * (10 << 10)}))
        reader.read(60 << 10)
        handler.handle(logging.makeLogRecord({"msg": "z"}))
        os.close(out)
        broken, missing, whole = reader.read().splitlines()

    assert len(broken) == 4 << 10
    assert (json.loads(missing)["event"], json.loads(missing)["lines"]) == ("log_lines_dropped", 1)
    assert json.loads(whole)["event"] == "z"
    assert handler.dropped == 1


def test_a_reader_that_drains_slowly_is_waited_for_once_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever writes a line may be the event loop: it must not wait for line after line."""
    clock = SimpleNamespace(now=1000.0)
    waits: list[float] = []
    true_poll = select.poll

    class Poll:
        def __init__(self) -> None:
            self._poll = true_poll()
            self.register = self._poll.register

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            if milliseconds:
                waits.append(clock.now)
            return self._poll.poll(0)

    monkeypatch.setattr(select, "poll", Poll)
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: clock.now))
    read, out = os.pipe()
    full = bytes(fcntl.fcntl(out, fcntl.F_GETPIPE_SZ))
    handler = LineHandler(out)
    handler.setFormatter(JsonFormatter())

    def write_at(now: float) -> None:
        clock.now = now
        handler.handle(logging.makeLogRecord({"msg": "x" * 5000}))

    os.write(out, full)
    for second in range(60):
        write_at(1000.0 + second)
        # Half a page, and a line has more than one.
        os.read(read, 2048)
    assert waits == [1000.0]
    assert handler.dropped > 5

    os.read(read, len(full))
    os.write(out, full)
    write_at(1060.0)
    write_at(1069.9)
    assert waits == [1000.0]
    # Ten seconds without a line that was dropped, and it is waited for again.
    write_at(1079.9)
    assert waits == [1000.0, 1079.9]
    os.close(read)
    os.close(out)


def test_output_that_was_closed_from_the_start(
    byte_model: Path, support_route: dict[str, Any], expected: Any
) -> None:
    command = f"exec {sys.executable} -m adapter serve >&- 2>&-"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=ROOT / "container",
            env=environment(
                BALLOT_GGUF_PATH=str(byte_model), BALLOT_THREADS="1", BALLOT_PORT=str(port)
            ),
            stdin=subprocess.DEVNULL,
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        wait_ready(process, client)
        assert bits(score(client, support_route)) == expected
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_clock_that_jumps_by_hours_moves_no_deadline_and_no_timing(
    byte_model: Path, support_route: dict[str, Any], expected: Any
) -> None:
    command = (sys.executable, str(FAULTY), "clock-jumps")
    adapter = AdapterProcess(
        command=command,
        BALLOT_GGUF_PATH=str(byte_model),
        BALLOT_THREADS="1",
        # Five hours are more than any of these.
        BALLOT_REQUEST_TIMEOUT_SECONDS="600",
        BALLOT_DRAIN_TIMEOUT_SECONDS="600",
    )
    with adapter.wait_ready(), adapter.client() as client:
        answers = [score(client, support_route) for _ in range(20)]
        both = [
            client.post("/invocations", json={"decisions": [support_route["decision"]]}).json()
            for _ in range(5)
        ]
        waited = metric(client, "ballot_queue_wait_seconds_sum")
        seconds = metric(client, "ballot_forward_seconds_sum")
        assert adapter.terminate() == 0

    assert [bits(answer) for answer in answers] == [expected] * 20
    timings = [answer.json()["result"]["timing"] for answer in answers]
    timings += [answer["timing"] for answer in both]
    assert all(0 <= value < 600 for timing in timings for value in timing.values())
    assert 0 <= waited < 600
    assert 0 <= seconds < 600
    logged = [json.loads(line) for line in adapter.lines]
    requests = [record for record in logged if record["event"] == "request"]
    assert len(requests) == 25
    assert all(0 <= record["seconds"] < 600 for record in requests)
    # The clock did jump: the log's own times go back and forth.
    hours = {record["time"][:13] for record in logged}
    assert len(hours) >= 3
