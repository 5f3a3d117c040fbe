"""`GET /v1/models`, for both SDKs: what the endpoints serve.

SageMaker lets requests reach `/invocations` alone, so the model is learned from an answer to the
smallest question there is.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

from ballot.gateway.coalesce import Calls
from ballot.gateway.errors import UpstreamFailed
from ballot.gateway.protocols import SystemOne, parse
from ballot.gateway.upstream import Upstream

KEPT_SECONDS = 60.0
_QUESTION = json.dumps(
    {"state": "", "questions": {"model": {"type": "noul", "instructions": "Is this a test?"}}}
).encode()
_DETAILS = ("architecture", "quantization", "sha256")


class Models:
    """The list of models; the decision endpoint's is asked for once a minute at most."""

    def __init__(
        self,
        *,
        decisions: Upstream | None,
        chat: Upstream | None,
        calls: Calls[bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decisions, self._chat, self._calls = decisions, chat, calls
        self._clock = clock
        self._known: dict[str, str] = {}
        self._known_until = 0.0

    async def list(self) -> dict[str, Any]:
        """Return System One's list under `models`, and OpenAI's under `data`.

        Raises:
            GatewayError: the decision endpoint did not answer.
        """
        decisions = [await self._decision_model(self._decisions)] if self._decisions else []
        chat = [_openai_model(self._chat.name)] if self._chat else []
        return {"models": decisions, "object": "list", "data": chat}

    async def _decision_model(self, upstream: Upstream) -> dict[str, str]:
        if self._clock() >= self._known_until:
            answer, _ = await self._calls.share(
                b"/v1/models", lambda: upstream.send("/v1/systemone", _QUESTION, SystemOne())
            )
            self._known = _described(answer)
            self._known_until = self._clock() + KEPT_SECONDS
        return self._known


def _described(answer: bytes) -> dict[str, str]:
    body = parse(answer)
    name, details = body.get("model"), body.get("x_model")
    if not isinstance(name, str):
        raise UpstreamFailed("the endpoint's answer names no model", code="bad_endpoint_answer")
    known = details if isinstance(details, dict) else {}
    facts = [f"{key} {known[key]}" for key in _DETAILS if isinstance(known.get(key), str)]
    return {
        "name": name,
        "description": ", ".join([name, *facts])
        + ". No GGUF names its release: the date is that of this answer.",
        "release_date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ballot"}
