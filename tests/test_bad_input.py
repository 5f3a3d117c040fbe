"""Bad input against a live adapter: each gets its documented answer, and none leaves a mark.

What comes over HTTP is in the tables; what is not quite HTTP goes through a bare socket.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import gzip
import json
import random
import re
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter import errors
from adapter.__main__ import listen
from tests.adapter_process import ROOT, AdapterProcess
from tests.wire import Answer, Connection, check_error, documented_errors, from_httpx

MAX_BODY_BYTES = 1_048_576
JSON = {"content-type": "application/json"}
DECISION: dict[str, Any] = {
    "id": "d",
    "state": "s",
    "question": "q?",
    "options": [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}],
}
OPTION = {"id": "c", "description": "z"}


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def decision(**changes: Any) -> bytes:
    return dump({"decision": {**DECISION, **changes}})


def decisions(*items: Any) -> bytes:
    return dump({"decisions": list(items)})


def without(name: str) -> bytes:
    return dump({"decision": {key: value for key, value in DECISION.items() if key != name}})


def option(value: Any) -> bytes:
    return decision(options=[OPTION, value])


def scoring(value: Any) -> bytes:
    return dump({"decision": DECISION, "scoring": value})


def state(raw: bytes) -> bytes:
    """A request whose state is `raw`, as it stands."""
    return decision(state=0).replace(b'"state": 0', b'"state": ' + raw)


def encoded(name: str, body: bytes) -> tuple[dict[str, str], bytes]:
    return {**JSON, "content-encoding": name}, body


def zstd_frames(*parts: bytes) -> bytes:
    return b"".join(zstandard.compress(part) for part in parts)


def zstd_with_window(log: int) -> bytes:
    """The head of a frame that needs a window of 2 ** `log` bytes, and one last empty block."""
    return b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3]) + b"\x01\x00\x00"


VALID = decision()
ZEROS = bytes(64 * MAX_BODY_BYTES)


@dataclasses.dataclass(frozen=True)
class Bad:
    """A request and the answer that it must get."""

    name: str
    status: int
    code: str
    body: bytes = b""
    field: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=lambda: JSON)
    method: str = "POST"
    path: str = "/invocations"


NOT_JSON = [
    Bad("empty-body", 400, "invalid_json", b""),
    Bad("white-space", 400, "invalid_json", b" \r\n\t"),
    Bad("byte-order-mark", 400, "invalid_json", b"\xef\xbb\xbf" + VALID),
    Bad("utf-16", 400, "invalid_encoding", VALID.decode().encode("utf-16")),
    Bad("utf-16-without-mark", 400, "invalid_json", VALID.decode().encode("utf-16-le")),
    Bad("utf-32", 400, "invalid_encoding", VALID.decode().encode("utf-32")),
    Bad("latin-1", 400, "invalid_encoding", state('"caf\u00e9"'.encode("latin-1"))),
    Bad("overlong-utf-8", 400, "invalid_encoding", state(b'"\xc0\xaf"')),
    Bad("surrogate-in-utf-8", 400, "invalid_encoding", state(b'"\xed\xa0\x80"')),
    Bad("cut-off-utf-8", 400, "invalid_encoding", VALID + b"\xe4\xb8"),
    Bad("cut-off", 400, "invalid_json", VALID[:-1]),
    Bad("cut-off-in-a-string", 400, "invalid_json", VALID[:20]),
    Bad("trailing-object", 400, "invalid_json", VALID + b"{}"),
    Bad("trailing-brace", 400, "invalid_json", VALID + b"}"),
    Bad("trailing-nul", 400, "invalid_json", VALID + b"\x00"),
    Bad("json-lines", 400, "invalid_json", VALID + b"\n" + VALID),
    Bad("trailing-comma", 400, "invalid_json", state(b"[1,]")),
    Bad("missing-comma", 400, "invalid_json", state(b"[1 2]")),
    Bad("single-quotes", 400, "invalid_json", state(b"'s'")),
    Bad("bare-word", 400, "invalid_json", state(b"yes")),
    Bad("python-literal", 400, "invalid_json", state(b"None")),
    Bad("comment", 400, "invalid_json", state(b"/* s */ 1")),
    Bad("form", 400, "invalid_json", b"decision=d&state=s"),
    Bad("xml", 400, "invalid_json", b"<decision/>"),
    Bad("nul-bytes", 400, "invalid_json", b"\x00" * 100),
    Bad("nul-in-a-string", 400, "invalid_json", state(b'"\x00"')),
    Bad("line-feed-in-a-string", 400, "invalid_json", state(b'"\n"')),
    Bad("unknown-escape", 400, "invalid_json", state(rb'"\x41"')),
    Bad("short-escape", 400, "invalid_json", state(rb'"\u12"')),
    Bad("leading-zero", 400, "invalid_json", state(b"01")),
    Bad("plus-sign", 400, "invalid_json", state(b"+1")),
    Bad("hexadecimal", 400, "invalid_json", state(b"0x1")),
    Bad("no-digit-after-point", 400, "invalid_json", state(b"1.")),
    Bad("nan", 400, "invalid_number", state(b"NaN")),
    Bad("infinity", 400, "invalid_number", state(b"[Infinity]")),
    Bad("minus-infinity", 400, "invalid_number", state(b"-Infinity")),
    Bad("exponent-too-large", 400, "invalid_number", state(b"1e999")),
    Bad("exponent-too-small", 400, "invalid_number", state(b"-1E+999")),
    Bad("integer-too-long", 400, "invalid_number", state(b"9" * 5000)),
    Bad("million-digits", 400, "invalid_number", state(b"9" * 1_000_000)),
    Bad("surrogate-in-state", 400, "invalid_string", state(rb'"\ud800"')),
    Bad("surrogate-in-key", 400, "invalid_string", state(rb'{"\udfff": 1}')),
    Bad("surrogate-deep-down", 400, "invalid_string", state(rb'[{"a": ["\uDBFF"]}]')),
    Bad("surrogates-reversed", 400, "invalid_string", state(rb'"\ude00\ud83d"')),
    Bad("surrogate-and-letter", 400, "invalid_string", state(rb'"\ud83dx"')),
    Bad("surrogate-in-id", 400, "invalid_string", decision(id="\ud800")),
    Bad("surrogate-in-field-name", 400, "invalid_string", rb'{"\ud800": 1}'),
    Bad("duplicate-in-body", 400, "duplicate_key", b'{"decision": 1, "decision": 2}'),
    Bad("duplicate-in-state", 400, "duplicate_key", state(b'[{"a": {"b": 1, "b": 1}}]')),
    Bad("duplicate-by-escape", 400, "duplicate_key", state(rb'{"a": 1, "\u0061": 2}')),
    Bad("duplicate-empty-key", 400, "duplicate_key", state(b'{"": 1, "": 2}')),
    Bad("duplicate-surrogate-key", 400, "duplicate_key", state(rb'{"\ud800":1,"\ud800":2}')),
    # The body and the decision are two levels.
    Bad("65-arrays", 400, "too_deep", state(b"[" * 63 + b"]" * 63)),
    Bad("65-objects", 400, "too_deep", state(b'{"a":' * 63 + b"1" + b"}" * 63)),
    Bad("100000-arrays", 400, "too_deep", state(b"[" * 100_000 + b"]" * 100_000)),
    Bad("100000-open-arrays", 400, "too_deep", b"[" * 100_000),
    Bad("100000-open-objects", 400, "too_deep", b'{"a":' * 100_000),
]

NOT_THE_SCHEMA = [
    Bad("top-array", 400, "wrong_type", b"[]"),
    Bad("top-array-of-requests", 400, "wrong_type", b"[" + VALID + b"]"),
    Bad("top-number", 400, "wrong_type", b"1"),
    Bad("top-string", 400, "wrong_type", b'"decision"'),
    Bad("top-null", 400, "wrong_type", b"null"),
    Bad("top-boolean", 400, "wrong_type", b"true"),
    Bad("neither", 400, "missing_field", b"{}", "decisions"),
    Bad("only-scoring", 400, "missing_field", b'{"scoring": {}}', "decisions"),
    Bad("both", 400, "ambiguous_request", dump({"decision": DECISION, "decisions": [DECISION]})),
    Bad("both-null", 400, "ambiguous_request", b'{"decision": null, "decisions": null}'),
    Bad("no-wrapper", 400, "unknown_field", dump(DECISION), "id"),
    Bad("unknown-beside", 400, "unknown_field", dump({"decision": DECISION, "x": 1}), "x"),
    Bad("unknown-empty-name", 400, "unknown_field", decision(**{"": 1}), "decision."),
    Bad("wrong-case", 400, "unknown_field", dump({"Decision": DECISION}), "Decision"),
    Bad("unknown-in-decision", 400, "unknown_field", decision(x=1), "decision.x"),
    Bad(
        "unknown-of-1000",
        400,
        "unknown_field",
        decision(**{"y" * 1000: 1}),
        f"decision.{'y' * 191}",
    ),
    Bad(
        "unknown-in-option",
        400,
        "unknown_field",
        option({**OPTION, "x": 1}),
        "decision.options[1].x",
    ),
    Bad("unknown-in-scoring", 400, "unknown_field", scoring({"x": 1}), "scoring.x"),
    Bad("decision-null", 400, "wrong_type", b'{"decision": null}', "decision"),
    Bad("decision-array", 400, "wrong_type", dump({"decision": [DECISION]}), "decision"),
    Bad("decision-string", 400, "wrong_type", b'{"decision": "d"}', "decision"),
    Bad("decision-number", 400, "wrong_type", b'{"decision": 1}', "decision"),
    Bad("decision-empty", 400, "missing_field", b'{"decision": {}}', "decision.id"),
    Bad("decisions-null", 400, "wrong_type", b'{"decisions": null}', "decisions"),
    Bad("decisions-object", 400, "wrong_type", dump({"decisions": DECISION}), "decisions"),
    Bad("decisions-string", 400, "wrong_type", b'{"decisions": "d"}', "decisions"),
    Bad("decisions-empty", 400, "too_few_items", b'{"decisions": []}', "decisions"),
    Bad("decisions-of-null", 400, "wrong_type", b'{"decisions": [null]}', "decisions[0]"),
    Bad("decisions-65", 400, "too_many_decisions", decisions(*[DECISION] * 65), "decisions"),
    Bad("decisions-nested", 400, "wrong_type", decisions([DECISION]), "decisions[0]"),
    Bad("decisions-same-id", 400, "duplicate_id", decisions(DECISION, DECISION), "decisions"),
    Bad(
        "second-decision",
        400,
        "wrong_type",
        decisions(DECISION, {**DECISION, "id": "e", "question": 1}),
        "decisions[1].question",
    ),
    Bad("id-missing", 400, "missing_field", without("id"), "decision.id"),
    Bad("id-number", 400, "wrong_type", decision(id=1), "decision.id"),
    Bad("id-boolean", 400, "wrong_type", decision(id=True), "decision.id"),
    Bad("id-null", 400, "wrong_type", decision(id=None), "decision.id"),
    Bad("id-empty", 400, "empty_value", decision(id=""), "decision.id"),
    Bad("id-white-space", 400, "empty_value", decision(id=" \t\u2003"), "decision.id"),
    Bad("id-of-257", 400, "id_too_long", decision(id="i" * 257), "decision.id"),
    Bad("state-missing", 400, "missing_field", without("state"), "decision.state"),
    Bad("question-missing", 400, "missing_field", without("question"), "decision.question"),
    Bad("question-null", 400, "wrong_type", decision(question=None), "decision.question"),
    Bad("question-object", 400, "wrong_type", decision(question={}), "decision.question"),
    Bad("question-array", 400, "wrong_type", decision(question=["q?"]), "decision.question"),
    Bad("question-empty", 400, "empty_value", decision(question=""), "decision.question"),
    Bad(
        "question-white-space",
        400,
        "empty_value",
        decision(question="\n\u00a0"),
        "decision.question",
    ),
    Bad("options-missing", 400, "missing_field", without("options"), "decision.options"),
    Bad("options-null", 400, "wrong_type", decision(options=None), "decision.options"),
    Bad("options-object", 400, "wrong_type", decision(options={"a": "x"}), "decision.options"),
    Bad("options-string", 400, "wrong_type", decision(options="ab"), "decision.options"),
    Bad("options-none", 400, "too_few_items", decision(options=[]), "decision.options"),
    Bad("options-one", 400, "too_few_items", decision(options=[OPTION]), "decision.options"),
    Bad(
        "options-256", 400, "too_many_options", decision(options=[OPTION] * 256), "decision.options"
    ),
    Bad("options-same-id", 400, "duplicate_id", option(OPTION), "decision.options"),
    Bad("option-string", 400, "wrong_type", option("b"), "decision.options[1]"),
    Bad("option-null", 400, "wrong_type", option(None), "decision.options[1]"),
    Bad("option-empty", 400, "missing_field", option({}), "decision.options[1].id"),
    Bad(
        "option-without-id",
        400,
        "missing_field",
        option({"description": "y"}),
        "decision.options[1].id",
    ),
    Bad(
        "option-id-number", 400, "wrong_type", option({**OPTION, "id": 2}), "decision.options[1].id"
    ),
    Bad(
        "option-id-empty",
        400,
        "empty_value",
        option({**OPTION, "id": ""}),
        "decision.options[1].id",
    ),
    Bad(
        "option-id-blank",
        400,
        "empty_value",
        option({**OPTION, "id": " "}),
        "decision.options[1].id",
    ),
    Bad(
        "option-id-of-257",
        400,
        "id_too_long",
        option({**OPTION, "id": "i" * 257}),
        "decision.options[1].id",
    ),
    Bad(
        "undescribed", 400, "missing_field", option({"id": "b"}), "decision.options[1].description"
    ),
    Bad(
        "described-by-null",
        400,
        "wrong_type",
        option({"id": "b", "description": None}),
        "decision.options[1].description",
    ),
    Bad(
        "described-by-nothing",
        400,
        "empty_value",
        option({"id": "b", "description": ""}),
        "decision.options[1].description",
    ),
    Bad(
        "described-by-blanks",
        400,
        "empty_value",
        option({"id": "b", "description": "\r\n"}),
        "decision.options[1].description",
    ),
    Bad("scoring-null", 400, "wrong_type", scoring(None), "scoring"),
    Bad("scoring-array", 400, "wrong_type", scoring([]), "scoring"),
    Bad("orders-boolean", 400, "unsupported_value", scoring({"orders": True}), "scoring.orders"),
    Bad("orders-float", 400, "unsupported_value", scoring({"orders": 1.0}), "scoring.orders"),
    Bad("orders-string", 400, "unsupported_value", scoring({"orders": "1"}), "scoring.orders"),
    Bad("orders-null", 400, "unsupported_value", scoring({"orders": None}), "scoring.orders"),
    Bad("orders-array", 400, "unsupported_value", scoring({"orders": [1]}), "scoring.orders"),
    Bad("orders-0", 400, "unsupported_value", scoring({"orders": 0}), "scoring.orders"),
    Bad("orders-3", 400, "unsupported_value", scoring({"orders": 3}), "scoring.orders"),
    Bad(
        "layout-unknown",
        400,
        "unsupported_value",
        scoring({"layout": "sideways"}),
        "scoring.layout",
    ),
    Bad("layout-null", 400, "unsupported_value", scoring({"layout": None}), "scoring.layout"),
    Bad("layout-object", 400, "unsupported_value", scoring({"layout": {}}), "scoring.layout"),
]

TOO_LARGE = [
    Bad("a-byte-too-many", 413, "body_too_large", VALID.ljust(MAX_BODY_BYTES + 1)),
    Bad("16-mib", 413, "body_too_large", bytes(16 * MAX_BODY_BYTES)),
    Bad("many-tokens", 413, "too_many_tokens", decision(state="word " * 5000), "decision"),
    Bad(
        "many-tokens-in-question",
        413,
        "too_many_tokens",
        decision(question="?" * 40_000),
        "decision",
    ),
    Bad("a-mib-of-one-letter", 413, "too_many_tokens", decision(state="a" * 1_000_000), "decision"),
    Bad(
        "a-mib-of-emoji",
        413,
        "too_many_tokens",
        state(b'"' + "\U0001f600".encode() * 250_000 + b'"'),
        "decision",
    ),
    Bad(
        "many-tokens-in-second",
        413,
        "too_many_tokens",
        decisions(DECISION, {**DECISION, "id": "e", "state": [0] * 9000}),
        "decisions[1]",
    ),
]

CONTENT_TYPES = [
    Bad(f"content-type-{name}", 415, "unsupported_media_type", VALID, headers=headers)
    for name, headers in {
        "missing": {},
        "empty": {"content-type": ""},
        "text": {"content-type": "text/plain"},
        "form": {"content-type": "application/x-www-form-urlencoded"},
        "multipart": {"content-type": "multipart/form-data; boundary=application/json"},
        "longer": {"content-type": "application/json5"},
        "shorter": {"content-type": "application/jso"},
        "parameter": {"content-type": "; application/json"},
        "list": {"content-type": "application/json, text/plain"},
        "wildcard": {"content-type": "*/*"},
        "long": {"content-type": "x" * 10_000},
    }.items()
]

CONTENT_ENCODINGS = [
    Bad(name, status, code, body, headers=headers)
    for name, status, code, (headers, body) in [
        ("encoding-br", 415, "unsupported_encoding", encoded("br", VALID)),
        ("encoding-deflate", 415, "unsupported_encoding", encoded("deflate", zlib.compress(VALID))),
        ("encoding-empty", 415, "unsupported_encoding", encoded("", VALID)),
        ("encoding-any", 415, "unsupported_encoding", encoded("*", VALID)),
        ("encoding-x-gzip", 415, "unsupported_encoding", encoded("x-gzip", gzip.compress(VALID))),
        (
            "encoding-twice",
            415,
            "unsupported_encoding",
            encoded("gzip, gzip", gzip.compress(gzip.compress(VALID))),
        ),
        (
            "encoding-mixed",
            415,
            "unsupported_encoding",
            encoded("zstd,gzip", gzip.compress(zstd_frames(VALID))),
        ),
        ("gzip-of-nothing", 400, "invalid_encoding", encoded("gzip", b"")),
        ("gzip-is-plain", 400, "invalid_encoding", encoded("gzip", VALID)),
        ("gzip-is-zlib", 400, "invalid_encoding", encoded("gzip", zlib.compress(VALID))),
        ("gzip-is-zstd", 400, "invalid_encoding", encoded("gzip", zstd_frames(VALID))),
        ("gzip-head-only", 400, "invalid_encoding", encoded("gzip", gzip.compress(VALID)[:10])),
        ("gzip-cut-off", 400, "invalid_encoding", encoded("gzip", gzip.compress(VALID)[:-1])),
        (
            "gzip-wrong-checksum",
            400,
            "invalid_encoding",
            encoded("gzip", gzip.compress(VALID)[:-8] + bytes(8)),
        ),
        ("gzip-and-more", 400, "invalid_encoding", encoded("gzip", gzip.compress(VALID) + b"\x00")),
        ("gzip-members", 400, "invalid_encoding", encoded("gzip", gzip.compress(VALID) * 2)),
        ("gzip-of-garbage", 400, "invalid_json", encoded("gzip", gzip.compress(b"garbage"))),
        (
            "gzip-twice-said-once",
            400,
            "invalid_encoding",
            encoded("gzip", gzip.compress(gzip.compress(VALID))),
        ),
        ("gzip-bomb", 413, "body_too_large", encoded("gzip", gzip.compress(ZEROS))),
        (
            "gzip-bomb-cut-off",
            413,
            "body_too_large",
            encoded("gzip", gzip.compress(ZEROS)[:-100]),
        ),
        ("zstd-of-nothing", 400, "invalid_encoding", encoded("zstd", b"")),
        ("zstd-is-plain", 400, "invalid_encoding", encoded("zstd", VALID)),
        ("zstd-is-gzip", 400, "invalid_encoding", encoded("zstd", gzip.compress(VALID))),
        ("zstd-cut-off", 400, "invalid_encoding", encoded("zstd", zstd_frames(VALID)[:-1])),
        ("zstd-and-more", 400, "invalid_encoding", encoded("zstd", zstd_frames(VALID) + b"\x00")),
        ("zstd-frames", 400, "invalid_encoding", encoded("zstd", zstd_frames(VALID, b" "))),
        ("zstd-of-garbage", 400, "invalid_json", encoded("zstd", zstd_frames(b"garbage"))),
        ("zstd-window-2-gib", 400, "invalid_encoding", encoded("zstd", zstd_with_window(31))),
        ("zstd-bomb", 413, "body_too_large", encoded("zstd", zstd_frames(ZEROS))),
    ]
]

METHODS = [
    *[
        Bad(f"{method}{path}", 405, "method_not_allowed", method=method, path=path)
        for path in ("/ping", "/metrics", "/execution-parameters", "/openapi.json")
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
    ],
    *[
        Bad(f"{method}/invocations", 405, "method_not_allowed", VALID, method=method)
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
    ],
]

PATHS = [
    Bad(f"{method}{path[:40]}", 404, "not_found", VALID, method=method, path=path)
    for method, path in [
        ("GET", "/"),
        ("POST", "/"),
        ("GET", "/index.html"),
        ("GET", "/ping/"),
        ("POST", "/invocations/"),
        ("POST", "/invocations/x"),
        ("POST", "/Invocations"),
        ("POST", "//invocations"),
        ("POST", "/invocations%00"),
        ("POST", "/invocations%0A"),
        ("GET", "/ping%0A"),
        ("GET", "/ping%2F"),
        ("GET", "/ping;x"),
        ("GET", "/%2e%2e/ping"),
        ("GET", "/..%2f..%2fetc%2fpasswd"),
        ("GET", "/%ff%fe"),
        ("GET", "/%ed%a0%80"),
        ("GET", "/" + "a" * 30_000),
        ("DELETE", "/unknown"),
    ]
]

TABLE = [
    *NOT_JSON,
    *NOT_THE_SCHEMA,
    *TOO_LARGE,
    *CONTENT_TYPES,
    *CONTENT_ENCODINGS,
    *METHODS,
    *PATHS,
]


def bits(client: httpx.Client) -> Any:
    """All numbers of the support-route decision."""
    body = (ROOT / "examples" / "support-route.json").read_bytes()
    response = client.post("/invocations", content=body, headers=JSON)
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    names = ("option_logits", "probabilities", "allowed_token_mass", "prompt_sha256")
    return [result[name] for name in names]


@pytest.fixture(scope="module", autouse=True)
def bits_before(client: httpx.Client) -> Any:
    """The numbers before the first bad input."""
    return bits(client)


def send(client: httpx.Client, row: Bad) -> Answer:
    response = client.request(row.method, row.path, content=row.body, headers=row.headers)
    return from_httpx(response)


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_bad_input_gets_its_documented_answer(client: httpx.Client, row: Bad) -> None:
    answer = send(client, row)
    error = check_error(answer)

    assert (answer.status, error["code"], error["field"]) == (row.status, row.code, row.field)


def test_the_table_is_long_and_its_rows_differ() -> None:
    assert len(TABLE) >= 60
    assert len({row.name for row in TABLE}) == len(TABLE)
    requests = {(row.method, row.path, row.body, str(row.headers)) for row in TABLE}
    assert len(requests) == len(TABLE)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/ping", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/execution-parameters", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
        ("/invocations", "POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    client: httpx.Client, path: str, allowed: str
) -> None:
    response = client.delete(path)

    assert response.headers["allow"] == allowed
    assert response.json()["error"] == f"{path} takes {allowed}, not DELETE"


def test_head_has_no_body(client: httpx.Client) -> None:
    assert client.head("/ping").status_code == 200
    refused = client.head("/invocations")

    assert refused.status_code == 405
    assert refused.headers["allow"] == "POST"
    assert refused.content == b""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            decision(state="word " * 5000),
            r"the prompt has 50\d\d tokens; the limit is 4096",
        ),
        (b" " * 2_000_000, r"the body has 2000000 bytes or more; the limit is 1048576"),
        (
            decision(options=[OPTION] * 256),
            r"decision.options has 256; this endpoint takes at most 255",
        ),
        (decisions(*[DECISION] * 65), r"decisions has 65; this endpoint takes at most 64"),
        (decision(id="i" * 300), r"decision.id has 300 characters; the limit is 256"),
        (
            decision(stat=1),
            r"decision.stat is not a field here; the fields are: id, state, question, options",
        ),
        (b'{"a": 1,\n "b" 2}', r"the body is not JSON: Expecting ':' delimiter at line 2 column 6"),
    ],
    ids=["tokens", "bytes", "options", "decisions", "id", "field", "json"],
)
def test_messages_say_what_was_sent_and_what_is_allowed(
    client: httpx.Client, body: bytes, message: str
) -> None:
    answer = client.post("/invocations", content=body, headers=JSON).json()

    assert re.fullmatch(message, answer["error"])


@pytest.mark.parametrize(
    "body",
    [
        state(b"[" * 62 + b"]" * 62),
        state(rb'"\ud83d\ude00 \u0000 \\ud800 \u2028"'),
        state(b"[1e308, -0.0, 1e-999, 123456789012345678901234567890, null]"),
        decision(id="\U0001f600" * 256),
        dump({"decision": DECISION, "scoring": {"orders": 1, "layout": "evidence_first"}}),
        VALID.ljust(MAX_BODY_BYTES),
    ],
    ids=["64-levels", "escapes", "numbers", "id-of-256", "scoring", "a-mib"],
)
def test_the_edge_of_what_is_allowed_is_scored(client: httpx.Client, body: bytes) -> None:
    response = client.post("/invocations", content=body, headers=JSON)

    assert response.status_code == 200, response.text
    assert response.json()["result"]["option_ids"] == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/invocations?a=b&decision=%00", JSON, b"[]"),
        ("/invo%63ations", JSON, b"[]"),
        ("/invocations", {"content-type": "application/json; charset=utf-8"}, b"[]"),
        ("/invocations", {"content-type": "APPLICATION/JSON ;x=y"}, b"[]"),
        ("/invocations", *encoded("identity", b"[]")),
        ("/invocations", *encoded("gzip", gzip.compress(b"[]"))),
        ("/invocations", *encoded("GZip", gzip.compress(b"[]"))),
        ("/invocations", *encoded("zstd", zstd_frames(b"[]"))),
        ("/invocations", *encoded("ZSTD", zstd_frames(b"[]"))),
    ],
    ids=["query", "path", "charset", "capitals", "identity", "gzip", "GZip", "zstd", "ZSTD"],
)
def test_what_is_read_is_read_however_it_is_labelled(
    client: httpx.Client, path: str, headers: dict[str, str], body: bytes
) -> None:
    error = client.post(path, content=body, headers=headers).json()

    assert error["error"] == "the body must be an object, not an array"


# Below HTTP.


def post(body: bytes = b"", *headers: bytes, line: bytes = b"POST /invocations HTTP/1.1") -> bytes:
    """A request as bytes, with no length but what `headers` say."""
    head = [line, b"host: x", b"content-type: application/json", *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def sized(body: bytes, *headers: bytes) -> bytes:
    return post(body, b"content-length: %d" % len(body), *headers)


CHUNKED = b"transfer-encoding: chunked"
PING = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"

NOT_HTTP = {
    "garbage": b"\x00\x01\x02garbage\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "json-alone": VALID + b"\r\n\r\n",
    "http-0.9": b"GET /ping\r\n\r\n",
    "no-version": b"GET /ping HTTP\r\n\r\n",
    "spaces-in-path": b"GET /pi ng HTTP/1.1\r\nhost: x\r\n\r\n",
    "nul-in-path": b"GET /ping\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
    "utf-8-in-path": "GET /\u00e9 HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "nul-in-header": b"GET /ping HTTP/1.1\r\nhost: x\r\nx-a: \x00\r\n\r\n",
    "space-after-header": b"GET /ping HTTP/1.1\r\nhost: x\r\nx-a : 1\r\n\r\n",
    "header-without-colon": b"GET /ping HTTP/1.1\r\nhost: x\r\nx-a\r\n\r\n",
    "header-without-name": b"GET /ping HTTP/1.1\r\nhost: x\r\n: 1\r\n\r\n",
    "no-host": b"GET /ping HTTP/1.1\r\n\r\n",
    "length-negative": post(b"", b"content-length: -1"),
    "length-word": post(b"", b"content-length: ten"),
    "length-hexadecimal": post(b"", b"content-length: 0x10"),
    "length-fraction": post(b"", b"content-length: 1.0"),
    "length-of-26-digits": post(b"", b"content-length: " + b"9" * 26),
    "length-of-5000-digits": post(b"", b"content-length: " + b"0" * 4999 + b"1"),
    "two-lengths": post(b"", b"content-length: 5", b"content-length: 6"),
    "transfer-encoding-unknown": post(b"", b"transfer-encoding: gzip"),
    "transfer-encoding-twice": post(b"0\r\n\r\n", b"transfer-encoding: gzip, chunked"),
    "chunk-size-word": post(b"zz\r\n{}\r\n", CHUNKED),
    "chunk-size-negative": post(b"-2\r\n{}\r\n", CHUNKED),
    "chunk-longer-than-said": post(b"2\r\n{}}\r\n", CHUNKED),
    "chunk-to-no-route": post(b"zz\r\n", CHUNKED, line=b"POST /nowhere HTTP/1.1"),
    "chunk-after-a-good-one": post(b"2\r\n{}\r\nzz\r\n", CHUNKED),
    # Sent to the byte that is too many: what is sent later could cost the answer.
    "headers-over-64-kib": PING.replace(b"\r\n\r\n", b"\r\nx-a: ").ljust(65_537, b"a"),
    "path-over-64-kib": b"GET /".ljust(65_537, b"a"),
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_what_is_not_http_is_refused_and_hung_up_on(adapter: AdapterProcess, data: bytes) -> None:
    with Connection(adapter.port) as connection:
        connection.send(data)
        answer = connection.answer()
        error = check_error(answer)

        assert (answer.status, error["code"], error["field"]) == (400, "malformed_http", None)
        assert connection.is_closed_by_adapter()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ([b"content-length: 1048577"], 413, "body_too_large"),
        ([b"content-length: 9999999999"], 413, "body_too_large"),
        ([b"content-length: 99999999999999999999"], 413, "body_too_large"),
        ([b"content-length: 1048577", b"expect: 100-continue"], 413, "body_too_large"),
        ([b"content-length: 100", b"content-encoding: br"], 415, "unsupported_encoding"),
        (
            [b"content-length: 9", b"content-encoding: gzip", b"content-encoding: gzip"],
            415,
            "unsupported_encoding",
        ),
    ],
    ids=["a-byte-too-many", "10-gb", "20-digits", "expect", "encoding", "encoding-header-twice"],
)
def test_a_hopeless_request_is_refused_before_its_body_is_sent(
    adapter: AdapterProcess, headers: list[bytes], status: int, code: str
) -> None:
    with Connection(adapter.port) as connection:
        connection.send(post(b"", *headers))
        answer = connection.answer()

        assert (answer.status, check_error(answer)["code"]) == (status, code)


def test_chunks_are_counted(adapter: AdapterProcess) -> None:
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with Connection(adapter.port) as connection:
        connection.send(post(chunk * 16 + b"1\r\n \r\n0\r\n\r\n", CHUNKED))
        answer = connection.answer()

        assert (answer.status, check_error(answer)["code"]) == (413, "body_too_large")


def test_a_refused_body_is_never_read_as_a_request(adapter: AdapterProcess) -> None:
    body = PING * 40_000
    with Connection(adapter.port) as connection:
        connection.send(sized(body))
        refused = connection.answer()
        connection.send(post(b"", b"content-length: 0"))
        second = connection.answer()

        assert len(body) > MAX_BODY_BYTES
        assert check_error(refused)["code"] == "body_too_large"
        assert check_error(second)["code"] == "invalid_json"


def test_slow_bodies_are_given_up(adapter: AdapterProcess) -> None:
    starts = {
        "nothing": post(b"", b"content-length: 100"),
        "a-part": post(VALID[:50], b"content-length: %d" % len(VALID)),
        "all-but-a-byte": post(VALID[:-1], b"content-length: %d" % len(VALID)),
        "no-last-chunk": post(b"2\r\n{}\r\n", CHUNKED),
        "half-a-chunk": post(b"64\r\n{", CHUNKED),
        "expecting": post(b"", b"content-length: 100", b"expect: 100-continue"),
        "dripping": post(b"", b"content-length: 1000000"),
    }
    connections = {name: Connection(adapter.port) for name in starts}
    answered = threading.Event()

    def drip() -> None:
        while not answered.wait(0.05):
            connections["dripping"].send(b" ")

    dripping = threading.Thread(target=drip)
    try:
        for name, start in starts.items():
            connections[name].send(start)
        dripping.start()
        assert connections["expecting"].answer().status == 100
        for name, connection in connections.items():
            answer = connection.answer()
            answered.set()
            error = check_error(answer)
            assert (name, answer.status, error["code"]) == (name, 408, "body_timeout")
            assert error["error"] == "the body was not complete after 2 seconds"
            assert answer.headers["connection"] == "close"
    finally:
        answered.set()
        dripping.join()
        for connection in connections.values():
            connection.close()


def gone(client: httpx.Client) -> float:
    """How many callers have hung up, as the metrics count them."""
    sample = 'ballot_requests_total{outcome="caller_gone",route="/invocations"} '
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(sample)), 0.0)


def test_hang_ups_are_noticed(adapter: AdapterProcess, client: httpx.Client) -> None:
    before = gone(client)
    starts = [
        post(b"", b"content-length: 100"),
        post(VALID[:50], b"content-length: %d" % len(VALID)),
        post(VALID, b"content-length: %d" % (len(VALID) + 1)),
        post(b"2\r\n{}\r\n", CHUNKED),
        post(b"64\r\n{", CHUNKED),
    ]
    for start in starts:
        with Connection(adapter.port) as connection:
            connection.send(start)
        with Connection(adapter.port) as connection:
            connection.send(start)
            connection.socket.shutdown(socket.SHUT_WR)
            assert connection.is_closed_by_adapter()
        with Connection(adapter.port) as connection:
            connection.send(start)
            # Closing now resets the connection instead of ending it.
            linger = struct.pack("ii", 1, 0)
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    # A request that is not even begun counts for nothing.
    with Connection(adapter.port) as connection:
        connection.send(b"POST /invocations HTTP/1.1\r\nhost")
    with Connection(adapter.port):
        pass

    while gone(client) < before + 15:
        pass
    assert gone(client) == before + 15


def test_requests_in_a_row_are_answered_in_a_row(adapter: AdapterProcess) -> None:
    with Connection(adapter.port) as connection:
        connection.send(PING + sized(b"[]") + PING + sized(b"{") + b"garbage\x00\r\n\r\n")
        answers = [connection.answer() for _ in range(5)]

        assert [answer.status for answer in answers] == [200, 400, 200, 400, 400]
        codes = [check_error(answers[index])["code"] for index in (1, 3, 4)]
        assert codes == ["wrong_type", "invalid_json", "malformed_http"]
        assert connection.is_closed_by_adapter()


def test_answers_are_not_held_back_for_an_acknowledgement() -> None:
    # An answer is two writes, and asyncio sets TCP_NODELAY where the socket names its protocol.
    with listen("127.0.0.1", 0) as listener, Connection(listener.getsockname()[1]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        ([b"expect: 100-continue"], [100, 200]),
        # Java's HTTP client offers this upgrade with every request.
        (
            [b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAQAAP__"],
            [200],
        ),
        ([b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13"], [200]),
    ],
    ids=["expect-continue", "upgrade-h2c", "upgrade-websocket"],
)
def test_offers_are_taken_or_left(
    adapter: AdapterProcess, headers: list[bytes], statuses: list[int]
) -> None:
    with Connection(adapter.port) as connection:
        connection.send(sized(VALID, *headers))

        assert [connection.answer().status for _ in statuses] == statuses


def test_methods_are_read_to_the_letter(adapter: AdapterProcess) -> None:
    with Connection(adapter.port) as connection:
        connection.send(PING.replace(b"GET", b"get"))
        answer = connection.answer()

        assert (answer.status, check_error(answer)["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "header",
    [b"content-type: application/json\xe9", b"content-type: \xff", b"content-type:"],
    ids=["latin-1", "not-utf-8", "nothing"],
)
def test_a_content_type_of_any_bytes_is_refused(adapter: AdapterProcess, header: bytes) -> None:
    with Connection(adapter.port) as connection:
        connection.send(sized(VALID).replace(b"content-type: application/json", header))
        answer = connection.answer()

        assert (answer.status, check_error(answer)["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "path", [b"/../ping", b"/./ping", b"/ping/..", b"/../../etc/passwd", b"*", b"ping", b"?", b"#"]
)
def test_paths_that_clients_would_tidy_up_are_not_found(
    adapter: AdapterProcess, path: bytes
) -> None:
    with Connection(adapter.port) as connection:
        connection.send(PING.replace(b"/ping", path))
        answer = connection.answer()

        assert (answer.status, check_error(answer)["code"]) == (404, "not_found")


# Generated.

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.text(st.characters(categories=["Cs", "Cc", "L"]), max_size=3),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=6,
)
REQUESTS = [
    {"decision": DECISION},
    {"decision": DECISION, "scoring": {"orders": 1, "layout": "evidence_first"}},
    {"decisions": [DECISION, {**DECISION, "id": "e", "state": {"k": [1, None]}}]},
]


def containers(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """`value` and everything inside it that can hold something, if it does."""
    if isinstance(value, dict | list) and value:
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from containers(child)


@st.composite
def mutated_requests(draw: st.DrawFn) -> Any:
    """A valid request in which one to three things are dropped, renamed, replaced or repeated."""
    request = copy.deepcopy(draw(st.sampled_from(REQUESTS)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(containers(request))
        if not places:
            break
        place = draw(st.sampled_from(places))
        if isinstance(place, list):
            index = draw(st.integers(0, len(place) - 1))
            match draw(st.sampled_from(["drop", "replace", "repeat"])):
                case "drop":
                    del place[index]
                case "replace":
                    place[index] = draw(VALUES)
                case _:
                    place.append(copy.deepcopy(place[index]))
        else:
            key = draw(st.sampled_from(sorted(place)))
            match draw(st.sampled_from(["drop", "replace", "rename", "add"])):
                case "drop":
                    del place[key]
                case "replace":
                    place[key] = draw(VALUES)
                case "rename":
                    place[draw(st.text(max_size=8))] = place.pop(key)
                case _:
                    place[draw(st.text(max_size=8))] = draw(VALUES)
    return request


@st.composite
def damaged_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A content encoding, and bytes: arbitrary ones, or a valid body with some bytes changed."""
    encoding = draw(st.sampled_from(["identity", "gzip", "zstd"]))
    plain = json.dumps(draw(st.sampled_from(REQUESTS))).encode()
    whole = {"identity": plain, "gzip": gzip.compress(plain), "zstd": zstandard.compress(plain)}
    body = bytearray(draw(st.sampled_from([whole[encoding], b""])))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 3)))
        body[start:end] = draw(st.binary(max_size=5))
    return encoding, bytes(body)


def check_refused_or_scored(answer: Answer) -> None:
    if answer.status != 200:
        assert 400 <= answer.status < 500
        check_error(answer)
    else:
        assert json.loads(answer.body).keys() in ({"result"}, {"results", "timing"})


def answer_to(client: httpx.Client, body: bytes, encoding: str = "identity") -> Answer:
    headers = {**JSON, "content-encoding": encoding}
    return from_httpx(client.post("/invocations", content=body, headers=headers))


@settings(max_examples=200, deadline=None)
@given(value=VALUES | st.fixed_dictionaries({"decision": VALUES}, optional={"scoring": VALUES}))
def test_any_json_is_refused_in_the_documented_way(client: httpx.Client, value: Any) -> None:
    answer = answer_to(client, json.dumps(value).encode())

    assert 400 <= answer.status < 500
    check_error(answer)


@settings(max_examples=80, deadline=None)
@given(request=mutated_requests())
def test_any_near_miss_is_refused_or_scored(client: httpx.Client, request: Any) -> None:
    check_refused_or_scored(answer_to(client, json.dumps(request).encode()))


@settings(max_examples=100, deadline=None)
@given(damaged=damaged_bodies())
def test_any_bytes_are_refused_or_scored(client: httpx.Client, damaged: tuple[str, bytes]) -> None:
    encoding, body = damaged
    check_refused_or_scored(answer_to(client, body, encoding))


def test_bytes_on_the_wire_never_get_a_5xx(adapter: AdapterProcess) -> None:
    chance = random.Random(2)
    for _ in range(100):
        data = bytearray(sized(b"{}", b"connection: close") + PING)
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(data))
            data[start : start + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        with Connection(adapter.port) as connection:
            connection.send(bytes(data))
            connection.socket.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.socket.recv(65_536):
                answer += part

        # Who closes the sending side within a request gets nothing; who does behind it may first
        # be asked, by an interim answer, whether anybody is there.
        assert re.match(rb"$|(HTTP/1\.1 100 Continue\r\n\r\n)*HTTP/1\.1 [24]", answer), answer


# The documentation.


def codes_in(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every code that the source in `path` gives an error, with that error's other constants."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # These make an InvalidRequest of the code that they are given.
            makers = {"_list": "InvalidRequest", "_check_count": "InvalidRequest"}
            name = makers.get(node.func.id, node.func.id)
            kind = getattr(errors, name, None)
            given = [word.value for word in node.keywords if word.arg in ("code", "too_many")]
            constants = [item.value for item in given if isinstance(item, ast.Constant)]
            if name == "InvalidRequest":
                assert given, f"{path.name}:{node.lineno} gives no code"
            yield from ((str(code), kind.status, kind.retryable) for code in constants if kind)


def test_the_documented_codes_are_those_in_the_source() -> None:
    found = {
        (kind.code, kind.status, kind.retryable)
        for kind in vars(errors).values()
        # The base class is never raised, nor is InvalidRequest without a code.
        if isinstance(kind, type) and issubclass(kind, errors.RequestError) and "code" in vars(kind)
        if kind is not errors.RequestError
    }
    for path in (ROOT / "container" / "adapter").glob("*.py"):
        found.update(codes_in(path))

    documented = {(code, *rest) for code, rest in documented_errors().items()}
    assert found == documented


def test_every_documented_refusal_has_a_row_here() -> None:
    refusals = {code for code, (status, _) in documented_errors().items() if status < 500}

    # Only a System One request names a model, and only JSON Lines have lines, and need HTTP/1.1:
    # test_systemone.py and test_json_lines.py send them.
    of_lines = {"empty_line", "http_version"}
    elsewhere = {"malformed_http", "head_timeout", "body_timeout", "unknown_model", *of_lines}
    assert refusals - {row.code for row in TABLE} == elsewhere


def test_the_adapter_still_scores_the_same_bits(
    adapter: AdapterProcess, client: httpx.Client, bits_before: Any
) -> None:
    assert bits(client) == bits_before
    assert client.get("/ping").json() == {"status": "ready"}
    assert [line for line in list(adapter.lines) if json.loads(line)["level"] == "error"] == []
