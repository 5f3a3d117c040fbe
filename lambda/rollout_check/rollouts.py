"""Endpoints of SageMaker: what one runs, and whether it is still on its way there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_check.request import Wanted

IN_SERVICE = "InService"
MIXED = "UpdateRollbackFailed"
MOVING = ("Creating", "Updating", "SystemUpdating", "RollingBack")
# The service still runs: only its size changes, or the machines below it.
SERVING = (IN_SERVICE, "Updating", "SystemUpdating")

_NOT_FOUND = "ValidationException"


class RolloutFailed(Exception):
    """An endpoint does not run what was deployed; the text says what it runs, and why."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """What an endpoint runs; `pending` while SageMaker is moving it to another configuration."""

    status: str
    config: str
    reason: str
    pending: bool

    def runs(self, config: str) -> bool:
        """Tell whether the endpoint serves from a configuration, and is to go on so."""
        return self.config == config and self.status in SERVING and not self.pending

    @property
    def moving(self) -> bool:
        """Whether SageMaker is not done with the endpoint, so that it is worth another look."""
        return self.status in MOVING


class Rollouts:
    """The rollouts of endpoints, looked at `most_looks` times with `pause` in between."""

    def __init__(self, *, sagemaker: Any, pause: Callable[[], None], most_looks: int) -> None:
        self._sagemaker = sagemaker
        self._pause = pause
        self._most_looks = most_looks

    def require(self, wanted: Wanted) -> None:
        """Return once the endpoint runs the configuration.

        Raises:
            RolloutFailed: it has come to rest on another one or out of service, it is not there,
                or it has not come to rest after all the looks.
        """
        for _ in range(self._most_looks - 1):
            live = self._look(wanted.endpoint)
            if live.runs(wanted.config):
                return
            if not live.moving:
                raise RolloutFailed(failure(wanted, live))
            self._pause()
        live = self._look(wanted.endpoint)
        if not live.runs(wanted.config):
            raise RolloutFailed(failure(wanted, live))

    def _look(self, endpoint: str) -> Live:
        try:
            answer = self._sagemaker.describe_endpoint(EndpointName=endpoint)
        except self._sagemaker.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != _NOT_FOUND:
                raise
            raise RolloutFailed(f"there is no endpoint {endpoint}: {error}") from None
        return _live(answer)


def failure(wanted: Wanted, live: Live) -> str:
    """Return in one line what is wrong, and what SageMaker says of it."""
    return (
        f"the endpoint {wanted.endpoint} is {live.status} on the configuration {live.config}, but "
        f"{wanted.config} was deployed: {_judgement(wanted, live)}. "
        f"SageMaker says: {live.reason or 'nothing; see its alarms and its log'}"
    )


def _judgement(wanted: Wanted, live: Live) -> str:
    if live.status == MIXED:
        return "the update and the way back failed, so it serves from old and new instances"
    if live.moving or live.pending:
        return "it is still moving"
    if live.status == IN_SERVICE and live.config != wanted.config:
        return "the update was rolled back"
    return "it does not serve"


def _live(answer: Mapping[str, Any]) -> Live:
    return Live(
        status=str(answer["EndpointStatus"]),
        config=str(answer.get("EndpointConfigName", "none")),
        reason=str(answer.get("FailureReason", "")).strip(),
        pending="PendingDeploymentSummary" in answer,
    )
