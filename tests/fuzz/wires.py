"""Fuzz targets on what an adapter's callers send: JSON, both wire formats, compressed bodies.

The oracles are Python's own `json` and `gzip`, the JSON Schema of `/openapi.json` as `jsonschema`
reads it, docs/errors.md, and that what a request says is what the model's prompt says.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import zlib
from collections.abc import AsyncIterator
from functools import cache
from string import ascii_uppercase
from typing import Any

import zstandard
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from adapter import json_lines, native, openapi, strict_json, systemone
from adapter.body import read_body
from adapter.decision import LAYOUTS, Decision, Scoring
from adapter.errors import InvalidRequest, RequestError, TooLarge
from adapter.prompt import plain_template, write_prompt
from adapter.scorer import ModelIdentity
from adapter.wire import Limits, Terms, WireFormat
from tests.adapter_process import ROOT
from tests.fuzz.target import Target
from tests.wire import documented_errors

LIMITS = Limits(decisions=4, options=5)
MODEL = ModelIdentity("m.gguf", "0" * 64, "llama", "F32", "F32", 1024, 1, 0, ("CPU",), "0.5.0")
TERMS = Terms(LIMITS, Scoring(), MODEL, model_aliases=True)
MOST_BODY_BYTES = 4096
MOST_MESSAGE_BYTES = 2048
MOST_LEVELS = 64  # as docs/errors.md says
JSON_WORDS = tuple(
    word.encode()
    for word in (
        *('"', "\\", "\\u", "\\ud800", "\\udc00", "\\u0061", "{", "}", "[", "]", ",", ":", "null"),
        *("true", "false", "NaN", "-Infinity", "1e999", "-0", "1.0", "9" * 40, " ", "\n", "\u00e9"),
        *("\U0001f600", "\u2028", "\u00a0", "[[[[[[[[", '{"":' * 8),
    )
)
NATIVE_WORDS = (
    *(b"decision", b"decisions", b"id", b"state", b"question", b"options", b"description"),
    *(b"scoring", b"orders", b"layout", b"evidence_first", b"criterion_first"),
)
SYSTEM_ONE_WORDS = (
    *(b"state", b"questions", b"type", b"noul", b"choice", b"score", b"instructions"),
    *(b"criteria", b"model", b"assets", b"jev-latest", b"true", b"false"),
)
SYSTEM_ONE: dict[str, Any] = {
    "state": {"text": "I want my money back. \u4f60\u597d"},
    "model": "jev-1",
    "questions": {
        "refund": {"type": "noul", "instructions": "Is it a refund?", "criteria": {"true": "so"}},
        "team": {"type": "choice", "criteria": {"billing": "Payments.", "sales": None}},
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", {"a": [1]}]},
    },
}


# --- strict JSON


class Pairs(list[tuple[str, Any]]):
    """An object as it is written, with whatever keys it has twice."""


def strict_json_check(data: bytes) -> None:
    """Python's `json` takes the same texts, but for the documented refusals, and reads the same."""
    expected = refusals(data)
    code, value = _parse(data)
    if expected or code:
        assert code in expected, (code, expected)
    else:
        assert repr(value) == repr(json.loads(data.decode("utf-8")))


def _parse(data: bytes) -> tuple[str, Any]:
    """Return the code of the refusal, or an empty one and the value."""
    try:
        return "", strict_json.parse(data)
    except InvalidRequest as error:
        check_error(error, native.WIRE)
        return error.code, None


def refusals(data: bytes) -> set[str]:
    """Return the codes of which one must be the answer to `data`; none for what must be taken."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"invalid_encoding"}
    found: set[str] = set()

    def pairs(items: list[tuple[str, Any]]) -> Pairs:
        if len({key for key, _ in items}) < len(items):
            found.add("duplicate_key")
        return Pairs(items)

    def constant(_: str) -> float:
        found.add("invalid_number")
        return 0.0

    def number(digits: str) -> float:
        if math.isinf(value := float(digits)):
            found.add("invalid_number")
        return value

    try:
        value = json.loads(
            text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number
        )
    except json.JSONDecodeError:
        # Of a text with several faults, any may be told.
        return found | {"invalid_json", "too_deep"}
    except RecursionError:
        return {"too_deep"}
    except ValueError:  # more digits than Python reads
        return found | {"invalid_number", "too_deep"}
    return found | _faults_inside(value)


def _faults_inside(value: Any) -> set[str]:
    found: set[str] = set()
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str) and any("\ud800" <= character <= "\udfff" for character in item):
            found.add("invalid_string")
        if isinstance(item, Pairs | list):
            if depth + 1 > MOST_LEVELS:
                found.add("too_deep")
            inner = [part for pair in item for part in pair] if isinstance(item, Pairs) else item
            waiting += [(part, depth + 1) for part in inner]
    return found


# --- errors and prompts


def check_error(error: RequestError, wire: WireFormat) -> None:
    """An error is one that docs/errors.md has, and goes over the wire."""
    status, retryable = _documented()[error.code]
    answer = wire.render_error(error, "request-1")
    is_invalid = wire is systemone.WIRE and isinstance(error, InvalidRequest)
    assert answer.status == (422 if is_invalid else status)
    assert error.retryable == retryable
    assert 0 < len(error.message.encode()) <= MOST_MESSAGE_BYTES
    assert json.loads(json.dumps(answer.body, allow_nan=False, ensure_ascii=False).encode())


@cache
def _documented() -> dict[str, tuple[int, bool]]:
    return documented_errors()


def check_prompts(decision: Decision) -> None:
    """The user message is one JSON object of exactly the decision, in either layout."""
    options = [
        {"letter": letter, "description": option.description}
        for letter, option in zip(ascii_uppercase, decision.options, strict=False)
    ]
    parts = {"evidence": decision.state, "criterion": decision.question, "options": options}
    orders = {"evidence_first": [0, 1, 2], "criterion_first": [1, 2, 0]}
    for layout in LAYOUTS:
        prompt = write_prompt(decision, plain_template(), tuple(ascii_uppercase), layout)
        expected = dict([list(parts.items())[index] for index in orders[layout]])
        assert repr(json.loads(prompt.content)) == repr(expected)
        assert 0 < prompt.head_end < prompt.prefix_end < len(prompt.content)
        assert len(prompt.sha256) == 64


# --- the native format


def native_check(data: bytes) -> None:
    """A request is taken exactly when the schema takes it, and says what it said."""
    try:
        value = strict_json.parse(data)
        request = native.parse_request(value, LIMITS)
    except RequestError as error:
        check_error(error, native.WIRE)
        if not refusals(data):
            _check_native_refusal(error, json.loads(data))
        return
    assert _validator("Request").is_valid(value)
    written = _write_native(request)
    assert repr(native.parse_request(written, LIMITS)) == repr(request)
    for decision in request.decisions:
        check_prompts(decision)


def _check_native_refusal(error: RequestError, value: Any) -> None:
    # What JSON Schema cannot say: that ids are unique, and that 1.0 is not the number 1.
    if error.code != "duplicate_id" and not _is_float_order(value):
        assert not _validator("Request").is_valid(value), error.code


def _is_float_order(value: Any) -> bool:
    scoring = value.get("scoring") if isinstance(value, dict) else None
    return isinstance(scoring, dict) and isinstance(scoring.get("orders"), float)


def _write_native(request: native.NativeRequest) -> Any:
    decisions = [
        {
            "id": decision.id,
            "state": decision.state,
            "question": decision.question,
            "options": [vars(option) for option in decision.options],
        }
        for decision in request.decisions
    ]
    body = {"decision": decisions[0]} if request.single else {"decisions": decisions}
    return {**body, "scoring": vars(request.scoring)}


@cache
def _validator(name: str) -> Draft202012Validator:
    components = openapi.document(LIMITS)["components"]
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})


def native_seeds() -> list[bytes]:
    """The examples, whole and with scoring."""
    examples = [
        json.loads((ROOT / "examples" / name).read_bytes())
        for name in ("support-route.json", "shared-state.json")
    ]
    option = [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}]
    small = {"id": "d", "state": None, "question": "q?", "options": option}
    scoring = {"orders": 2, "layout": "criterion_first"}
    several = {"decisions": [small, {**small, "id": "e", "state": [1.5, {"k": True}]}]}
    requests = [*examples, {"decision": small, "scoring": scoring}, several]
    return [json.dumps(request).encode() for request in requests]


# --- System One


def systemone_check(data: bytes) -> None:
    """What is taken fits the schema; each question is one decision, and its answer is finite."""
    try:
        value = strict_json.parse(data)
        request = systemone.parse_request(value, TERMS)
    except RequestError as error:
        check_error(error, systemone.WIRE)
        return
    assert _validator("SystemOneRequest").is_valid(value)
    asked = json.loads(data)
    assert [decision.id for decision in request.decisions] == list(asked["questions"])
    for question in request.questions:
        assert repr(question.decision.state) == repr(asked["state"])
        check_prompts(question.decision)
        _check_answers(question, asked["questions"][question.decision.id])


def _check_answers(question: systemone.Question, asked: dict[str, Any]) -> None:
    options = len(question.decision.options)
    for probabilities in ((1 / options,) * options, (0.0,) * (options - 1) + (1.0,)):
        answer = json.loads(json.dumps(question.answer(probabilities), allow_nan=False))
        assert answer["type"] == asked["type"]
        assert 0 <= answer.get("confidence", 0) <= 1 + 1e-9
    # The last answer is certain of the last option.
    match asked["type"]:
        case "noul":
            assert answer["noul"] == 0
        case "choice":
            assert answer["choice"] == list(asked["criteria"])[-1]
            assert list(answer["probabilities"]) == list(asked["criteria"])
        case "score":
            assert answer["score"] == options - 1
            assert repr(list(answer["legend"].values())) == repr(asked["criteria"])


def systemone_seeds() -> list[bytes]:
    """A request of all three types, and one of each."""
    requests = [SYSTEM_ONE]
    requests += [
        {**SYSTEM_ONE, "questions": {name: question}}
        for name, question in SYSTEM_ONE["questions"].items()
    ]
    return [json.dumps(request).encode() for request in requests]


# --- compressed bodies

_ENCODINGS = ("identity", "gzip", "zstd")


def body_check(data: bytes) -> None:
    """The first byte chooses the encoding; what comes out is what another decoder makes of it."""
    encoding, raw = _ENCODINGS[data[0] % 3 if data else 0], data[1:]
    try:
        body = _loop().run_until_complete(
            read_body(
                _chunks(raw),
                content_length=str(len(raw)),
                encoding=encoding,
                max_bytes=MOST_BODY_BYTES,
                timeout_seconds=3600,
            )
        )
    except RequestError as error:
        check_error(error, native.WIRE)
        _check_body_refusal(error, raw, encoding)
        return
    assert len(body) <= MOST_BODY_BYTES
    assert body == _decode(raw, encoding)
    native_check(body)
    systemone_check(body)


def _check_body_refusal(error: RequestError, raw: bytes, encoding: str) -> None:
    try:
        whole = _decode(raw, encoding)
    except (EOFError, OSError, zlib.error, zstandard.ZstdError):
        return  # another decoder refuses it, too, or its end is missing
    is_too_large = max(len(whole), len(raw)) > MOST_BODY_BYTES
    # Several streams one after another, or bytes behind the first, are refused by us alone.
    assert is_too_large == isinstance(error, TooLarge) or encoding != "identity"


def _decode(raw: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(raw)
    if encoding == "zstd":
        with zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(raw) as reader:
            return reader.read(MOST_BODY_BYTES + 1)
    return raw


async def _chunks(raw: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(raw), 64):
        yield raw[start : start + 64]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def body_seeds() -> list[bytes]:
    """The wire formats' seeds, in each encoding; two bombs."""
    plain = [*native_seeds(), *systemone_seeds()]
    zstd = zstandard.ZstdCompressor(level=3)
    bomb = bytes(1 << 20)
    return [
        *(b"\0" + seed for seed in plain[2:5]),
        *(b"\1" + gzip.compress(seed, mtime=0) for seed in [*plain, bomb]),
        *(b"\2" + zstd.compress(seed) for seed in [*plain, bomb]),
    ]


# --- JSON Lines


def lines_check(data: bytes) -> None:
    """Each line is one request, in either format; its id is told even where it is refused."""
    expected = data.split(b"\n")
    assert list(json_lines.split(data)) == (expected if expected[-1] else expected[:-1])
    for line in expected:
        native_check(line)
        systemone_check(line)
        if not refusals(line):
            _check_id(json.loads(line))


def _check_id(value: Any) -> None:
    found = native.readable_id(value)
    if found is not None:
        assert found == value["decision"]["id"]
        assert 0 < len(found) <= native.MAX_ID_CHARACTERS


TARGETS = (
    Target(
        name="strict-json",
        check=strict_json_check,
        seeds=lambda: [*native_seeds(), b'[1, -2.5e3, "\\ud83d\\ude00", true, null, {"a": {}}]'],
        words=JSON_WORDS,
    ),
    Target(
        name="native",
        check=native_check,
        seeds=native_seeds,
        words=(*JSON_WORDS, *NATIVE_WORDS),
    ),
    Target(
        name="systemone",
        check=systemone_check,
        seeds=systemone_seeds,
        words=(*JSON_WORDS, *SYSTEM_ONE_WORDS),
    ),
    Target(
        name="json-lines",
        check=lines_check,
        seeds=lambda: [b"\n".join([*native_seeds()[2:], b"", *systemone_seeds()[1:], b""])],
        words=(*JSON_WORDS, *NATIVE_WORDS, b"\n", b"\r\n"),
    ),
    Target(name="body", check=body_check, seeds=body_seeds, words=JSON_WORDS),
)
