"""When the client tries again: how often, how long after what, and never past its budget."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballot import (
    AccessDenied,
    Ballot,
    BallotError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidRequest,
    RetryPolicy,
    ScoringFailed,
    TransportFailed,
    Unavailable,
)
from ballot.retry import Attempts
from ballot.transport import Reply, Stream
from tests.scripted_endpoint import (
    DECISION,
    GOOD,
    WAYS,
    AwsStep,
    FakeClock,
    Step,
    client_of,
    scripted,
)
from tests.wire import documented_errors


def refused(code: str, **headers: str) -> Step:
    """An error answer of the adapter, as docs/errors.md has them."""
    status, retryable = documented_errors()[code]
    body = {
        "error": f"it is {code}",
        "code": code,
        "retryable": retryable,
        "field": None,
        "request_id": "r-1",
    }
    return Step(status, body, headers)


def fail(way: str, *steps: Step, retry: RetryPolicy | None = None) -> tuple[BallotError, int]:
    """Ask an endpoint with that script; return the error, and how many requests it took."""
    with (
        scripted(*steps) as endpoint,
        client_of(endpoint.url, way, retry=retry, clock=FakeClock()) as client,
    ):
        with pytest.raises(BallotError) as caught:
            client.decide(DECISION)
        return caught.value, len(endpoint.received)


@pytest.mark.parametrize("way", WAYS)
def test_the_container_s_503_is_tried_again_and_succeeds(way: str) -> None:
    clock = FakeClock()
    with (
        scripted(refused("busy"), refused("loading"), GOOD) as endpoint,
        client_of(endpoint.url, way, clock=clock) as client,
    ):
        result = client.decide(DECISION)

    assert result.best == "b"
    assert len(endpoint.received) == 3
    assert len({request.body for request in endpoint.received}) == 1
    assert clock.sleeps == [0.5, 1.0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", sorted(documented_errors()))
def test_only_what_may_pass_is_tried_again(way: str, code: str) -> None:
    status, retryable = documented_errors()[code]
    error, attempts = fail(way, *[refused(code)] * 9, retry=RetryPolicy(attempts=3))

    assert (error.status, error.code, error.retryable) == (status, code, retryable)
    assert error.request_id == "r-1"
    assert attempts == (3 if status in (408, 503) else 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("status", "kind", "attempts"),
    [
        (400, InvalidRequest, 1),
        (401, AccessDenied, 1),
        (403, AccessDenied, 1),
        (404, InvalidRequest, 1),
        (408, InvalidRequest, 5),
        (409, InvalidRequest, 1),
        (422, InvalidRequest, 1),
        (429, Unavailable, 5),
        (500, ScoringFailed, 1),
        (501, ScoringFailed, 1),
        (502, Unavailable, 5),
        (503, Unavailable, 5),
        (504, Unavailable, 5),
        (529, Unavailable, 5),
    ],
)
def test_a_status_without_our_body(
    way: str, status: int, kind: type[BallotError], attempts: int
) -> None:
    error, made = fail(way, *[Step(status, b"<html>no</html>")] * 9)

    assert type(error) is kind
    assert (error.status, error.code, error.message) == (
        status,
        f"http_{status}",
        "<html>no</html>",
    )
    assert made == attempts


@pytest.mark.parametrize("way", ["sagemaker", "sagemaker-async"])
@pytest.mark.parametrize(
    ("status", "name", "text", "kind", "attempts"),
    [
        (400, "ThrottlingException", "Rate exceeded", Unavailable, 5),
        (503, "ServiceUnavailable", "busy", Unavailable, 5),
        (500, "InternalFailure", "oops", Unavailable, 5),
        (530, "InternalDependencyException", "oops", Unavailable, 5),
        (429, "ModelNotReadyException", "loading", Unavailable, 5),
        (403, "AccessDeniedException", "not authorized", AccessDenied, 1),
        (403, "ExpiredTokenException", "expired", AccessDenied, 1),
        (403, "UnrecognizedClientException", "invalid token", AccessDenied, 1),
        (400, "ValidationError", "Endpoint decide of account 1 not found.", EndpointNotFound, 1),
        (400, "ValidationError", "Variant x does not exist", InvalidRequest, 1),
        (413, "RequestEntityTooLarge", "too large", InvalidRequest, 1),
    ],
)
def test_sagemaker_s_own_errors(
    way: str, status: int, name: str, text: str, kind: type[BallotError], attempts: int
) -> None:
    step = AwsStep(status, text.encode(), error=name)
    error, made = fail(way, *[step] * 9)

    assert type(error) is kind
    assert (error.status, error.code, error.request_id) == (
        status,
        name,
        "00000000-0000-4000-8000-000000000001",
    )
    assert text in error.message
    assert error.retryable == (attempts > 1)
    assert made == attempts


@pytest.mark.parametrize("way", ["sagemaker", "sagemaker-async"])
def test_a_container_that_did_not_answer_sagemaker_in_time_is_asked_again(way: str) -> None:
    text = b"Your invocation timed out while waiting for a response from container primary."
    error, made = fail(way, *[Step(0, text)] * 9, retry=RetryPolicy(attempts=2))

    assert isinstance(error, Unavailable)
    assert (error.status, error.message) == (504, text.decode())
    assert made == 2


@pytest.mark.parametrize("way", WAYS)
def test_what_the_endpoint_says_is_no_use_is_not_tried_again(way: str) -> None:
    error, attempts = fail(way, *[Step(503, {"error": "gone", "retryable": False})] * 9)

    assert (type(error), error.message, error.retryable) == (Unavailable, "gone", False)
    assert attempts == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_drops_is_made_again(way: str) -> None:
    with (
        scripted(Step(drops=True), Step(drops=True), GOOD) as endpoint,
        client_of(endpoint.url, way, clock=FakeClock()) as client,
    ):
        assert client.decide(DECISION).best == "b"

    assert len(endpoint.received) == 3


@pytest.mark.parametrize("way", WAYS)
def test_nobody_listens(way: str) -> None:
    with scripted() as endpoint:
        url = endpoint.url
    policy = RetryPolicy(attempts=2)
    with (
        client_of(url, way, retry=policy, clock=FakeClock()) as client,
        pytest.raises(TransportFailed) as caught,
    ):
        client.decide(DECISION)

    assert (caught.value.code, caught.value.status) == ("connection_failed", None)
    assert caught.value.retryable


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_retry_after_is_waited_for_and_the_jitter_comes_on_top(way: str) -> None:
    clock = FakeClock(0.0, 0.5)
    steps = (refused("busy", **{"Retry-After": "7"}), refused("busy", **{"Retry-After": "3"}))
    with scripted(*steps, GOOD) as endpoint, client_of(endpoint.url, way, clock=clock) as client:
        client.decide(DECISION)

    assert clock.sleeps == [7.0, 3.5]


@pytest.mark.parametrize("way", ["http", "http-async"])
@pytest.mark.parametrize("advice", ["soon", "-5", "inf", "nan", "Wed, 21 Oct 2065 07:28:00 GMT"])
def test_retry_after_that_is_no_number_of_seconds_is_no_advice(way: str, advice: str) -> None:
    clock = FakeClock()
    with (
        scripted(refused("busy", **{"Retry-After": advice}), GOOD) as endpoint,
        client_of(endpoint.url, way, clock=clock) as client,
    ):
        client.decide(DECISION)

    assert clock.sleeps == [0.5]


@pytest.mark.parametrize("way", WAYS)
def test_the_budget_bounds_slow_attempts(way: str) -> None:
    clock = FakeClock()
    slow = Step(503, b"busy", then=lambda: clock.advance(40))
    with (
        scripted(*[slow] * 9) as endpoint,
        client_of(
            endpoint.url, way, retry=RetryPolicy(attempts=9, budget_seconds=100), clock=clock
        ) as client,
        pytest.raises(DeadlineExceeded) as caught,
    ):
        client.decide(DECISION)

    # 40, 0.5, 40, 1, and what the third takes: no fourth begins.
    assert len(endpoint.received) == 3
    assert (caught.value.code, caught.value.status) == ("budget_spent", 503)
    assert isinstance(caught.value.last, Unavailable)
    assert caught.value.__cause__ is caught.value.last


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_a_wait_that_would_pass_the_budget_is_not_begun(way: str) -> None:
    clock = FakeClock()
    steps = (refused("busy"), refused("busy", **{"Retry-After": "30"}))
    with (
        scripted(*steps, GOOD) as endpoint,
        client_of(endpoint.url, way, retry=RetryPolicy(budget_seconds=20), clock=clock) as client,
        pytest.raises(DeadlineExceeded) as caught,
    ):
        client.decide(DECISION)

    assert len(endpoint.received) == 2
    assert clock.sleeps == [0.5]
    last = caught.value.last
    assert isinstance(last, Unavailable)
    assert last.retry_after == 30


@pytest.mark.parametrize("way", WAYS)
def test_an_endpoint_that_stays_silent_is_left_when_the_budget_is_spent(way: str) -> None:
    released = threading.Event()
    with (
        scripted(Step(then=released.wait)) as endpoint,
        client_of(endpoint.url, way, retry=RetryPolicy(budget_seconds=0.3)) as client,
    ):
        try:
            with pytest.raises(DeadlineExceeded) as caught:
                client.decide(DECISION)
        finally:
            released.set()

    assert len(endpoint.received) == 1
    assert isinstance(caught.value.last, TransportFailed)
    assert caught.value.last.code == "timed_out"


class Recorded:
    """A transport on a fake clock that refuses everything after a while, and keeps time-outs."""

    def __init__(self, clock: FakeClock, takes: float) -> None:
        self._clock, self._takes = clock, takes
        self.spans: list[tuple[float, float]] = []

    def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        self.spans.append((self._clock.seconds, timeout))
        self._clock.advance(min(self._takes, timeout))
        return Reply(503, {}, b"")

    def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | Stream:
        return self.send(path, body, timeout=timeout)

    def close(self) -> None:
        pass


@given(
    budget=st.floats(0.01, 1000),
    takes=st.floats(0, 200),
    draws=st.lists(st.floats(0, 1), max_size=20),
)
def test_no_attempt_may_end_after_the_budget_does(
    budget: float, takes: float, draws: list[float]
) -> None:
    clock = FakeClock(*draws)
    transport = Recorded(clock, takes)
    policy = RetryPolicy(attempts=20, budget_seconds=budget)
    with Ballot(transport=transport, retry=policy, clock=clock.clock) as client:
        with pytest.raises((DeadlineExceeded, Unavailable)):
            client.decide(DECISION)
        streamed = len(transport.spans)
        assert 1 <= streamed <= 20
        began = clock.seconds
        with pytest.raises((DeadlineExceeded, Unavailable)):
            next(client.chat_stream([]))

    spans = [(start, timeout, 0.0) for start, timeout in transport.spans[:streamed]]
    spans += [(start, timeout, began) for start, timeout in transport.spans[streamed:]]
    for start, timeout, began in spans:
        assert timeout > 0
        assert start + timeout == pytest.approx(began + budget)
    assert clock.seconds <= (began + budget) * (1 + 1e-9)


@given(
    base=st.floats(0.001, 100),
    cap=st.floats(0.001, 100),
    attempt=st.integers(1, 10_000),
    draw=st.floats(0, 1),
)
def test_the_backoff_is_capped_and_its_jitter_full(
    base: float, cap: float, attempt: int, draw: float
) -> None:
    policy = RetryPolicy(base_seconds=base, cap_seconds=cap)

    wait = policy.backoff(attempt, draw)

    assert policy.backoff(attempt, 0.0) == 0
    assert 0 <= wait <= policy.backoff(attempt, 1.0) <= cap
    assert policy.backoff(attempt, 1.0) <= policy.backoff(attempt + 1, 1.0)
    assert wait == pytest.approx(draw * policy.backoff(attempt, 1.0))


def test_the_backoff_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(base_seconds=0.5, cap_seconds=8)

    waits = [policy.backoff(attempt, 1.0) for attempt in range(1, 8)]

    assert waits == [0.5, 1, 2, 4, 8, 8, 8]


def test_a_clock_that_overslept_the_budget_begins_no_attempt() -> None:
    clock = FakeClock()
    attempts = Attempts(RetryPolicy(budget_seconds=10), clock.clock)
    error = Unavailable("busy", retryable=True)
    attempts.wait_after(error)
    clock.advance(10)

    with pytest.raises(DeadlineExceeded) as caught:
        attempts.time_out()

    assert caught.value.last is error


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"budget_seconds": 0},
        {"budget_seconds": float("inf")},
        {"base_seconds": -1},
        {"cap_seconds": float("nan")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        RetryPolicy(**options)
