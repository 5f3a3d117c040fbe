"""What `cdk.json` says of an endpoint's updates and of which instance gets a request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

from stacks.reading import Section

Strategy = Literal["all_at_once", "canary", "linear", "rolling"]
RoutingStrategy = Literal["least_outstanding", "prefix_aware"]

STRATEGIES = ("all_at_once", "canary", "linear", "rolling")
ROUTING_STRATEGIES = ("least_outstanding", "prefix_aware")

# SageMaker's limits of what moves at once, in percent of the instances.
_PERCENTS = {"canary": (1, 50), "linear": (10, 50), "rolling": (5, 50)}
_PERCENT = 50
_WAIT_SECONDS = 600
# Alarms ring by three bad minutes of five, which CloudWatch gets to see some minutes later.
_BAKE_SECONDS = 600
# SageMaker ends every update after this time.
_MOST_SECONDS = 28_800
_PREFIX_BYTES = 1024
_CONCURRENCY = 4


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How an update takes over, and for how long alarms may still turn it back.

    `percent` of the instances move at once (None: all), `wait_seconds` pass between steps, and the
    old instances stay for `bake_seconds` after the last one. `max_seconds` bounds the whole of it.
    """

    strategy: Strategy
    percent: int | None
    wait_seconds: int
    bake_seconds: int
    max_seconds: int | None

    @property
    def waiting_seconds(self) -> int:
        """How long it waits altogether, which `max_seconds` must leave room for."""
        steps = 2 if self.strategy == "canary" else math.ceil(100 / (self.percent or 100))
        return steps * self.wait_seconds + self.bake_seconds


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Which instance gets a request.

    Either the one with the fewest, or the one that had the request with the same first
    `prefix_bytes` of the body, unless `concurrency_threshold` requests are at it.
    """

    strategy: RoutingStrategy
    prefix_bytes: int | None
    concurrency_threshold: int | None


PLAIN_DEPLOYMENT = Deployment(
    strategy="all_at_once",
    percent=None,
    wait_seconds=0,
    bake_seconds=_BAKE_SECONDS,
    max_seconds=None,
)

LEAST_OUTSTANDING = Routing(
    strategy="least_outstanding", prefix_bytes=None, concurrency_threshold=None
)


def read_deployment(parent: Section, *, instances: int) -> Deployment | None:
    """Read an endpoint's `deployment`; it never has fewer than `instances`."""
    section = parent.section("deployment")
    if section is None:
        return None
    strategy = cast(
        "Strategy", section.choice("strategy", STRATEGIES, default="all_at_once") or "all_at_once"
    )
    deployment = Deployment(
        strategy=strategy,
        percent=_percent(section, strategy, instances),
        wait_seconds=_wait_seconds(section, strategy),
        bake_seconds=_bake_seconds(section, strategy),
        max_seconds=_max_seconds(section),
    )
    _check_waiting(section, deployment)
    section.finish()
    return deployment


def _check_waiting(section: Section, deployment: Deployment) -> None:
    waiting, limit = deployment.waiting_seconds, deployment.max_seconds
    if waiting >= _MOST_SECONDS:
        section.refuse(
            "wait_seconds",
            f"comes to {waiting} seconds of waiting; an update must end within {_MOST_SECONDS}",
        )
    elif limit is not None and limit <= waiting:
        section.refuse("max_seconds", f"must be more than the waiting, {waiting} seconds")


def _percent(section: Section, strategy: Strategy, instances: int) -> int | None:
    if strategy == "all_at_once":
        section.known("percent")
        if "percent" in section:
            section.refuse("percent", "is for canary, linear and rolling")
        return None
    if instances < 2:
        section.refuse(
            "strategy",
            "needs two instances or more to move a part of (scaling.min and every scheduled min, "
            "or instance_count)",
        )
    lowest, highest = _PERCENTS[strategy]
    return section.integer("percent", lowest, highest, default=_PERCENT)


def _wait_seconds(section: Section, strategy: Strategy) -> int:
    if strategy == "all_at_once":
        section.known("wait_seconds")
        if "wait_seconds" in section:
            section.refuse("wait_seconds", "is for canary, linear and rolling")
        return 0
    return section.integer("wait_seconds", 0, 3600, default=_WAIT_SECONDS)


def _bake_seconds(section: Section, strategy: Strategy) -> int:
    if strategy == "rolling":
        section.known("bake_seconds")
        if "bake_seconds" in section:
            section.refuse("bake_seconds", "is not for rolling: wait_seconds bakes each step")
        return 0
    return section.integer("bake_seconds", 0, 3600, default=_BAKE_SECONDS)


def _max_seconds(section: Section) -> int | None:
    if "max_seconds" not in section:
        section.known("max_seconds")
        return None
    return section.integer("max_seconds", 600, _MOST_SECONDS, default=_MOST_SECONDS)


def read_routing(parent: Section, *, pooled: bool) -> Routing:
    """Read an endpoint's `routing`: a strategy, or an object that has one."""
    section = parent.object("routing", short_for="strategy")
    if section is None:
        return LEAST_OUTSTANDING
    strategy = section.choice("strategy", ROUTING_STRATEGIES, required=True)
    routing = _prefix_aware(section) if strategy == "prefix_aware" else LEAST_OUTSTANDING
    if pooled and strategy == "prefix_aware":
        section.refuse("strategy", "cannot go with instance_pools, which need least_outstanding")
    section.finish()
    return routing


def _prefix_aware(section: Section) -> Routing:
    return Routing(
        strategy="prefix_aware",
        prefix_bytes=section.integer("prefix_bytes", 1024, 65_536, default=_PREFIX_BYTES),
        concurrency_threshold=section.integer(
            "concurrency_threshold", 1, 1024, default=_CONCURRENCY
        ),
    )
