"""The adapter's condition, as one explicit value that `/ping` reads."""

from __future__ import annotations

import logging
from enum import Enum

from adapter.errors import Unavailable
from adapter.logs import log

FAILURES_BEFORE_UNHEALTHY = 3
RETRY_LOADING_SECONDS = 5
RETRY_DRAINING_SECONDS = 1


class State(Enum):
    """Loading, then ready, then draining; failed when the worker died."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Lifecycle:
    """Moves one way through the states; counts scorings that failed one after another."""

    def __init__(self) -> None:
        self.state = State.LOADING
        self._failed_prompts: set[str] = set()
        self._is_hanging = False

    @property
    def is_healthy(self) -> bool:
        """Whether `/ping` answers 200."""
        return (
            self.state is State.READY
            and len(self._failed_prompts) < FAILURES_BEFORE_UNHEALTHY
            and not self._is_hanging
        )

    @property
    def condition(self) -> str:
        """One word for `/ping` and the logs."""
        if self.state is State.READY and not self.is_healthy:
            return "unhealthy"
        return self.state.value

    def ready(self) -> None:
        """The self-test has scored."""
        if self.state is State.LOADING:
            self.state = State.READY

    def drain(self) -> None:
        """No new work from here on."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    def fail(self) -> None:
        """The worker is gone, for good."""
        self.state = State.FAILED

    def scored(self) -> None:
        """A scoring succeeded."""
        self._failed_prompts.clear()

    def scoring_failed(self, prompt_sha256: str) -> None:
        """A scoring failed: after three in a row the adapter says that it is not healthy.

        They must be of different prompts: SDKs try three times, and what one prompt does to the
        model is no reason to replace a container.
        """
        was_healthy = self.is_healthy
        self._failed_prompts.add(prompt_sha256)
        if was_healthy and not self.is_healthy:
            log(logging.ERROR, "unhealthy", failed_in_a_row=len(self._failed_prompts))

    def hangs(self, is_hanging: bool) -> None:
        """The worker does not come back from a decode, or does again."""
        was_healthy = self.is_healthy
        self._is_hanging = is_hanging
        if was_healthy and not self.is_healthy:
            log(logging.ERROR, "unhealthy", hanging=True)

    def require_ready(self) -> None:
        """Refuse work that this state does not take.

        Raises:
            Unavailable: `loading`, `draining` or `worker_failed`.
        """
        if self.state is State.LOADING:
            raise Unavailable(
                "the model is loading", code="loading", retry_after_seconds=RETRY_LOADING_SECONDS
            )
        if self.state is State.DRAINING:
            raise draining()
        if self.state is State.FAILED:
            raise worker_failed()


def draining() -> Unavailable:
    """Return what is said to requests while, and after, the adapter shuts down."""
    return Unavailable(
        "this container is shutting down",
        code="draining",
        retry_after_seconds=RETRY_DRAINING_SECONDS,
    )


def worker_failed() -> Unavailable:
    """Return what is said to requests once the worker is gone."""
    return Unavailable(
        "the scoring worker has failed; the container must be replaced",
        code="worker_failed",
        retry_after_seconds=RETRY_LOADING_SECONDS,
    )
