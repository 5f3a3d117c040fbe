"""The gateway over HTTP: who is let in, what is read, and how it answers."""

from __future__ import annotations

import gzip
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from starlette.datastructures import Headers

from adapter.logs import origin as adapter_origin
from ballot.gateway import (
    GatewaySettings,
    SageMakerTarget,
    StartupError,
    UrlTarget,
    app,
    connection,
    create_app,
)
from ballot.gateway.auth import Guard
from ballot.gateway.errors import Foreign
from ballot.gateway.serve import listen
from tests.adapter_process import ROOT
from tests.gateway_server import (
    RunningGateway,
    ScriptedServer,
    answering,
    running_gateway,
    wait_logged,
)
from tests.wire import Connection

NATIVE = {"decision": {"id": "d", "state": "s", "question": "q?", "options": []}}
SYSTEM_ONE = {"state": "s", "questions": {"q": {"type": "noul", "instructions": "?"}}}
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: dict[str, Any] = {
    "/invocations": NATIVE,
    "/v1/systemone": SYSTEM_ONE,
    "/v1/chat/completions": CHAT,
}
# An answer of all three protocols at once.
ANSWER = b'{"result":{"p":0.30000000000000004}, "answers": {}, "choices": [], "model": "m"}'
KEY = "a-key-of-the-tests"
MAX_BODY_BYTES = 4096
_ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \|", re.M)
DOCUMENTED = {
    code: (int(status), retryable == "yes")
    for code, status, retryable in _ROW.findall((ROOT / "docs/gateway.md").read_text())
}


def in_front_of(endpoint: ScriptedServer) -> dict[str, Any]:
    target = UrlTarget(endpoint.url)
    return {"decisions": target, "chat": target}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ScriptedServer]:
    with ScriptedServer(answering(ANSWER)) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(endpoint: ScriptedServer) -> Iterator[RunningGateway]:
    limits = {"max_body_bytes": MAX_BODY_BYTES, "body_timeout_seconds": 0.5}
    with running_gateway(**in_front_of(endpoint), **limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        yield client


@pytest.fixture(scope="module")
def locked(endpoint: ScriptedServer) -> Iterator[RunningGateway]:
    with running_gateway(key=KEY, **in_front_of(endpoint)) as running:
        yield running


@pytest.fixture
def asked(endpoint: ScriptedServer) -> list[Any]:
    """What the endpoint is asked in one test."""
    endpoint.asked.clear()
    return endpoint.asked


def check_error(answer: httpx.Response) -> tuple[int, str]:
    """Check an error against docs/gateway.md, in its route's shape; return status and code."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()
    path = answer.request.url.path
    if path.startswith("/v1/chat"):
        assert error.keys() == {"error"}
        assert error["error"].keys() == {"message", "type", "param", "code"}
        code = error["error"]["code"]
    elif path.startswith("/v1/"):
        code, retryable = system_one_error(error)
        assert retryable == DOCUMENTED[code][1]
        assert error["x_request_id"] == answer.headers["x-typesafe-request-id"]
    else:
        assert error.keys() == {"error", "code", "retryable", "field", "request_id"}
        assert error["retryable"] == DOCUMENTED[error["code"]][1]
        assert error["request_id"] == answer.headers["x-request-id"]
        code = error["code"]
    status = DOCUMENTED[code][0]
    is_system_one = path.startswith("/v1/") and not path.startswith("/v1/chat")
    assert answer.status_code == (422 if is_system_one and status == 400 else status)
    return status, code


def system_one_error(error: dict[str, Any]) -> tuple[str, bool]:
    detail = error["detail"]
    if isinstance(detail, list):
        assert detail[0]["loc"][0] == "body"
        assert detail[0]["msg"]
        code = detail[0]["type"]
    else:
        assert detail["message"]
        code = detail["error_type"]
    return {"authentication_error": "wrong_key"}.get(code, code), error["x_retryable"]


# What is passed on


@pytest.mark.parametrize("path", BODIES)
def test_requests_and_answers_are_passed_on_byte_for_byte(
    client: httpx.Client, asked: list[Any], path: str
) -> None:
    body = json.dumps(BODIES[path], indent=3).encode()
    answer = client.post(path, content=body, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.content) == (200, ANSWER)
    assert [(request.path, request.body) for request in asked] == [(path, body)]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_bodies_are_passed_on_as_what_they_hold(
    client: httpx.Client, asked: list[Any], encoding: str
) -> None:
    body = json.dumps({**SYSTEM_ONE, "state": "a" * 2000}).encode()
    packed = gzip.compress(body) if encoding == "gzip" else zstandard.compress(body)
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = client.post("/v1/systemone", content=packed, headers=headers)

    assert answer.status_code == 200
    assert asked[0].body == body
    assert "content-encoding" not in asked[0].headers


def test_nothing_of_the_caller_but_the_body_reaches_the_endpoint(
    locked: RunningGateway, asked: list[Any]
) -> None:
    headers = {"authorization": f"Bearer {KEY}", "cookie": "c", "x-typesafe-sdk": "s"}
    with locked.client(headers=headers) as client:
        assert client.post("/invocations", json=NATIVE).status_code == 200

    assert not {"authorization", "cookie", "x-typesafe-sdk"} & asked[0].headers.keys()


def test_models_are_learned_from_one_answer(endpoint: ScriptedServer) -> None:
    endpoint.asked.clear()
    with running_gateway(**in_front_of(endpoint)) as running, running.client() as client:
        first, second = client.get("/v1/models"), client.get("/v1/models")

    assert first.json() == second.json()
    (model,) = first.json()["models"]
    assert model["name"] == "m"
    assert model["description"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", model["release_date"])
    assert [entry["id"] for entry in first.json()["data"]] == [endpoint.url]
    assert [request.path for request in endpoint.asked] == ["/v1/systemone"]


@pytest.mark.parametrize("path", ["/invocations", "/v1/systemone", "/v1/chat/completions"])
def test_a_route_without_an_endpoint_says_so(endpoint: ScriptedServer, path: str) -> None:
    targets = in_front_of(endpoint)
    targets["decisions" if path != "/v1/chat/completions" else "chat"] = None
    with running_gateway(**targets) as running, running.client() as client:
        assert check_error(client.post(path, json=BODIES[path])) == (404, "not_found")


# Ids


def test_a_request_id_is_taken_and_given(client: httpx.Client) -> None:
    mine = client.post("/v1/systemone", json=SYSTEM_ONE, headers={"x-request-id": "mine:1"})
    bad = client.post("/v1/systemone", json=SYSTEM_ONE, headers={"x-request-id": "not mine"})

    assert mine.headers["x-request-id"] == mine.headers["x-typesafe-request-id"] == "mine:1"
    assert re.fullmatch("[0-9a-f]{32}", bad.headers["x-request-id"])


# The key

API = [("POST", path) for path in BODIES] + [("GET", "/v1/models")]


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer x y", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Basic {KEY}", KEY],
)
@pytest.mark.parametrize(("method", "path"), API)
def test_without_the_key_nothing_is_asked(
    locked: RunningGateway, asked: list[Any], method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    with locked.client() as client:
        answer = client.request(method, path, json=BODIES.get(path), headers=headers)

    assert check_error(answer) == (401, "wrong_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert asked == []


@pytest.mark.parametrize("path", BODIES)
def test_with_the_key_the_endpoint_is_asked(
    locked: RunningGateway, asked: list[Any], path: str
) -> None:
    with locked.client(headers={"authorization": f"bearer {KEY}"}) as client:
        assert client.post(path, json=BODIES[path]).status_code == 200
    assert len(asked) == 1


def test_two_keys_are_no_key(locked: RunningGateway, asked: list[Any]) -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")]
    with locked.client() as client:
        answer = client.post("/invocations", json=NATIVE, headers=headers)
    assert check_error(answer) == (401, "wrong_key")
    assert asked == []


def test_a_body_without_the_key_is_not_waited_for(locked: RunningGateway) -> None:
    with Connection(locked.port) as connection:
        connection.send(
            b"POST /invocations HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        assert connection.answer().status == 401


def test_the_page_and_health_need_no_key(locked: RunningGateway) -> None:
    with locked.client() as client:
        assert client.get("/").status_code == 200
        assert client.get("/healthz").json() == {"status": "ok", "key_required": True}


# Pages of other sites


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "attacker.example:8787",
        "127.0.0.1.attacker.example",
        "0.0.0.0",
        "localhost.attacker.example",
        "[::2]",
        "[",
        "127.0.0.1@attacker.example",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [*API, ("GET", "/"), ("GET", "/healthz"), ("GET", "/nowhere")]
)
def test_a_page_that_names_loopback_its_own_is_refused(
    client: httpx.Client, asked: list[Any], method: str, path: str, host: str
) -> None:
    answer = client.request(method, path, json=BODIES.get(path), headers={"host": host})
    assert check_error(answer) == (403, "foreign_host")
    assert asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8787", "LOCALHOST", "[::1]:8787"])
def test_the_names_of_loopback_are_answered(client: httpx.Client, host: str) -> None:
    assert client.post("/invocations", json=NATIVE, headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["https://attacker.example", "null", "http://127.0.0.1:1", "http://localhost", "", "http://["],
)
@pytest.mark.parametrize("path", BODIES)
def test_a_post_from_another_site_is_refused(
    client: httpx.Client, asked: list[Any], path: str, origin: str
) -> None:
    answer = client.post(path, json=BODIES[path], headers={"origin": origin})
    assert check_error(answer) == (403, "foreign_origin")
    assert asked == []


@pytest.mark.parametrize(("method", "path"), API)
def test_what_a_browser_calls_cross_site_is_refused(
    client: httpx.Client, asked: list[Any], method: str, path: str
) -> None:
    headers = {"sec-fetch-site": "cross-site"}
    answer = client.request(method, path, json=BODIES.get(path), headers=headers)
    assert check_error(answer) == (403, "foreign_origin")
    assert asked == []
    assert client.get("/", headers=headers).status_code == 200


def test_the_address_that_is_listened_on_is_answered() -> None:
    guard = Guard(key=None, loopback_host="127.0.0.2")
    guard.check_site(Headers({"host": "127.0.0.2:8787"}), method="GET")
    with pytest.raises(Foreign):
        guard.check_site(Headers({"host": "127.0.0.3:8787"}), method="GET")


def test_the_gateways_own_page_may_post(gateway: RunningGateway, client: httpx.Client) -> None:
    answer = client.post("/invocations", json=NATIVE, headers={"origin": gateway.url})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_preflight_allows_nothing(client: httpx.Client) -> None:
    asks = {"origin": "https://other.example", "access-control-request-method": "POST"}
    answer = client.options("/v1/systemone", headers=asks)
    assert check_error(answer) == (405, "method_not_allowed")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


# Bodies


def zstd_bomb(size: int) -> bytes:
    return zstandard.compress(b" " * size)


BAD_BODIES: dict[str, tuple[bytes, dict[str, str], tuple[int, str]]] = {
    "too large": (b" " * (MAX_BODY_BYTES + 1), {}, (413, "body_too_large")),
    "gzip bomb": (
        gzip.compress(b" " * 50_000_000),
        {"content-encoding": "gzip"},
        (413, "body_too_large"),
    ),
    "zstd bomb": (zstd_bomb(50_000_000), {"content-encoding": "zstd"}, (413, "body_too_large")),
    "not gzip": (b"{}", {"content-encoding": "gzip"}, (400, "invalid_encoding")),
    "half a zstd": (zstd_bomb(100)[:-3], {"content-encoding": "zstd"}, (400, "invalid_encoding")),
    "more than a gzip": (
        gzip.compress(b"{}") + b"x",
        {"content-encoding": "gzip"},
        (400, "invalid_encoding"),
    ),
    "brotli": (b"{}", {"content-encoding": "br"}, (415, "unsupported_encoding")),
    "encoded twice": (b"{}", {"content-encoding": "gzip, gzip"}, (415, "unsupported_encoding")),
    "a form": (
        b"{}",
        {"content-type": "application/x-www-form-urlencoded"},
        (415, "unsupported_media_type"),
    ),
    "text": (b"{}", {"content-type": "text/plain"}, (415, "unsupported_media_type")),
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_refused_before_the_endpoint_is_asked(
    client: httpx.Client, asked: list[Any], path: str, name: str
) -> None:
    body, headers, expected = BAD_BODIES[name]
    headers = {"content-type": "application/json", **headers}
    answer = client.post(path, content=body, headers=headers)
    assert check_error(answer) == expected
    assert asked == []


BAD_JSON = {
    b"": "invalid_json",
    b"{": "invalid_json",
    b"{} {}": "invalid_json",
    b"\xef\xbb\xbf{}": "invalid_json",
    b'{"stream": "\xff"}': "invalid_encoding",
    b"[" * 4000: "too_deep",
    b"[]": "wrong_type",
    b"null": "wrong_type",
    b'"questions"': "wrong_type",
}


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/chat/completions"])
@pytest.mark.parametrize("body", BAD_JSON)
def test_what_the_gateway_must_read_has_to_be_an_object(
    client: httpx.Client, asked: list[Any], path: str, body: bytes
) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post(path, content=body, headers=headers)
    assert check_error(answer) == (400, BAD_JSON[body])
    assert asked == []


def test_a_native_body_is_the_endpoints_to_judge(client: httpx.Client, asked: list[Any]) -> None:
    headers = {"content-type": "application/json"}
    assert client.post("/invocations", content=b"{", headers=headers).content == ANSWER
    assert asked[0].body == b"{"


def test_system_one_needs_its_questions(client: httpx.Client, asked: list[Any]) -> None:
    answer = client.post("/v1/systemone", json=NATIVE)
    assert check_error(answer) == (400, "missing_field")
    assert answer.json()["detail"][0]["loc"] == ["body", "questions"]
    assert asked == []


@pytest.mark.parametrize("stream", ["yes", 1, [], {}])
def test_stream_is_true_or_false(client: httpx.Client, asked: list[Any], stream: Any) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    assert check_error(answer) == (400, "wrong_type")
    assert answer.json()["error"]["param"] == "stream"
    assert asked == []


def head(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return "\r\n".join([*lines, *headers, "", ""]).encode()


@pytest.mark.parametrize("path", BODIES)
def test_a_hopeless_body_is_refused_before_it_is_sent(gateway: RunningGateway, path: str) -> None:
    with Connection(gateway.port) as caller:
        caller.send(head(path, f"content-length: {MAX_BODY_BYTES + 1}"))
        assert caller.answer().status == 413


def test_chunks_are_counted(gateway: RunningGateway, asked: list[Any]) -> None:
    with Connection(gateway.port) as caller:
        caller.send(head("/invocations", "transfer-encoding: chunked"))
        caller.send(b"800\r\n" + b" " * 0x800 + b"\r\n")
        caller.send(b"801\r\n" + b" " * 0x801 + b"\r\n")
        assert caller.answer().status == 413
    assert asked == []


@pytest.mark.parametrize("sent", [b"", b"{"])
def test_a_body_that_does_not_come_is_given_up(gateway: RunningGateway, sent: bytes) -> None:
    with Connection(gateway.port) as caller:
        caller.send(head("/invocations", "content-length: 100") + sent)
        answer = caller.answer()
        assert answer.status == 408
        assert json.loads(answer.body)["code"] == "body_timeout"
        assert caller.is_closed_by_adapter()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /invocations HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        head("/nowhere", "content-length: 100") + b"the rest never comes",
    ],
)
def test_a_request_that_does_not_come_is_given_up(
    endpoint: ScriptedServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.2)
    with (
        running_gateway(**in_front_of(endpoint)) as running,
        Connection(running.port) as caller,
    ):
        caller.send(sent)
        if b"nowhere" in sent:
            assert caller.answer().status == 404
            caller.send(b"x")
        assert caller.is_closed_by_adapter()


NOT_HTTP = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": head("/invocations", "content-length: 1", "content-length: 2"),
    "a bad chunk": head("/invocations", "transfer-encoding: chunked") + b"2\r\n{}\r\nzz\r\n",
    # Sent to the byte that is too many: what is sent later could cost the answer.
    "large headers": head("/", "x: ")
    .removesuffix(b"\r\n\r\n")
    .ljust(connection.MAX_HEADER_BYTES + 1, b"y"),
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_what_is_not_http_is_refused(gateway: RunningGateway, data: bytes) -> None:
    with Connection(gateway.port) as caller:
        caller.send(data)
        answer = caller.answer()
        error = json.loads(answer.body)
        assert (answer.status, error["code"]) == (400, "malformed_http")
        assert error["request_id"] == answer.headers["x-request-id"]
        assert caller.is_closed_by_adapter()


@pytest.mark.parametrize(
    ("method", "path", "expected", "allow"),
    [
        ("GET", "/v1/systemone", (405, "method_not_allowed"), "POST"),
        ("GET", "/v1/chat/completions", (405, "method_not_allowed"), "POST"),
        ("HEAD", "/invocations", (405, "method_not_allowed"), "POST"),
        ("POST", "/v1/models", (405, "method_not_allowed"), "GET"),
        ("DELETE", "/", (405, "method_not_allowed"), "GET, HEAD"),
        ("GET", "/v1/systemone/", (404, "not_found"), None),
        ("GET", "/page.py", (404, "not_found"), None),
        ("GET", "/..%2fapp.py", (404, "not_found"), None),
        ("POST", "/v1/completions", (404, "not_found"), None),
    ],
)
def test_wrong_routes_and_methods(
    client: httpx.Client, method: str, path: str, expected: tuple[int, str], allow: str | None
) -> None:
    answer = client.request(method, path)
    assert answer.headers.get("allow") == allow
    if method == "HEAD":
        assert (answer.status_code, answer.content) == (405, b"")
    else:
        assert (answer.status_code, check_error_code(answer)) == expected


def check_error_code(answer: httpx.Response) -> str:
    error = answer.json()
    if "detail" in error:
        return system_one_error(error)[0]
    found: str = error["code"] if isinstance(error["error"], str) else error["error"]["code"]
    return found


def test_the_documented_codes_are_those_in_the_source() -> None:
    source = "".join(path.read_text() for path in PAGE.parent.glob("*.py"))
    codes = set(re.findall(r"""(?:\bcode|_BAD)(?: =|=|":) ?"(\w+)\"""", source))
    # It stands for what a container said, with the container's status.
    assert codes - {"endpoint_error"} == DOCUMENTED.keys()


# The page

PAGE = ROOT / "client/ballot/gateway/page"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@pytest.mark.parametrize("file", sorted(PAGE.iterdir()), ids=lambda path: path.name)
def test_the_pages_files_are_served_as_what_they_are(client: httpx.Client, file: Path) -> None:
    answer = client.get(f"/{file.name}")
    assert answer.content == file.read_bytes()
    assert answer.headers["content-type"] == TYPES[file.suffix]
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"

    again = client.get(f"/{file.name}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.head(f"/{file.name}").headers["content-length"] == str(len(answer.content))


def test_the_page_itself_is_at_the_root(client: httpx.Client) -> None:
    assert client.get("/").content == (PAGE / "index.html").read_bytes()


def test_answers_are_not_kept_by_caches(client: httpx.Client) -> None:
    answer = client.post("/invocations", json=NATIVE)
    assert answer.headers["cache-control"] == "no-store"


# The log


def test_the_log_has_a_line_a_request_and_nothing_that_was_said(
    endpoint: ScriptedServer, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")
    body = {"state": "a secret", "questions": {"another secret": {}}}
    client.post("/v1/systemone", json=body, headers={"x-request-id": "good"})
    client.post("/v1/systemone", json=["a secret"], headers={"x-request-id": "bad"})
    client.get("/a%20secret", headers={"x-request-id": "none"})

    lines = [wait_logged(caplog, request_id=name) for name in ("good", "bad", "none")]
    found = [
        (line["request_id"], line["route"], line["status"], line["outcome"], line["upstream"])
        for line in lines
    ]
    assert found == [
        ("good", "/v1/systemone", 200, "ok", endpoint.url),
        ("bad", "/v1/systemone", 422, "wrong_type", None),
        ("none", "other", 404, "not_found", None),
    ]
    assert all(line["seconds"] >= 0 for line in lines)
    assert "secret" not in json.dumps(lines)


def test_the_log_of_a_bug_says_where_and_nothing_that_was_said(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")

    def fail(_: bytes) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr(app, "_json_object", fail)
    answer = client.post("/v1/systemone", json=SYSTEM_ONE, headers={"x-request-id": "bug"})

    assert check_error(answer) == (500, "internal_error")
    cause = wait_logged(caplog, request_id="bug")["cause"]
    assert re.fullmatch(r"ValueError at .*\bapp\.py:\d+ > test_gateway\.py:\d+", cause)


def test_the_adapters_log_of_a_bug_does_not_quote_it_either() -> None:
    with pytest.raises(ValueError, match="secret") as caught:
        int("a secret")
    assert re.fullmatch(r"ValueError at test_gateway\.py:\d+", adapter_origin(caught.value))


# Starting


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "name an endpoint"),
        ({"decisions": UrlTarget("localhost:8080")}, "'localhost:8080' is not a URL"),
        ({"decisions": UrlTarget("http://user:secret@")}, "'http://' is not a URL"),
        ({"chat": UrlTarget("ftp://127.0.0.1")}, "is not a URL"),
        ({"chat": UrlTarget("http://127.0.0.1:99999")}, "is not a URL"),
        ({"decisions": SageMakerTarget("")}, "name is empty"),
        ({"host": "0.0.0.0"}, "give it a key"),
        ({"host": "::"}, "give it a key"),
        ({"host": "gateway.example"}, "give it a key"),
        ({"key": ""}, "the key must be"),
        ({"key": "two words"}, "the key must be"),
        ({"key": "na\u00efve"}, "the key must be"),
        ({"port": 65536}, "the port 65536"),
        ({"max_calls": 33}, "max_calls must be at most 32"),
        ({"max_body_bytes": 0}, "max_body_bytes must be more than 0"),
        ({"body_timeout_seconds": float("nan")}, "body_timeout_seconds must be more than 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    named = {"decisions": UrlTarget("http://127.0.0.1:1")} if settings else {}
    with pytest.raises(StartupError) as caught:
        GatewaySettings(**{**named, **settings})
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_proxy_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1:9")
    with pytest.raises(StartupError, match="ALL_PROXY"):
        create_app(GatewaySettings(chat=UrlTarget("http://chat.example")))


def test_all_bad_settings_are_named_at_once() -> None:
    with pytest.raises(StartupError, match=r"name an endpoint.*give it a key.*the port -1"):
        GatewaySettings(host="0.0.0.0", port=-1)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert GatewaySettings(chat=UrlTarget("http://127.0.0.1:1"), host=host).is_loopback


def test_the_key_is_not_shown() -> None:
    assert KEY not in repr(GatewaySettings(chat=UrlTarget("http://127.0.0.1:1"), key=KEY))


def test_a_port_in_use_is_told() -> None:
    settings = GatewaySettings(chat=UrlTarget("http://127.0.0.1:1"), port=0)
    with listen(settings) as taken:
        port = taken.getsockname()[1]
        again = GatewaySettings(chat=UrlTarget("http://127.0.0.1:1"), port=port)
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen(again)


def test_with_a_key_any_host_is_answered(endpoint: ScriptedServer) -> None:
    with (
        running_gateway(key=KEY, host="0.0.0.0", **in_front_of(endpoint)) as running,
        running.client(headers={"authorization": f"Bearer {KEY}", "host": "gw.example"}) as client,
    ):
        assert client.post("/invocations", json=NATIVE).status_code == 200
        origin = {"origin": "https://other.example"}
        answer = client.post("/invocations", json=NATIVE, headers=origin)
        assert check_error(answer) == (403, "foreign_origin")
