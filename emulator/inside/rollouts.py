"""Deployments of endpoints: a new fleet beside the old one, traffic in steps, alarms, the way back.

From the developer guide, "Deployment guardrails for updating models in production". One process
stands for all instances of a variant, so what SageMaker moves by instances moves here by requests.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from botocore.exceptions import ClientError

from emulator.inside import alarms, fleet, roles
from emulator.inside.config import CONFIG
from emulator.inside.containers import SERVICE
from emulator.inside.endpoints import Endpoint
from emulator.inside.services import ApiError, Json

log = logging.getLogger("ballot.rollouts")

_POLL_SECONDS = 0.05
_DEFAULT_LIMIT_SECONDS = 8 * 3600
# Percent of the capacity that a step may be, by AWS's documentation.
_CANARY, _LINEAR, _ROLLING = (1, 50), (10, 50), (5, 50)


@dataclass(frozen=True)
class Step:
    """A share of the requests for the new fleet, and how long alarms are watched with it.

    After the last step they are watched for as long as the old fleet waits for its end: how long
    the guide's "final baking period" before that lasts, nothing says and nothing sets.
    """

    share: float
    wait_seconds: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a deployment goes; all times are AWS's, before they are scaled."""

    steps: tuple[Step, ...]
    limit_seconds: float = _DEFAULT_LIMIT_SECONDS
    alarms: tuple[str, ...] = ()


class _RollBack(Exception):
    """The deployment ends here, and the old fleet stays; the text is the reason."""


def plan(deployment: Json | None, *, instances: int) -> Plan:
    """Return the plan of a DeploymentConfig for so many instances.

    Raises:
        ApiError: SageMaker would refuse it.
    """
    deployment = deployment or {}
    rolling = deployment.get("RollingUpdatePolicy")
    blue_green = deployment.get("BlueGreenUpdatePolicy")
    if rolling and blue_green:
        raise _invalid("BlueGreenUpdatePolicy and RollingUpdatePolicy exclude each other.")
    policy = rolling or blue_green or {}
    rollback = deployment.get("AutoRollbackConfiguration", {})
    return Plan(
        steps=_batches(policy, instances) if rolling else _shifts(policy, instances),
        limit_seconds=policy.get("MaximumExecutionTimeoutInSeconds", _DEFAULT_LIMIT_SECONDS),
        alarms=tuple(alarm["AlarmName"] for alarm in rollback.get("Alarms", ())),
    )


def _batches(rolling: Json, instances: int) -> tuple[Step, ...]:
    share = _share(rolling["MaximumBatchSize"], instances, _ROLLING, "MaximumBatchSize")
    return tuple(Step(each, rolling["WaitIntervalInSeconds"]) for each in _even(share))


def _shifts(blue_green: Json, instances: int) -> tuple[Step, ...]:
    routing = blue_green.get("TrafficRoutingConfiguration", {})
    wait = routing.get("WaitIntervalInSeconds", 0)
    bake = blue_green.get("TerminationWaitInSeconds", 0)
    *shares, last = _shares(routing, instances)
    return (*(Step(share, wait) for share in shares), Step(last, bake))


def _shares(routing: Json, instances: int) -> list[float]:
    """Return the shares that a blue/green deployment's new fleet gets, one after the other."""
    kind = routing.get("Type", "ALL_AT_ONCE")
    sizes = {"CANARY": "CanarySize", "LINEAR": "LinearStepSize"}
    for other, name in sizes.items():
        if (name in routing) != (kind == other):
            raise _invalid(f"{name} is for the type {other}, and needed there; the type is {kind}.")
    if kind == "CANARY":
        return [_share(routing["CanarySize"], instances, _CANARY, "CanarySize"), 1.0]
    if kind == "LINEAR":
        return _even(_share(routing["LinearStepSize"], instances, _LINEAR, "LinearStepSize"))
    return [1.0]


def _even(share: float) -> list[float]:
    steps = math.ceil(1.0 / share - 1e-9)
    return [min(share * step, 1.0) for step in range(1, steps)] + [1.0]


def _share(size: Json, instances: int, percents: tuple[int, int], name: str) -> float:
    low, high = percents
    value: int = size["Value"]
    if size["Type"] == "CAPACITY_PERCENT":
        if not low <= value <= high:
            raise _invalid(f"{name} must be from {low} to {high} percent of the capacity.")
        return value / 100
    # SageMaker asks the same of a number of instances; a fleet of one has no smaller part.
    if instances > 1 and value > instances * high / 100:
        raise _invalid(f"{name} must be at most {high} percent of the {instances} instances.")
    return min(value / instances, 1.0)


def _invalid(message: str) -> ApiError:
    return ApiError("ValidationException", message)


class Rollout:
    """One deployment of a configuration to an endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        config: Json,
        models: dict[str, Json],
        plan: Plan,
        retained: fleet.Retained,
    ) -> None:
        self._endpoint, self._config, self._models = endpoint, config, models
        self._plan, self._retained = plan, retained
        self._began = time.time()

    def run(self) -> None:
        """Deploy; what ran before goes on running when it fails, as it does on SageMaker."""
        before = self._endpoint.fleet
        try:
            self._check_alarms()
            self._launch()
            if before is not None:
                for step in self._plan.steps:
                    self._endpoint.incoming_share = step.share
                    self._watch(step.wait_seconds)
        except _RollBack as error:
            self._roll_back(str(error))
            return
        self._switch()
        self._endpoint.settle("InService")
        if before is not None:
            before.stop()

    def _launch(self) -> None:
        try:
            launched = fleet.launch(
                self._endpoint.name, self._config, self._models, is_wanted=self._is_wanted
            )
        except fleet.RolloutFailed as error:
            self._check_state()
            raise _RollBack(str(error)) from error
        launched.keep(self._retained)
        self._endpoint.incoming_share, self._endpoint.incoming = 0.0, launched

    def _switch(self) -> None:
        endpoint = self._endpoint
        endpoint.fleet, endpoint.config_name = endpoint.incoming, self._config["EndpointConfigName"]
        endpoint.incoming, endpoint.incoming_share = None, 0.0

    def _roll_back(self, reason: str) -> None:
        endpoint, after = self._endpoint, self._endpoint.incoming
        log.warning("endpoint %s: %s", endpoint.name, reason)
        endpoint.incoming, endpoint.incoming_share = None, 0.0
        if endpoint.fleet is None:
            endpoint.settle("Failed", reason)
        else:
            endpoint.status = "RollingBack"
        if after is not None:
            after.stop()
        if endpoint.fleet is not None:
            endpoint.settle("InService", reason)

    def _check_alarms(self) -> None:
        """Look at the alarms as SageMaker does: they must be there, and the role may see them."""
        if not self._plan.alarms or self._endpoint.fleet is None:
            return
        wanted = list(self._plan.alarms)
        role = next(iter(self._models.values()))["ExecutionRoleArn"]
        try:
            credentials = roles.assume(role, service=SERVICE, session="SageMaker")
            kinds = ["MetricAlarm", "CompositeAlarm"]
            found = roles.client("cloudwatch", credentials).describe_alarms(
                AlarmNames=wanted, AlarmTypes=kinds
            )
        except (ClientError, roles.RoleError) as error:
            raise _RollBack(f"The execution role cannot describe the alarms: {error}") from error
        there = {a["AlarmName"] for a in (*found["MetricAlarms"], *found["CompositeAlarms"])}
        if missing := sorted(set(wanted) - there):
            raise _RollBack(f"The alarms do not exist: {', '.join(missing)}.")
        self._check_state()

    def _rang(self) -> list[str]:
        if self._endpoint.fleet is None:
            return []
        return alarms.rang_since(self._plan.alarms, self._began)

    def _is_wanted(self) -> bool:
        return self._endpoint.is_there and not self._rang() and not self._is_late()

    def _is_late(self) -> bool:
        return time.time() - self._began > CONFIG.rollout_scaled(self._plan.limit_seconds)

    def _check_state(self) -> None:
        if rang := self._rang():
            raise _RollBack(
                f"The deployment was rolled back because alarms went into ALARM: {', '.join(rang)}."
            )
        if self._is_late():
            raise _RollBack(
                "The deployment was rolled back because it exceeded "
                f"MaximumExecutionTimeoutInSeconds ({self._plan.limit_seconds:g})."
            )
        if not self._endpoint.is_there:
            raise _RollBack("The endpoint was deleted.")

    def _watch(self, seconds: float) -> None:
        """Watch the alarms for some of AWS's seconds."""
        deadline = time.monotonic() + CONFIG.rollout_scaled(seconds)
        while (left := deadline - time.monotonic()) > 0:
            self._check_state()
            time.sleep(min(_POLL_SECONDS, left))
        self._check_state()
