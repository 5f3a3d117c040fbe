"""The client: `Ballot`, and `AsyncBallot`, which is the same, awaited."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from types import EllipsisType, TracebackType
from typing import TypeVar, overload

import boto3.session

from ballot import calls
from ballot.calls import Call
from ballot.chat import ChatAnswer, DeltaReader
from ballot.decision import Decision, Option, Scoring
from ballot.errors import BallotError
from ballot.results import Result
from ballot.retry import Attempts, Clock, RetryPolicy
from ballot.systemone import DEFAULT_MODEL, Question, SystemOneAnswer
from ballot.transport import (
    AsyncHttpTransport,
    AsyncSageMakerTransport,
    AsyncStream,
    AsyncTransport,
    HttpTransport,
    SageMakerTransport,
    Stream,
    Transport,
)
from ballot.wire import Json

Answer = TypeVar("Answer")
Self = TypeVar("Self", bound="Ballot")
AsyncSelf = TypeVar("AsyncSelf", bound="AsyncBallot")


class Ballot:
    """A client of one endpoint, safe to share between threads.

    Ballot(endpoint_name="decide", region="eu-west-1")  asks through SageMaker, with the
        credentials of `session` or else of the environment;
    Ballot(url="http://127.0.0.1:8080", key=None)       asks an adapter or a gateway over HTTP;
    Ballot(transport=...)                               asks through a transport of your own.

    Every method tries again as `retry` says and raises `BallotError` when it gets no result:
    InvalidRequest, Unavailable, ScoringFailed, TransportFailed, AccessDenied, EndpointNotFound,
    InvalidAnswer or DeadlineExceeded.
    """

    def __init__(
        self,
        *,
        endpoint_name: str | None = None,
        region: str | None = None,
        session: boto3.session.Session | None = None,
        url: str | None = None,
        key: str | None = None,
        transport: Transport | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_one_target(endpoint_name, url, transport)
        if endpoint_name is not None:
            transport = SageMakerTransport(endpoint_name, region=region, session=session)
        elif url is not None:
            transport = HttpTransport(url, key=key)
        assert transport is not None
        self._transport = transport
        self._retry, self._clock = retry or RetryPolicy(), clock or Clock()

    @overload
    def decide(self, decision: Decision, *, scoring: Scoring | None = None) -> Result: ...

    @overload
    def decide(
        self,
        *,
        state: Json,
        question: str,
        options: Mapping[str, str] | Sequence[Option],
        id: str = "decision",
        scoring: Scoring | None = None,
    ) -> Result: ...

    def decide(
        self,
        decision: Decision | None = None,
        *,
        state: Json | EllipsisType = ...,
        question: str | None = None,
        options: Mapping[str, str] | Sequence[Option] | None = None,
        id: str = "decision",
        scoring: Scoring | None = None,
    ) -> Result:
        """Return the probabilities of a decision's options.

        The decision comes whole, or as its state, question and options; a mapping of options has
        descriptions by id.
        """
        whole = calls.decision_of(decision, state, question, options, id)
        return self._ask(calls.decide(whole, scoring))

    def decide_many(
        self,
        decisions: Sequence[Decision],
        *,
        scoring: Scoring | None = None,
        per_request: int = calls.MAX_DECISIONS,
    ) -> list[Result]:
        """Return a result for each decision, in their order; their ids must differ.

        They go in requests of at most `per_request`, those with equal states together, one after
        the other. The retry policy, and its budget, hold for each request.
        """
        results: dict[int, Result] = {}
        for part in calls.decide_many(decisions, scoring, per_request=per_request):
            try:
                answered = self._ask(part.call)
            except BallotError as error:
                part.relocate(error)
                raise
            results.update(zip(part.places, answered, strict=True))
        return [results[place] for place in range(len(decisions))]

    def systemone(
        self, state: Json, questions: Mapping[str, Question], *, model: str = DEFAULT_MODEL
    ) -> SystemOneAnswer:
        """Return the answers to System One questions about a text, object or array."""
        return self._ask(calls.system_one(state, questions, model))

    def chat(self, messages: Sequence[Mapping[str, Json]], **options: Json) -> ChatAnswer:
        """Return a chat answer; messages and options are OpenAI's (`max_tokens`, `temperature`)."""
        return self._ask(calls.chat_completion(messages, options))

    def chat_stream(
        self, messages: Sequence[Mapping[str, Json]], **options: Json
    ) -> Generator[str, None, None]:
        """Yield a chat answer's text in pieces, as they come.

        The retry policy, and its budget, hold until the answer begins; from then on an error ends
        it. Close the iterator to leave early.
        """
        return self._read_stream(calls.chat_stream(messages, options))

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, call: Call[Answer]) -> Answer:
        def attempt(timeout: float) -> Answer:
            return call.answer_of(self._transport.send(call.path, call.body, timeout=timeout))

        return self._try(attempt)

    def _read_stream(self, body: bytes) -> Generator[str, None, None]:
        def attempt(timeout: float) -> Stream:
            return calls.begun(self._transport.stream(calls.CHAT, body, timeout=timeout))

        stream, reader = self._try(attempt), DeltaReader()
        try:
            for chunk in stream.chunks:
                yield from reader.feed(chunk)
            reader.close()
        finally:
            stream.close()

    def _try(self, attempt: Callable[[float], Answer]) -> Answer:
        attempts = Attempts(self._retry, self._clock)
        while True:
            timeout = attempts.time_out()
            try:
                return attempt(timeout)
            except BallotError as error:
                wait = attempts.wait_after(error)
            self._clock.sleep(wait)


class AsyncBallot:
    """What `Ballot` is, awaited, for asyncio; its arguments, methods and errors are the same."""

    def __init__(
        self,
        *,
        endpoint_name: str | None = None,
        region: str | None = None,
        session: boto3.session.Session | None = None,
        url: str | None = None,
        key: str | None = None,
        transport: AsyncTransport | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_one_target(endpoint_name, url, transport)
        if endpoint_name is not None:
            transport = AsyncSageMakerTransport(endpoint_name, region=region, session=session)
        elif url is not None:
            transport = AsyncHttpTransport(url, key=key)
        assert transport is not None
        self._transport = transport
        self._retry, self._clock = retry or RetryPolicy(), clock or Clock()

    @overload
    async def decide(self, decision: Decision, *, scoring: Scoring | None = None) -> Result: ...

    @overload
    async def decide(
        self,
        *,
        state: Json,
        question: str,
        options: Mapping[str, str] | Sequence[Option],
        id: str = "decision",
        scoring: Scoring | None = None,
    ) -> Result: ...

    async def decide(
        self,
        decision: Decision | None = None,
        *,
        state: Json | EllipsisType = ...,
        question: str | None = None,
        options: Mapping[str, str] | Sequence[Option] | None = None,
        id: str = "decision",
        scoring: Scoring | None = None,
    ) -> Result:
        """Return the probabilities of a decision's options.

        The decision comes whole, or as its state, question and options; a mapping of options has
        descriptions by id.
        """
        whole = calls.decision_of(decision, state, question, options, id)
        return await self._ask(calls.decide(whole, scoring))

    async def decide_many(
        self,
        decisions: Sequence[Decision],
        *,
        scoring: Scoring | None = None,
        per_request: int = calls.MAX_DECISIONS,
    ) -> list[Result]:
        """Return a result for each decision, in their order; their ids must differ.

        They go in requests of at most `per_request`, those with equal states together, one after
        the other. The retry policy, and its budget, hold for each request.
        """
        results: dict[int, Result] = {}
        for part in calls.decide_many(decisions, scoring, per_request=per_request):
            try:
                answered = await self._ask(part.call)
            except BallotError as error:
                part.relocate(error)
                raise
            results.update(zip(part.places, answered, strict=True))
        return [results[place] for place in range(len(decisions))]

    async def systemone(
        self, state: Json, questions: Mapping[str, Question], *, model: str = DEFAULT_MODEL
    ) -> SystemOneAnswer:
        """Return the answers to System One questions about a text, object or array."""
        return await self._ask(calls.system_one(state, questions, model))

    async def chat(self, messages: Sequence[Mapping[str, Json]], **options: Json) -> ChatAnswer:
        """Return a chat answer; messages and options are OpenAI's (`max_tokens`, `temperature`)."""
        return await self._ask(calls.chat_completion(messages, options))

    def chat_stream(
        self, messages: Sequence[Mapping[str, Json]], **options: Json
    ) -> AsyncGenerator[str, None]:
        """Yield a chat answer's text in pieces, as they come.

        The retry policy, and its budget, hold until the answer begins; from then on an error ends
        it. Close the iterator to leave early.
        """
        return self._read_stream(calls.chat_stream(messages, options))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self: AsyncSelf) -> AsyncSelf:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(self, call: Call[Answer]) -> Answer:
        async def attempt(timeout: float) -> Answer:
            return call.answer_of(await self._transport.send(call.path, call.body, timeout=timeout))

        return await self._try(attempt)

    async def _read_stream(self, body: bytes) -> AsyncGenerator[str, None]:
        async def attempt(timeout: float) -> AsyncStream:
            return calls.begun(await self._transport.stream(calls.CHAT, body, timeout=timeout))

        stream, reader = await self._try(attempt), DeltaReader()
        try:
            async for chunk in stream.chunks:
                for text in reader.feed(chunk):
                    yield text
            reader.close()
        finally:
            await stream.close()

    async def _try(self, attempt: Callable[[float], Awaitable[Answer]]) -> Answer:
        attempts = Attempts(self._retry, self._clock)
        while True:
            timeout = attempts.time_out()
            try:
                return await attempt(timeout)
            except BallotError as error:
                wait = attempts.wait_after(error)
            await self._clock.sleep_async(wait)


def _check_one_target(*targets: object) -> None:
    if sum(target is not None for target in targets) != 1:
        raise TypeError("give one of endpoint_name, url and transport")
