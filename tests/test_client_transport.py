"""How requests travel: keys, time-outs, certificates, AWS's own faults, and streams that break."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3.exceptions
from boto3.session import Session
from botocore import exceptions as aws

from ballot import (
    AccessDenied,
    AsyncBallot,
    Ballot,
    BallotError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidRequest,
    RetryPolicy,
    ScoringFailed,
    TransportFailed,
)
from ballot.aws_errors import error_from_botocore
from ballot.errors import error_from_answer
from ballot.transport import HttpTransport, SageMakerTransport
from emulator.tls import make_certificate
from tests.adapter_process import ROOT
from tests.scripted_endpoint import (
    AWS_REQUEST_ID,
    DECISION,
    ENDPOINT,
    GOOD,
    REGION,
    RESULT,
    WAYS,
    FakeClock,
    Step,
    client_of,
    scripted,
)

ONCE = RetryPolicy(attempts=1)
SHORT_READ = aws.IncompleteReadError(actual_bytes=1, expected_bytes=2)


def test_the_key_goes_as_a_bearer_token() -> None:
    async def ask(url: str) -> None:
        async with AsyncBallot(url=url, key="secret") as client:
            await client.decide(DECISION)

    with scripted(GOOD, GOOD, GOOD) as endpoint:
        with Ballot(url=f"{endpoint.url}/", key="secret") as client:
            client.decide(DECISION)
        asyncio.run(ask(endpoint.url))
        with Ballot(url=f"{endpoint.url}/behind/a/path/") as client:
            client.decide(DECISION)

    keys = [request.headers.get("authorization") for request in endpoint.received]
    paths = [request.path for request in endpoint.received]
    assert keys == ["Bearer secret", "Bearer secret", None]
    assert paths == ["/invocations", "/invocations", "/behind/a/path/invocations"]


@pytest.mark.parametrize("key", ["", " ", "a b", "a\nb", "é"])
def test_a_key_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Ballot(url="http://127.0.0.1:9", key=key)

    assert caught.value.code == "invalid_key"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x", "http://", "http://a:b", "/x"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Ballot(url=url)

    assert caught.value.code == "invalid_url"


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_redirects_are_not_followed(way: str) -> None:
    steps = [Step(307, b"", {"Location": "http://127.0.0.1:9/invocations"})]
    with (
        scripted(*steps) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(BallotError) as caught,
    ):
        client.decide(DECISION)

    assert (caught.value.status, caught.value.code) == (307, "http_307")


# -- Proxies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_stands_before_this_machine(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with scripted(GOOD) as proxy, scripted(GOOD, GOOD) as endpoint:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, proxy.url)
        url = endpoint.url.replace("127.0.0.1", host)
        with Ballot(url=url, key="secret", retry=ONCE) as client:
            client.decide(DECISION)
        with Ballot(url="http://ballot.example", retry=ONCE) as client:
            client.decide(DECISION)

    assert [request.headers["host"] for request in proxy.received] == ["ballot.example"]
    assert [request.headers["authorization"] for request in endpoint.received] == ["Bearer secret"]


@pytest.mark.parametrize("client", [Ballot, AsyncBallot])
@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:9", "http://127.0.0.1:x"])
def test_a_proxy_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, client: type[Ballot | AsyncBallot], proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)

    with pytest.raises(InvalidRequest, match="ALL_PROXY") as caught:
        client(url="http://ballot.example")

    assert caught.value.code == "invalid_proxy"


# -- Time-outs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "connect", "read"),
    [
        (500, 5, 70),
        (70.9, 5, 70),
        (12.7, 5, 12),
        (3.2, 3, 3),
        (0.9, 0.5, 0.5),
        (0.01, 1 / 128, 1 / 128),
    ],
)
def test_sagemaker_s_time_outs_never_exceed_what_is_left(
    left: float, connect: float, read: float
) -> None:
    session = RecordingSession()
    transport = SageMakerTransport(ENDPOINT, session=session)

    transport._client(left)

    (config,) = session.configs
    assert (config.connect_timeout, config.read_timeout) == (connect, read)
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}


class RecordingSession:
    """Stands for a boto3 session, which is not to make clients here."""

    def __init__(self) -> None:
        self.configs: list[Any] = []

    def client(self, service: str, *, config: Any, **options: Any) -> object:
        assert service == "sagemaker-runtime"
        self.configs.append(config)
        return object()


def test_a_client_of_sagemaker_is_kept() -> None:
    session = RecordingSession()
    transport = SageMakerTransport(ENDPOINT, session=session)

    clients = [transport._client(left) for left in (120, 119.2, 70, 33.3, 33.9)]

    assert len(session.configs) == 2
    assert clients[0] is clients[1] is clients[2]
    assert clients[3] is clients[4]


@contextmanager
def trickling(piece: bytes) -> Iterator[str]:
    """A server whose answer never ends: a byte now and then, for as long as anybody listens."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not stopped.wait(0.01):
                    try:
                        connection.sendall(piece)
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            stopped.set()
            thread.join()


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_an_answer_that_trickles_is_given_up(way: str) -> None:
    policy = RetryPolicy(budget_seconds=0.3)
    with (
        trickling(b" ") as url,
        client_of(url, way, retry=policy) as client,
        pytest.raises(DeadlineExceeded) as caught,
    ):
        client.decide(DECISION)

    assert isinstance(caught.value.last, TransportFailed)
    assert caught.value.last.code == "timed_out"


@pytest.mark.parametrize("way", ["http-async", "sagemaker-async"])
def test_a_call_can_be_cancelled(way: str) -> None:
    arrived, released = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        released.wait()

    async def cancel(client: AsyncBallot) -> None:
        task = asyncio.ensure_future(client.decide(DECISION))
        await asyncio.to_thread(arrived.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with scripted(Step(then=hold)) as endpoint, client_of(endpoint.url, way) as client:
        try:
            client.run(cancel)
        finally:
            released.set()


# -- Certificates ---------------------------------------------------------------------------------


@contextmanager
def untrusted(folder: Path) -> Iterator[str]:
    """A TLS server whose certificate nobody vouches for."""
    made = make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                try:
                    context.wrap_socket(connection, server_side=True)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("way", WAYS)
def test_a_certificate_that_is_not_trusted_is_not_tried_again(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    clock = FakeClock()
    with (
        untrusted(tmp_path) as url,
        client_of(url, way, clock=clock) as client,
        pytest.raises(TransportFailed) as caught,
    ):
        client.decide(DECISION)

    assert (caught.value.code, caught.value.retryable) == ("untrusted_certificate", False)
    assert clock.sleeps == []


# -- AWS before any request -----------------------------------------------------------------------


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment that says nothing about AWS."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def refusal_of(client: Ballot) -> BallotError:
    with client, pytest.raises(BallotError) as caught:
        client.decide(DECISION)
    assert not caught.value.retryable
    return caught.value


def test_no_region(no_aws: pytest.MonkeyPatch) -> None:
    error = refusal_of(Ballot(endpoint_name=ENDPOINT))

    assert (type(error), error.code) == (EndpointNotFound, "no_region")


def test_no_credentials(no_aws: pytest.MonkeyPatch) -> None:
    error = refusal_of(Ballot(endpoint_name=ENDPOINT, region=REGION))

    assert (type(error), error.code) == (AccessDenied, "no_credentials")


def test_a_profile_that_is_not_there(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_PROFILE", "nobody")

    error = refusal_of(Ballot(endpoint_name=ENDPOINT, region=REGION))

    assert (type(error), error.code) == (AccessDenied, "no_credentials")
    assert "nobody" in error.message


@pytest.mark.parametrize("name", ["", "a b", "-a", "a-", "a/b", "../x", "é", "a" * 64, "a\n"])
def test_a_name_that_no_endpoint_can_have(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Ballot(endpoint_name=name, region=REGION)

    assert caught.value.code == "invalid_endpoint_name"


def test_a_region_that_is_no_host_name(no_aws: pytest.MonkeyPatch) -> None:
    error = refusal_of(Ballot(endpoint_name=ENDPOINT, region="eu west"))

    assert (type(error), error.code) == (EndpointNotFound, "no_region")


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (aws.UnauthorizedSSOTokenError(), AccessDenied, "no_credentials"),
        (aws.SSOTokenLoadError(error_msg="none"), AccessDenied, "no_credentials"),
        (aws.TokenRetrievalError(provider="sso", error_msg="none"), AccessDenied, "no_credentials"),
        (aws.CredentialRetrievalError(provider="x", error_msg="y"), AccessDenied, "no_credentials"),
        (aws.PartialCredentialsError(provider="x", cred_var="y"), AccessDenied, "no_credentials"),
        (aws.LoginRefreshRequired(), AccessDenied, "no_credentials"),
        (aws.LoginTokenLoadError(error_msg="none"), AccessDenied, "no_credentials"),
        (aws.MetadataRetrievalError(error_msg="none"), AccessDenied, "no_credentials"),
        (aws.RefreshWithMFAUnsupportedError(), AccessDenied, "no_credentials"),
        (aws.MissingDependencyException(msg="awscrt"), AccessDenied, "no_credentials"),
        (aws.InvalidConfigError(error_msg="none"), AccessDenied, "no_credentials"),
        (aws.ConfigNotFound(path="x"), AccessDenied, "no_credentials"),
        (aws.ConfigParseError(path="x"), AccessDenied, "no_credentials"),
        (aws.UnknownTokenProviderError(name="x"), AccessDenied, "no_credentials"),
        (aws.ParamValidationError(report="no body"), InvalidRequest, "invalid_aws_request"),
        (aws.ReadTimeoutError(endpoint_url="x"), TransportFailed, "timed_out"),
        (aws.ConnectTimeoutError(endpoint_url="x"), TransportFailed, "timed_out"),
        (aws.ResponseStreamingError(error="x"), TransportFailed, "connection_failed"),
        (
            aws.IncompleteReadError(actual_bytes=1, expected_bytes=2),
            TransportFailed,
            "connection_failed",
        ),
        (aws.ProxyConnectionError(proxy_url="x"), TransportFailed, "connection_failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_botocore_raises(raised: Exception, kind: type[BallotError], code: str) -> None:
    error = error_from_botocore(raised)

    assert (type(error), error.code, error.status) == (kind, code, None)
    assert error.message == str(raised)
    assert error.retryable == (kind is TransportFailed)


class FailingSession:
    """Stands for a boto3 session whose clients raise what botocore lets through."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def client(self, *_: Any, **__: Any) -> FailingSession:
        return self

    def invoke_endpoint(self, **_: Any) -> None:
        raise self._error

    invoke_endpoint_with_response_stream = invoke_endpoint


@pytest.mark.parametrize("method", ["send", "stream"])
@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [
        (urllib3.exceptions.ProtocolError("cut off"), TransportFailed, "connection_failed"),
        (urllib3.exceptions.TimeoutStateError("slow"), TransportFailed, "connection_failed"),
        (
            urllib3.exceptions.ReadTimeoutError(None, "x", "slow"),  # type: ignore[arg-type]
            TransportFailed,
            "timed_out",
        ),
        (ConnectionResetError("reset"), TransportFailed, "connection_failed"),
        (PermissionError(13, "denied", "credentials"), AccessDenied, "no_credentials"),
        (
            RuntimeError(
                "Credentials were refreshed, but the refreshed credentials are still expired."
            ),
            AccessDenied,
            "no_credentials",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_botocore_lets_through(
    raised: Exception, kind: type[BallotError], code: str, method: str
) -> None:
    transport = SageMakerTransport(ENDPOINT, session=FailingSession(raised))

    with pytest.raises(BallotError) as caught:
        getattr(transport, method)("/invocations", b"{}", timeout=5)

    assert (type(caught.value), caught.value.code) == (kind, code)
    assert caught.value.__cause__ is raised


def test_a_bug_is_not_taken_for_credentials() -> None:
    transport = SageMakerTransport(ENDPOINT, session=FailingSession(RuntimeError("a bug")))

    with pytest.raises(RuntimeError, match="a bug"):
        transport.send("/invocations", b"{}", timeout=5)


def test_credentials_that_were_mended_are_read_again(
    no_aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scripted(GOOD) as endpoint:
        no_aws.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", endpoint.url)
        with Ballot(endpoint_name=ENDPOINT, region=REGION, retry=ONCE) as client:
            with pytest.raises(AccessDenied):
                client.decide(DECISION)
            (tmp_path / "credentials").write_text(
                "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret\n"
            )
            assert client.decide(DECISION).best == "b"


def test_the_environment_says_where_sagemaker_is(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with scripted(GOOD) as endpoint:
        no_aws.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", endpoint.url)
        with Ballot(endpoint_name=ENDPOINT, region=REGION) as client:
            assert client.decide(DECISION).best == "b"

    signed = endpoint.received[0].headers["authorization"]
    assert f"/{REGION}/sagemaker/aws4_request" in signed


def test_the_examples_of_the_readme_run(
    no_aws: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_aws.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    result = {**RESULT, "id": "decision", "option_ids": ["access", "billing"]}
    text = (ROOT / "client" / "README.md").read_text()
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    with scripted(Step(200, {"result": result})) as endpoint:
        no_aws.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", endpoint.url)
        exec(first, {})
        exec(second, {"url": endpoint.url})

    assert capsys.readouterr().out == "billing 0.5 {'access': 0.25, 'billing': 0.75} 0.5\n"


def test_many_threads_share_a_client() -> None:
    count = 40
    session = Session(aws_access_key_id="A", aws_secret_access_key="s", region_name=REGION)
    with scripted(*[GOOD] * count) as endpoint:
        transport = SageMakerTransport(ENDPOINT, session=session, endpoint_url=endpoint.url)
        with Ballot(transport=transport, retry=ONCE) as client:

            async def ask() -> list[str]:
                calls = [asyncio.to_thread(client.decide, DECISION) for _ in range(count)]
                return [result.best for result in await asyncio.gather(*calls)]

            assert asyncio.run(ask()) == ["b"] * count

    assert len(endpoint.received) == count


# -- Errors in the shapes of other protocols -------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            422,
            b'{"detail": [{"loc": ["body", "questions", "q", 0], "msg": "Field required", '
            b'"type": "missing"}, {"loc": ["body"], "msg": "Too long", "type": "x"}]}',
            ("questions.q.0: Field required; Too long", "missing", "questions.q.0"),
        ),
        (
            401,
            b'{"detail": {"error_type": "authentication_error", "message": "no key"}}',
            ("no key", "authentication_error", None),
        ),
        (
            400,
            b'{"error": {"message": "bad", "type": "invalid_request_error", "param": "messages", '
            b'"code": null}}',
            ("bad", "invalid_request_error", "messages"),
        ),
        (
            400,
            b'{"error": {"code": 400, "message": "bad", "type": "invalid_request_error"}}',
            ("bad", "invalid_request_error", None),
        ),
        (404, b'{"detail": "Not Found"}', ("Not Found", "http_404", None)),
        (403, b'{"message": "Forbidden"}', ("Forbidden", "http_403", None)),
        (500, b"", ("the endpoint answered 500", "http_500", None)),
        (500, b"[]", ("[]", "http_500", None)),
        (500, b'{"error": 5}', ('{"error": 5}', "http_500", None)),
        (500, b'{"detail": []}', ('{"detail": []}', "http_500", None)),
        (400, b'{"error": "cut o', ('{"error": "cut o', "http_400", None)),
        (500, b"x" * 600, ("x" * 500 + "...", "http_500", None)),
        (500, b"\xff\n\nx", ("\N{REPLACEMENT CHARACTER} x", "http_500", None)),
        (500, b"[" * 100_000, ("[" * 500 + "...", "http_500", None)),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else "",
)
def test_what_an_error_answer_says(
    status: int, body: bytes, expected: tuple[str, str, str | None]
) -> None:
    error = error_from_answer(status, {"x-request-id": "r"}, body)

    assert (error.message, error.code, error.field) == expected
    assert (error.status, error.request_id) == (status, "r")


def test_the_request_id_of_an_answer_without_ours_is_aws_s() -> None:
    with (
        scripted(Step(500, b"oops")) as endpoint,
        client_of(endpoint.url, "sagemaker") as client,
        pytest.raises(ScoringFailed) as caught,
    ):
        client.decide(DECISION)

    assert caught.value.request_id == AWS_REQUEST_ID


def test_a_transport_of_one_s_own_may_be_any() -> None:
    with scripted(GOOD) as endpoint, Ballot(transport=HttpTransport(endpoint.url)) as client:
        assert client.decide(DECISION).best == "b"
