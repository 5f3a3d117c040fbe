"""JSON Lines against a live adapter: each line gets what it gets alone, whatever stands beside it.

The single requests to the same adapter are the oracle; what cannot be seen from outside, such as
how many lines are worked on at once, is seen on an admission that the test moves by hand.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapter import native
from adapter.admission import Permit
from adapter.decision import Json
from adapter.errors import Unavailable
from adapter.json_lines import AHEAD, Lines
from adapter.pipeline import Answered, Asked, Pipeline, Prepared
from adapter.settings import Settings
from adapter.transform import execution_parameters
from adapter.usage import Usage
from adapter.wire import WireFormat
from tests.adapter_process import ROOT, AdapterProcess
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.test_admission import Bench
from tests.test_admission import encoded as prompt
from tests.test_bad_input import DECISION, JSON, NOT_JSON, NOT_THE_SCHEMA
from tests.test_calibration import Tiny
from tests.test_openapi import REFUSED_BY_SCHEMA, generated, named
from tests.test_systemone import CHOICE, NOUL, SCORE, WRONG
from tests.test_systemone import body as questions
from tests.wire import Connection, check_error, documented_errors, from_httpx

LINES = {"content-type": "application/jsonlines"}
MAX_BODY_BYTES = 1_048_576
ANSWERED = 'ballot_lines_total{outcome="ok"}'
GONE = 'ballot_requests_total{outcome="caller_gone",route="/invocations"}'
PAGE = (ROOT / "docs" / "json-lines.md").read_text()


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def decision(**changes: Any) -> bytes:
    return dump({"decision": {**DECISION, **changes}})


VALID = decision()
LONG = decision(state="x" * 3000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = tmp_path_factory.mktemp("lines") / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    return Tiny(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture(scope="module")
def lines_adapter(tiny: Tiny) -> Iterator[AdapterProcess]:
    """Calibrated, so that the calibration is part of what each line must get."""
    with tiny.adapter(BALLOT_CALIBRATION=tiny.calibration()) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def lines_client(lines_adapter: AdapterProcess) -> Iterator[httpx.Client]:
    with lines_adapter.client() as client:
        yield client


def counted(client: httpx.Client, sample: str) -> float:
    """The value of a sample of the metrics; 0 where there is none yet."""
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{sample} ")), 0.0)


def answers(response: httpx.Response) -> list[dict[str, Any]]:
    """The lines of an answer, each of which ends with a line feed."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/jsonlines"
    *lines, rest = response.content.split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in lines]


def ask(client: httpx.Client, body: bytes) -> list[dict[str, Any]]:
    return answers(client.post("/invocations", content=body, headers=LINES))


def codes(lines: list[dict[str, Any]]) -> list[str]:
    return ["ok" if "result" in line or "results" in line else line["code"] for line in lines]


MOVING = {"timing", "x_timing", "cached_tokens", "x_cached_tokens", "request_id", "x_request_id"}


def settled(answer: dict[str, Any]) -> Any:
    """An answer without what may differ between two equal requests, or says which line it is."""
    place = {"line", "id"} if "line" in answer else set()
    return _settled({name: answer[name] for name in answer.keys() - place})


def _settled(value: Any) -> Any:
    if isinstance(value, list):
        return [_settled(item) for item in value]
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items() if key not in MOVING}
    return value


SCORED = [
    VALID,
    decision(state={"\u4f60": ["\U0001f600", "\u2028\u0085"]}, question="\u4f60\u597d?"),
    decision(state="word " * 200),
    decision(state="word " * 200, question="Another?"),
    dump({"decisions": [DECISION, {**DECISION, "id": "e", "state": 1}]}),
    dump({"decision": DECISION, "scoring": {"orders": 2}}),
    dump({"decision": DECISION, "scoring": {"layout": "criterion_first"}}),
    dump(questions(NOUL, CHOICE, SCORE)),
    b" \t" + VALID + b" \r",
]
BAD = [
    *[row.body for row in (*NOT_JSON, *NOT_THE_SCHEMA)],
    *[dump(row.body) for row in WRONG],
    dump({**questions(NOUL), "model": "another"}),
    dump({**questions(NOUL), "decision": DECISION}),
    dump(questions(NOUL, state="word " * 1000)),
    decision(state="word " * 5000),
]


def test_each_line_gets_what_it_gets_alone(lines_client: httpx.Client) -> None:
    # A body of two lines, or of none, is not one line; and all go into one body.
    bad = [body for body in BAD if b"\n" not in body and body.strip() and len(body) < 200_000]
    lines = [body for pair in zip(bad, SCORED * len(bad), strict=False) for body in pair]
    alone = [lines_client.post("/invocations", content=body, headers=JSON) for body in lines]

    together = ask(lines_client, b"\n".join(lines))

    assert [settled(line) for line in together] == [settled(one.json()) for one in alone]
    failed = [one.status_code != 200 for one in alone]
    assert [line.get("line") for line in together] == [
        number if has_failed else None for number, has_failed in enumerate(failed, 1)
    ]
    assert len(bad) > 150
    assert sum(failed) == len(bad)
    assert "calibration" in together[1]["result"]
    assert together[1]["result"]["calibration"] is not None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", []),
        (b"\n", ["empty_line"]),
        (b"\n\n", ["empty_line"] * 2),
        (VALID, ["ok"]),
        (VALID + b"\n", ["ok"]),
        (VALID + b"\r\n", ["ok"]),
        (VALID + b"\r\n" + VALID + b"\r\n", ["ok"] * 2),
        (VALID + b"\n\n" + VALID, ["ok", "empty_line", "ok"]),
        (VALID + b"\n \t\r\n" + VALID, ["ok", "empty_line", "ok"]),
        (VALID + b"\r" + VALID, ["invalid_json"]),
        (VALID + b"\x0b" + VALID, ["invalid_json"]),
        (VALID + b"\n\n\n", ["ok", "empty_line", "empty_line"]),
        (b"\xef\xbb\xbf" + VALID + b"\n" + VALID, ["invalid_json", "ok"]),
        (b"\x00\n" + VALID, ["invalid_json", "ok"]),
        (b"\x00" * 1000, ["invalid_json"]),
        (b"\xff\n" + VALID + b"\n\xff", ["invalid_encoding", "ok", "invalid_encoding"]),
        ((VALID + b"\n").decode().encode("utf-16-le"), ["invalid_json", "invalid_json"]),
        (b"[" * 65 + b"\n" + VALID, ["too_deep", "ok"]),
        (b"\xe2\x80\xa8\n" + VALID, ["invalid_json", "ok"]),
        (decision(state="\u2028").replace(b"\\u2028", b"\xe2\x80\xa8"), ["ok"]),
        (VALID + b"\n" + VALID, ["ok", "ok"]),
        (VALID.replace(b'"s"', b'"\n"'), ["invalid_json", "invalid_json"]),
    ],
    ids=str,
)
def test_lines_end_at_line_feeds(
    lines_client: httpx.Client, body: bytes, expected: list[str]
) -> None:
    assert codes(ask(lines_client, body)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (decision(x=1), "d"),
        (decision(id="\u4f60"), None),
        (decision(id="\u4f60", x=1), "\u4f60"),
        (decision(id="i" * 256, x=1), "i" * 256),
        (decision(id="i" * 257), None),
        (decision(id=" "), None),
        (decision(id=7), None),
        (dump({"decision": DECISION, "x": 1}), "d"),
        (dump({"decision": DECISION, "questions": {}}), "d"),
        (dump({"decision": [DECISION]}), None),
        (dump({"decisions": [DECISION] * 2}), None),
        (dump([DECISION]), None),
        (VALID + b"}", None),
    ],
    ids=str,
)
def test_an_error_has_the_id_where_the_line_has_one_that_can_be_read(
    lines_client: httpx.Client, line: bytes, expected: str | None
) -> None:
    (answer,) = ask(lines_client, line)

    assert answer.get("id") == expected


def test_answers_are_ascii(lines_client: httpx.Client) -> None:
    """Readers that split text at every line separator of Unicode must not see more lines."""
    body = decision(id="\u2028\u0085\u4f60") + b"\n" + decision(id="\u2028x", x=1)
    response = lines_client.post("/invocations", content=body, headers=LINES)

    assert response.content.isascii()
    one, two = (json.loads(line) for line in response.text.splitlines())
    assert (one["result"]["id"], two["id"]) == ("\u2028\u0085\u4f60", "\u2028x")


def test_equal_lines_are_all_answered_by_the_same_bits(lines_client: httpx.Client) -> None:
    together = ask(lines_client, b"\n".join([VALID] * 50))

    assert len({json.dumps(settled(line)) for line in together}) == 1
    assert codes(together) == ["ok"] * 50


def test_ten_thousand_lines_of_a_byte(lines_client: httpx.Client) -> None:
    together = ask(lines_client, b"1\n" * 10_000)

    assert [(line["line"], line["code"]) for line in together] == [
        (number, "wrong_type") for number in range(1, 10_001)
    ]


def test_one_line_of_the_largest_body(lines_client: httpx.Client) -> None:
    assert codes(ask(lines_client, VALID.ljust(MAX_BODY_BYTES))) == ["ok"]
    too_long = decision(state="x" * (MAX_BODY_BYTES - len(VALID)))
    assert codes(ask(lines_client, too_long)) == ["too_many_tokens"]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/jsonlines",
        "application/x-ndjson",
        "application/jsonl",
        "Application/JsonLines; charset=utf-8",
        "application/jsonl ;charset=latin-1",
    ],
)
@pytest.mark.parametrize("accept", ["*/*", "application/jsonlines", "application/json", "text/csv"])
def test_the_types_of_json_lines(
    lines_client: httpx.Client, content_type: str, accept: str
) -> None:
    headers = {"content-type": content_type, "accept": accept}
    response = lines_client.post("/invocations", content=VALID + b"\n{", headers=headers)

    assert codes(answers(response)) == ["ok", "invalid_json"]


@pytest.mark.parametrize(
    ("path", "content_type", "shown"),
    [
        ("/invocations", "application/jsonlines2", "application/jsonlines2"),
        ("/invocations", "text/jsonlines", "text/jsonlines"),
        ("/invocations", "application/json-lines", "application/json-lines"),
        ("/v1/systemone", "application/jsonlines", "application/jsonlines"),
    ],
)
def test_other_types_are_refused(
    lines_client: httpx.Client, path: str, content_type: str, shown: str
) -> None:
    response = lines_client.post(path, content=VALID, headers={"content-type": content_type})

    assert response.status_code == 415
    assert f"content type '{shown}' is not read here" in response.text


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({}, b"\n" * (MAX_BODY_BYTES + 1), 413, "body_too_large"),
        ({"content-encoding": "gzip"}, gzip.compress(b"\n" * 2_000_000), 413, "body_too_large"),
        ({"content-encoding": "gzip"}, VALID, 400, "invalid_encoding"),
        ({"content-encoding": "br"}, VALID, 415, "unsupported_encoding"),
    ],
    ids=["bytes", "decompressed", "not-gzip", "encoding"],
)
def test_what_is_wrong_with_the_whole_refuses_the_whole(
    lines_client: httpx.Client, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    response = lines_client.post("/invocations", content=body, headers={**LINES, **headers})

    error = check_error(from_httpx(response))
    assert (response.status_code, error["code"]) == (status, code)


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)]
)
def test_compressed_bodies(lines_client: httpx.Client, encoding: str, compress: Any) -> None:
    headers = {**LINES, "content-encoding": encoding}
    body = compress(VALID + b"\n\n")
    response = lines_client.post("/invocations", content=body, headers=headers)

    assert codes(answers(response)) == ["ok", "empty_line"]


def test_any_bytes_get_a_line_for_each_of_their_lines(lines_client: httpx.Client) -> None:
    documented = documented_errors()
    seen = set()
    some = [
        VALID,
        dump(questions(NOUL)),
        b"",
        b"{}",
        b"[]",
        b"\r",
        b"\x00",
        b"\xff",
        b'{"decision":',
    ]
    pieces = st.sampled_from(some) | st.binary(max_size=40)

    @settings(max_examples=150, deadline=None)
    @given(lines=st.lists(pieces, max_size=8), has_end=st.booleans())
    @example(lines=[VALID, b""], has_end=False)
    def answered(lines: list[bytes], has_end: bool) -> None:
        body = b"\n".join(lines) + b"\n" * has_end
        together = ask(lines_client, body)

        assert len(together) == len(list(io.BytesIO(body)))
        for number, line in enumerate(together, 1):
            if "detail" in line:
                assert line["line"] == number
                seen.add("systemone")
            elif "code" in line:
                assert line["line"] == number
                assert line["retryable"] is documented[line["code"]][1] is False
                seen.add(line["code"])
            else:
                assert line.keys() & {"result", "answers"}
                seen.add("ok")

    answered()
    assert {"ok", "empty_line", "invalid_json", "invalid_encoding"} <= seen


def test_lines_and_their_answers_fit_the_document(lines_client: httpx.Client) -> None:
    document = lines_client.get("/openapi.json").json()
    lines, line_answers = named(document, "Line"), named(document, "AnswerLine")
    # What the choice lacks, JSON Schema cannot say.
    wrong = [row.body for row in WRONG if row.name != "choice-nameless"]
    refused = [json.loads(row.body) for row in REFUSED_BY_SCHEMA] + wrong
    sent = [*SCORED, *[body for body in BAD if b"\n" not in body and len(body) < 20_000]]
    got = ask(lines_client, b"\n".join(sent))

    for line in SCORED:
        lines.validate(json.loads(line))
    assert not any(lines.is_valid(value) for value in refused)
    for answer in got:
        line_answers.validate(answer)
    failed = [number for number, answer in enumerate(got, 1) if "line" in answer]
    assert failed == list(range(len(SCORED) + 1, len(sent) + 1))


def test_what_the_document_allows_is_scored(lines_client: httpx.Client) -> None:
    document = lines_client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    line_answers = named(document, "AnswerLine")

    @settings(max_examples=15, deadline=None)
    @given(requests=st.lists(generated(schemas["Request"], schemas), min_size=1, max_size=4))
    def scored(requests: list[Any]) -> None:
        got = ask(lines_client, b"\n".join(map(dump, requests)))

        for request, answer in zip(requests, got, strict=True):
            line_answers.validate(answer)
            single = "decision" in request
            assert answer.keys() == ({"result"} if single else {"results", "timing"})
            asked = [request["decision"]] if single else request["decisions"]
            results = [answer["result"]] if single else answer["results"]
            assert [result["id"] for result in results] == [decision["id"] for decision in asked]

    scored()


# What goes on while the lines are answered.


def test_the_worker_is_shared_line_by_line(
    lines_adapter: AdapterProcess, lines_client: httpx.Client
) -> None:
    count = 300
    before = counted(lines_client, ANSWERED)
    with ThreadPoolExecutor(1) as pool, lines_adapter.client() as other:
        bulk = pool.submit(ask, other, (LONG + b"\n") * count)
        while counted(lines_client, ANSWERED) == before:
            assert not bulk.done()
        single = lines_client.post("/invocations", content=VALID, headers=JSON)
        still_running = not bulk.done()

        assert single.status_code == 200
        assert still_running, "the single request was answered only when all lines were"
        assert codes(bulk.result()) == ["ok"] * count


def test_a_caller_that_hangs_up_stops_its_lines(
    lines_adapter: AdapterProcess, lines_client: httpx.Client
) -> None:
    count = 300
    with lines_adapter.client() as other:
        done = counted(lines_client, ANSWERED)
        before = counted(lines_client, GONE)
        body = (LONG + b"\n") * count
        with other.stream("POST", "/invocations", content=body, headers=LINES) as response:
            assert response.status_code == 200
            first = next(response.iter_lines())
        while counted(lines_client, GONE) == before:
            pass

        assert "result" in json.loads(first)
        assert counted(lines_client, "ballot_queue_depth") == 0
        assert counted(lines_client, ANSWERED) < done + count
        assert lines_client.post("/invocations", content=VALID, headers=JSON).status_code == 200


def test_a_caller_that_does_not_read_is_given_up(tiny: Tiny) -> None:
    body = b"\n" * 500_000
    head = (
        f"POST /invocations HTTP/1.1\r\nhost: a\r\ncontent-type: {LINES['content-type']}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with (
        tiny.adapter(BALLOT_BODY_TIMEOUT_SECONDS="1").wait_ready() as adapter,
        adapter.client() as client,
        socket.create_connection(("127.0.0.1", adapter.port)) as connection,
    ):
        connection.sendall(head.encode() + body)
        while counted(client, GONE) == 0:
            pass

        assert counted(client, "ballot_queue_depth") == 0
        assert client.post("/invocations", content=VALID, headers=JSON).status_code == 200


def test_half_an_answer_is_never_taken_for_a_whole_one_over_http_1_0(
    lines_adapter: AdapterProcess,
) -> None:
    head = f"POST /invocations HTTP/1.0\r\ncontent-type: {LINES['content-type']}\r\n"
    with Connection(lines_adapter.port) as connection:
        connection.send(head.encode() + b"content-length: %d\r\n\r\n" % len(VALID) + VALID)
        answer = connection.answer()

        assert (answer.status, check_error(answer)["code"]) == (400, "http_version")
        assert connection.is_closed_by_adapter()


def test_lines_wait_for_a_permit_as_one_request(tiny: Tiny) -> None:
    with (
        tiny.adapter(BALLOT_MAX_QUEUE="0").wait_ready() as adapter,
        adapter.client() as client,
        adapter.client() as other,
        other.stream("POST", "/invocations", content=(LONG + b"\n") * 300, headers=LINES) as bulk,
    ):
        assert bulk.status_code == 200
        refused = client.post("/invocations", content=VALID, headers=LINES)
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert codes([json.loads(line) for line in bulk.iter_lines()]) == ["ok"] * 300
        assert codes(ask(client, VALID)) == ["ok"]


def drained(tiny: Tiny, lines: int, **variables: str) -> tuple[list[str], dict[str, Any]]:
    """Stop an adapter behind its first line; return the outcomes, and its log of the request."""
    with (
        tiny.adapter(**variables).wait_ready() as adapter,
        adapter.client() as client,
        client.stream(
            "POST", "/invocations", content=(LONG + b"\n") * lines, headers=LINES
        ) as bulk,
    ):
        assert bulk.status_code == 200
        found = bulk.iter_lines()
        first = next(found)
        adapter.process.terminate()
        outcomes = codes([json.loads(line) for line in (first, *found)])
        assert adapter.wait() == 0
    records = [json.loads(line) for line in adapter.lines]
    return outcomes, next(record for record in records if record["event"] == "request")


def test_lines_that_are_accepted_are_answered_before_the_end(tiny: Tiny) -> None:
    outcomes, record = drained(tiny, 200)

    assert outcomes == ["ok"] * 200
    assert (record["lines"], record["failed_lines"], record["outcome"]) == (200, 0, "ok")


def test_lines_left_at_the_end_are_refused_one_by_one(tiny: Tiny) -> None:
    outcomes, record = drained(tiny, 300, BALLOT_DRAIN_TIMEOUT_SECONDS="0.01")

    done = outcomes.index("draining")
    assert outcomes == ["ok"] * done + ["draining"] * (300 - done)
    assert done > 0
    assert (record["lines"], record["failed_lines"]) == (300, 300 - done)


def test_whole_requests_are_refused_while_the_model_loads(tmp_path: Path, tiny: Tiny) -> None:
    pipe = tmp_path / "template.jinja"
    os.mkfifo(pipe)
    with tiny.adapter(BALLOT_CHAT_TEMPLATE=str(pipe)) as adapter, adapter.client() as client:
        early = client.post("/invocations", content=VALID, headers=LINES)
        parameters = client.get("/execution-parameters")

        assert check_error(from_httpx(early))["code"] == "loading"
        assert parameters.status_code == 200


def test_the_log_has_the_sums_and_no_text(tiny: Tiny) -> None:
    secret = "correct horse battery staple"
    body = b"\n".join(
        [
            decision(id=secret, state=secret),
            decision(id=secret, state=secret, x=secret),
            dump({"decisions": [DECISION, {**DECISION, "id": secret}], "scoring": {"orders": 2}}),
            dump(questions(NOUL, CHOICE, state=secret)),
            secret.encode(),
        ]
    )
    with tiny.adapter().wait_ready() as adapter, adapter.client() as client:
        headers = {**LINES, "x-request-id": "caller-chose-this"}
        response = client.post("/invocations", content=body, headers=headers)
        nothing = client.post("/invocations", content=b"\n", headers=headers)
        assert adapter.terminate() == 0
    one, wrong, several, system_one, garbage = answers(response)
    records = [json.loads(line) for line in adapter.lines]
    of_lines, of_nothing = [record for record in records if record["event"] == "request"]
    results = [one["result"], *several["results"]]
    usage = system_one["usage"]
    masses = [answer["x_allowed_token_mass"] for answer in system_one["answers"].values()]

    assert secret not in "".join(adapter.lines)
    assert {line["request_id"] for line in (wrong, garbage)} == {"caller-chose-this"}
    assert {
        name: of_lines[name]
        for name in ("request_id", "route", "status", "outcome", "lines", "failed_lines")
    } == {
        "request_id": "caller-chose-this",
        "route": "/invocations",
        "status": 200,
        "outcome": "ok",
        "lines": 5,
        "failed_lines": 2,
    }
    assert of_lines["decisions"] == 5
    assert of_lines["input_tokens"] == usage["input_tokens"] + sum(
        result["input_tokens"] for result in results
    )
    assert of_lines["cached_tokens"] == usage["x_cached_tokens"] + sum(
        result["cached_tokens"] for result in results
    )
    assert of_lines["decoded_tokens"] == of_lines["input_tokens"] - of_lines["cached_tokens"]
    assert of_lines["allowed_token_mass"] == min(
        *masses, *(result["allowed_token_mass"] for result in results)
    )
    assert of_lines["forward_seconds"] == pytest.approx(
        one["result"]["timing"]["forward_seconds"]
        + several["timing"]["forward_seconds"]
        + system_one["x_timing"]["forward_seconds"],
        abs=1e-5,
    )
    assert nothing.status_code == 200
    assert (of_nothing["lines"], of_nothing["failed_lines"]) == (1, 1)
    assert "allowed_token_mass" not in of_nothing


# On an admission that the test moves by hand.


class Scripted:
    """A pipeline whose bodies are their own tokens; it notes which were begun."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []

    async def prepare(self, asked: Asked, permit: Permit) -> Prepared:
        self.begun.append(asked.body)
        asked.value = {"decision": {"id": asked.body.decode()}}
        if asked.body == b"bug":
            raise RuntimeError("a secret of the inside")
        permit.require_open()
        return Prepared(cast("Any", None), (prompt(10),), asked.started)

    async def score(self, prepared: Prepared, permit: Permit) -> Answered:
        answer = await permit.score(prepared.encoded)
        return Answered({"result": len(answer.scored)}, Usage(decisions=1, input_tokens=10))


class Counter:
    """Counts lines."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def line(self, outcome: str) -> None:
        self.outcomes.append(outcome)


def recognize(_: Json) -> WireFormat:
    return native.WIRE


def lines_of(body: bytes, permit: Permit, pipeline: Scripted) -> tuple[Lines, Counter]:
    counter = Counter()
    lines = Lines(
        body,
        pipeline=cast("Pipeline", pipeline),
        permit=permit,
        recognize=recognize,
        request_id="r",
        observer=counter,
    )
    return lines, counter


def test_no_more_lines_are_begun_than_are_taken() -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> None:
        with bench.admission.enter() as permit:
            lines, counter = lines_of(b"\n".join([b"a"] * 100), permit, pipeline)
            bench.engine.released.release(1000)
            async with aclosing(lines.answers()) as found:
                for taken in range(1, 11):
                    assert json.loads(await anext(found)) == {"result": 1}
                    for _ in range(20):
                        await asyncio.sleep(0)
                    assert len(pipeline.begun) == taken + AHEAD
            assert lines.lines == len(counter.outcomes) <= 10 + AHEAD
            assert lines.usage.decisions == lines.lines

    with bench.working():
        asyncio.run(scenario())


def test_what_is_begun_is_abandoned_with_the_caller() -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> None:
        with bench.admission.enter() as permit:
            lines, _ = lines_of(b"a\nb\nc\nd", permit, pipeline)
            first = asyncio.ensure_future(anext(lines.answers()))
            await bench.entered()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            bench.engine.released.release(1000)
        await bench.ask(20)

    with bench.working():
        asyncio.run(scenario())
    # The first was being scored when its caller went; the others never were.
    assert [len(ids) for ids in bench.engine.order] == [10, 20]


def test_each_line_has_a_deadline_of_its_own() -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> None:
        with bench.admission.enter() as permit:
            bench.now += 1000
            lines, counter = lines_of(b"a\nb", permit, pipeline)
            bench.engine.released.release(2)
            async for _ in lines.answers():
                pass
            assert counter.outcomes == ["ok", "ok"]
            with pytest.raises(Unavailable, match="ran out"):
                await permit.score((prompt(10),))

    with bench.working():
        asyncio.run(scenario())


def test_lines_do_not_use_up_the_time_of_those_behind_them() -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> None:
        bench.engine.released.release()
        bench.engine.seconds = 40
        await bench.ask()
        await bench.entered()
        with bench.admission.enter() as permit:
            # Each takes 40 of the 55 seconds that it has alone.
            lines, counter = lines_of(b"a\nb\nc\nd\ne", permit, pipeline)
            done = asyncio.ensure_future(taken(lines))
            for _ in range(5):
                await bench.entered()
                bench.now += 40
                bench.engine.released.release()
            await done
            assert counter.outcomes == ["ok"] * 5

    with bench.working():
        asyncio.run(scenario())


def test_the_time_of_a_line_runs_out_too() -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> None:
        with bench.admission.enter() as permit:
            lines, counter = lines_of(b"a\nb", permit, pipeline)
            done = asyncio.ensure_future(taken(lines))
            await bench.entered()
            bench.now += 50
            bench.engine.released.release()
            while not counter.outcomes:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            await bench.entered()
            bench.now += 60
            bench.engine.released.release()
            await done
            assert counter.outcomes == ["ok", "deadline_exceeded"]

    with bench.working():
        asyncio.run(scenario())


async def taken(lines: Lines) -> list[bytes]:
    return [line async for line in lines.answers()]


@pytest.mark.parametrize("code", ["draining", "worker_failed"])
def test_lines_left_without_a_worker_say_so(code: str) -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> list[Any]:
        with bench.admission.enter() as permit:
            lines, counter = lines_of(b"\n".join([b"a"] * 1000), permit, pipeline)
            found = lines.answers()
            bench.engine.released.release()
            first = await anext(found)
            bench.admission.refuse_unfinished(Unavailable("gone", code=code, retry_after_seconds=1))
            rest = [line async for line in found]
            assert counter.outcomes == ["ok", *[code] * 999]
            assert (lines.lines, lines.failed) == (1000, 999)
        return [json.loads(line) for line in (first, *rest)]

    with bench.working():
        first, *rest = asyncio.run(scenario())
    assert first == {"result": 1}
    assert rest == [
        {
            "error": "gone",
            "code": code,
            "retryable": True,
            "field": None,
            "request_id": "r",
            "line": number,
            "id": "a",
        }
        for number in range(2, 1001)
    ]


def test_a_bug_in_one_line_fails_that_line(caplog: pytest.LogCaptureFixture) -> None:
    bench, pipeline = Bench(), Scripted()

    async def scenario() -> None:
        with bench.admission.enter() as permit:
            lines, counter = lines_of(b"a\nbug\nb", permit, pipeline)
            bench.engine.released.release(2)
            found = [line async for line in lines.answers()]
            assert counter.outcomes.count("internal_error") == 1
            assert b"secret" not in b"".join(found)
            assert json.loads(found[1])["code"] == "internal_error"

    with bench.working():
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["bug"]
    assert "secret" not in str(caplog.records[0].__dict__)


# What batch transform asks first.


@pytest.mark.parametrize(
    ("max_body_bytes", "max_queue", "requests", "megabytes"),
    [
        (1_048_576, 32, 2, 1),
        (6_291_456, 32, 2, 6),
        (6_291_455, 32, 2, 5),
        (1024, 32, 2, 1),
        (1_048_576, 0, 1, 1),
        (1_048_576, 1, 2, 1),
        # All payloads under way together have no more than 100 MB.
        (1_073_741_824, 32, 2, 50),
        (1_073_741_824, 0, 1, 100),
    ],
)
def test_execution_parameters_follow_the_settings(
    max_body_bytes: int, max_queue: int, requests: int, megabytes: int
) -> None:
    settings = Settings(max_body_bytes=max_body_bytes, max_queue=max_queue)

    assert execution_parameters(settings) == {
        "MaxConcurrentTransforms": requests,
        "BatchStrategy": "MULTI_RECORD",
        "MaxPayloadInMB": megabytes,
    }


def test_execution_parameters_are_served(lines_client: httpx.Client) -> None:
    response = lines_client.get("/execution-parameters")

    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "MaxConcurrentTransforms": 2,
        "BatchStrategy": "MULTI_RECORD",
        "MaxPayloadInMB": 1,
    }


# The page.


def test_the_curl_example_of_the_page_is_answered_as_it_says(lines_adapter: AdapterProcess) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (command,) = [text for kind, text in blocks if kind == "sh" and "curl" in text]
    (shown,) = [text for kind, text in blocks if kind == "json" and '"line": 2' in text]
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{lines_adapter.port}")

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)

    first, second, third = (json.loads(line) for line in done.stdout.splitlines())
    assert first["result"]["option_ids"] == ["access", "billing"]
    assert {**json.loads(shown), "request_id": second["request_id"]} == second
    assert third["answers"]["refund"]["type"] == "noul"
