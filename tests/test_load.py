"""Load, health and shutdown, on live adapters: who waits, who is refused, and what they get.

No test here measures time: each waits for a state that the adapter shows, and then asserts.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter.llama import Model
from tests.adapter_process import AdapterProcess

CALLERS = 32


def request_for(support_route: dict[str, Any], state: Any) -> dict[str, Any]:
    request = copy.deepcopy(support_route)
    request["decision"]["state"] = state
    return request


def long_request(support_route: dict[str, Any], marker: str) -> dict[str, Any]:
    """About 1,500 tokens: a second or more of decoding, in four decodes."""
    return request_for(support_route, f"{marker} " + "word " * 1400)


def numbers(response: httpx.Response) -> tuple[int, Any, Any, Any]:
    result = response.json().get("result", {})
    return (
        response.status_code,
        result.get("option_logits"),
        result.get("probabilities"),
        result.get("allowed_token_mass"),
    )


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def wait_for_waiting(client: httpx.Client, waiting: int) -> None:
    while metric(client, "ballot_queue_depth") != waiting:
        pass


def open_request(port: int, body: bytes, *, content_length: int | None = None) -> socket.socket:
    """Send a request from a bare socket, or only its head and a part of its body."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    length = len(body) if content_length is None else content_length
    head = (
        f"POST /invocations HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def read_response(connection: socket.socket) -> tuple[int, dict[str, str], dict[str, Any]]:
    with connection.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        headers = {}
        while (line := stream.readline().decode().strip()) != "":
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        body: dict[str, Any] = json.loads(stream.read(int(headers["content-length"])))
    return status, headers, body


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CALLERS) as pool:
        yield pool


def test_concurrent_callers_get_the_bits_that_they_get_alone(
    client: httpx.Client, pool: ThreadPoolExecutor, support_route: dict[str, Any]
) -> None:
    states: list[Any] = [
        {"caller": index, "text": "word " * (index * 7 % 90), "tail": chr(0x4E00 + index)}
        for index in range(CALLERS)
    ]
    requests = [request_for(support_route, state) for state in states]
    alone = [numbers(client.post("/invocations", json=request)) for request in requests]
    shuffled = requests[::-1]

    together = list(pool.map(lambda item: client.post("/invocations", json=item), shuffled))

    assert [status for status, *_ in alone] == [200] * CALLERS
    assert [numbers(response) for response in together][::-1] == alone
    assert len({json.dumps(row) for row in alone}) == CALLERS


def test_callers_beyond_the_bound_are_refused_before_their_body_is_read(
    pool: ThreadPoolExecutor, support_route: dict[str, Any]
) -> None:
    with AdapterProcess(BALLOT_MAX_QUEUE="2").wait_ready() as adapter, adapter.client() as client:
        accepted = [
            pool.submit(client.post, "/invocations", json=long_request(support_route, str(index)))
            for index in range(3)
        ]
        wait_for_waiting(client, 2)

        # The answer is there although not one byte of the body was sent.
        with open_request(adapter.port, b"", content_length=100_000) as refused:
            status, headers, body = read_response(refused)
        unanswered = [future for future in accepted if not future.done()]

        assert (status, body["code"], body["retryable"]) == (503, "busy", True)
        assert int(headers["retry-after"]) >= 1
        assert unanswered, "the refusal came after all the work: it did not come at once"
        assert [future.result().status_code for future in accepted] == [200, 200, 200]


def test_queue_of_zero_refuses_the_second_caller(
    pool: ThreadPoolExecutor, support_route: dict[str, Any]
) -> None:
    with (
        AdapterProcess(BALLOT_MAX_QUEUE="0", BALLOT_BODY_TIMEOUT_SECONDS="3600") as adapter,
        adapter.wait_ready().client() as client,
    ):
        first = open_request(adapter.port, b"{", content_length=10_000)
        while client.post("/invocations", json=support_route).status_code != 503:
            pass
        second = client.post("/invocations", json=support_route)
        first.close()
        while (third := client.post("/invocations", json=support_route)).status_code == 503:
            pass

        assert second.json()["code"] == "busy"
        assert third.status_code == 200


def test_ping_answers_while_a_long_decode_runs(
    adapter: AdapterProcess,
    client: httpx.Client,
    pool: ThreadPoolExecutor,
    support_route: dict[str, Any],
) -> None:
    decoded = metric(client, "ballot_tokens_decoded_total")
    request = long_request(support_route, "ping")
    running = pool.submit(client.post, "/invocations", json=request)
    pings = []
    while not running.done():
        pings.append(client.get("/ping").status_code)

    assert running.result().status_code == 200
    assert metric(client, "ballot_tokens_decoded_total") > decoded + 1400
    assert len(pings) > 5
    assert set(pings) == {200}


def test_port_is_open_and_ping_is_503_while_the_model_loads(
    tmp_path: Path, demo_model: Model, support_route: dict[str, Any]
) -> None:
    """The chat template comes through a pipe: loading lasts until the test writes it."""
    pipe = tmp_path / "template.jinja"
    os.mkfifo(pipe)
    with AdapterProcess(BALLOT_CHAT_TEMPLATE=str(pipe)) as adapter, adapter.client() as client:
        ping = client.get("/ping")
        scoring = client.post("/invocations", json=support_route)
        openapi = client.get("/openapi.json")
        metrics = client.get("/metrics")
        assert demo_model.chat_template is not None
        pipe.write_text(demo_model.chat_template)
        adapter.wait_ready()

        assert (ping.status_code, ping.json()) == (503, {"status": "loading"})
        assert (scoring.status_code, scoring.json()["code"]) == (503, "loading")
        assert scoring.headers["retry-after"] == "5"
        assert openapi.status_code == 503
        assert "ballot_healthy 0.0" in metrics.text
        assert client.get("/ping").json() == {"status": "ready"}
        assert client.post("/invocations", json=support_route).status_code == 200


def test_sigterm_under_load_answers_what_was_accepted_and_exits_0(
    pool: ThreadPoolExecutor, support_route: dict[str, Any]
) -> None:
    with AdapterProcess().wait_ready() as adapter, adapter.client() as client:
        accepted: list[Future[httpx.Response]] = [
            pool.submit(client.post, "/invocations", json=long_request(support_route, str(index)))
            for index in range(3)
        ]
        wait_for_waiting(client, 2)
        os.kill(adapter.process.pid, signal.SIGTERM)
        adapter.wait_for_event("draining")

        ping = client.get("/ping")
        late = client.post("/invocations", json=support_route)

        assert (ping.status_code, ping.json()) == (503, {"status": "draining"})
        assert (late.status_code, late.json()["code"]) == (503, "draining")
        assert late.headers["retry-after"] == "1"
        assert [future.result().status_code for future in accepted] == [200, 200, 200]
        assert adapter.wait() == 0


def test_work_that_does_not_finish_in_the_drain_time_is_refused_and_exits_0(
    pool: ThreadPoolExecutor, support_route: dict[str, Any]
) -> None:
    with (
        AdapterProcess(BALLOT_DRAIN_TIMEOUT_SECONDS="0.01").wait_ready() as adapter,
        adapter.client() as client,
    ):
        accepted = [
            pool.submit(client.post, "/invocations", json=long_request(support_route, str(index)))
            for index in range(2)
        ]
        wait_for_waiting(client, 1)

        assert adapter.terminate() == 0
        answers = [future.result() for future in accepted]
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {
            (503, "draining")
        }


def test_idle_adapter_leaves_on_sigterm() -> None:
    with AdapterProcess().wait_ready() as adapter:
        assert adapter.terminate() == 0


def test_sigterm_while_loading_leaves_with_0(tmp_path: Path) -> None:
    pipe = tmp_path / "template.jinja"
    os.mkfifo(pipe)
    with AdapterProcess(BALLOT_CHAT_TEMPLATE=str(pipe)) as adapter:
        assert adapter.terminate() == 0


def test_caller_that_hangs_up_leaves_the_queue(
    adapter: AdapterProcess,
    client: httpx.Client,
    pool: ThreadPoolExecutor,
    support_route: dict[str, Any],
) -> None:
    running = pool.submit(client.post, "/invocations", json=long_request(support_route, "hangup"))
    wait_for_waiting(client, 0)
    body = json.dumps(long_request(support_route, "gone")).encode()
    impatient = [open_request(adapter.port, body) for _ in range(3)]
    wait_for_waiting(client, 3)
    for connection in impatient:
        connection.close()
    wait_for_waiting(client, 0)

    assert not running.done(), "the queue emptied only because the work was done"
    assert running.result().status_code == 200


def test_caller_that_hangs_up_while_its_decision_is_decoded_stops_it(
    adapter: AdapterProcess, client: httpx.Client, support_route: dict[str, Any]
) -> None:
    reference = numbers(client.post("/invocations", json=support_route))
    forwards = metric(client, "ballot_forward_seconds_count")
    waits = metric(client, "ballot_queue_wait_seconds_count")
    body = json.dumps(long_request(support_route, "stop")).encode()
    connection = open_request(adapter.port, body)
    while metric(client, "ballot_queue_wait_seconds_count") == waits:
        pass
    connection.close()
    after = client.post("/invocations", json=support_route)

    # The abandoned decision finished no forward pass, and left no trace in the next answer.
    assert numbers(after) == reference
    assert metric(client, "ballot_forward_seconds_count") == forwards + 1


def test_request_past_its_deadline_is_given_up(support_route: dict[str, Any]) -> None:
    with (
        AdapterProcess(BALLOT_REQUEST_TIMEOUT_SECONDS="0.05").wait_ready() as adapter,
        adapter.client() as client,
    ):
        late = client.post("/invocations", json=long_request(support_route, "late"))

        assert (late.status_code, late.json()["code"]) == (503, "deadline_exceeded")
        assert late.json()["retryable"] is True
        assert client.get("/ping").status_code == 200


def test_logs_have_the_request_id_and_no_text_of_the_caller(
    support_route: dict[str, Any],
) -> None:
    secret = "correct horse battery staple"
    request = request_for(support_route, secret)
    request["decision"]["question"] = f"{secret}?"
    request["decision"]["options"][0] = {"id": secret, "description": secret}
    wrong = copy.deepcopy(request)
    wrong["decision"][secret] = 1
    with (
        AdapterProcess(BALLOT_LOG_LEVEL="debug").wait_ready() as adapter,
        adapter.client() as client,
    ):
        ids = {"x-request-id": "caller-chose-this"}
        assert client.post("/invocations", json=request, headers=ids).status_code == 200
        assert client.post("/invocations", json=wrong).status_code == 400
        assert client.post("/invocations", content=secret.encode()).status_code == 415
        assert adapter.terminate() == 0
    records = [json.loads(line) for line in adapter.lines]
    answered = [record for record in records if record["event"] == "request"]

    assert all(isinstance(record, dict) for record in records)
    assert secret not in "".join(adapter.lines)
    assert answered[-3]["request_id"] == "caller-chose-this"
    assert [record["status"] for record in answered[-3:]] == [200, 400, 415]


def test_a_connection_that_is_idle_for_some_seconds_takes_another_request(
    adapter: AdapterProcess,
) -> None:
    """A server that closes it, as uvicorn does after 5 s, loses what a pool sends just then."""
    connection = http.client.HTTPConnection("127.0.0.1", adapter.port, timeout=60)
    sockets = []
    for pause in (0, 6):
        time.sleep(pause)
        connection.request("GET", "/ping")
        assert connection.getresponse().read() == b'{"status":"ready"}'
        sockets.append(connection.sock)
    connection.close()

    # http.client would have taken a new one.
    assert sockets[0] is sockets[1] is not None
