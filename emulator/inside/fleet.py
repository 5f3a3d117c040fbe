"""The containers behind an endpoint: one process for each variant of a configuration."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from emulator.inside.config import CONFIG
from emulator.inside.containers import Container, ContainerError, Launch, ModelData

Json = dict[str, Any]
DEFAULT_HEALTH_SECONDS = 600


class RolloutFailed(Exception):
    """A fleet did not become healthy; the text is SageMaker's FailureReason."""


@dataclass(frozen=True)
class Retained:
    """What an update keeps of the variants that it finds, by their names."""

    counts: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Fleet:
    """Healthy containers by the name of their variant, and the configuration they run."""

    config: Json
    containers: dict[str, Container] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    launches: dict[str, Callable[[], Launch]] = field(default_factory=dict)
    _replacing: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_stopped: bool = False

    def choose(self, target: str | None) -> str | None:
        """Return the variant that serves a request: the asked one, or one drawn by weight."""
        if target is not None:
            return target if target in self.containers else None
        names = list(self.weights)
        weights = list(self.weights.values())
        return random.choices(names, weights if any(weights) else None)[0]

    def keep(self, retained: Retained) -> None:
        """Take over the counts and weights of variants that are here too."""
        self.counts.update({k: v for k, v in retained.counts.items() if k in self.counts})
        self.weights.update({k: v for k, v in retained.weights.items() if k in self.weights})

    def stop(self) -> None:
        """End all containers, for good."""
        with self._lock:
            self._is_stopped = True
            running = list(self.containers.values())
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(Container.stop, running))

    def begin_replacing(self, variant: str) -> bool:
        """Claim the replacement of a variant's container; False when another has it."""
        with self._lock:
            if self._is_stopped or variant in self._replacing:
                return False
            self._replacing.add(variant)
            return True

    def end_replacing(self, variant: str) -> None:
        """Give up what `begin_replacing` claimed."""
        with self._lock:
            self._replacing.discard(variant)

    def replace(self, variant: str, *, is_wanted: Callable[[], bool]) -> None:
        """Put a healthy container in the place of a variant's.

        Raises:
            ContainerError: the new one did not become healthy.
        """
        limit = CONFIG.scaled(_health_seconds(_named(self.config, variant)))
        fresh = Container(
            self.launches[variant](), is_wanted=lambda: is_wanted() and not self._is_stopped
        )
        try:
            fresh.wait_healthy(limit)
        except ContainerError:
            fresh.stop()
            raise
        with self._lock:
            old = fresh if self._is_stopped else self.containers[variant]
            self.containers[variant] = fresh
        old.stop()


def launch(
    endpoint: str, config: Json, models: dict[str, Json], *, is_wanted: Callable[[], bool]
) -> Fleet:
    """Start and await a container for each variant.

    Raises:
        RolloutFailed: one of them failed; none is left running.
    """
    fleet = Fleet(config=config)
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            # A context can be entered by one thread at a time, so each gets its own copy.
            running = {
                variant["VariantName"]: pool.submit(
                    copy_context().run, _start, fleet, endpoint, variant, models, is_wanted
                )
                for variant in config["ProductionVariants"]
            }
        for future in running.values():
            future.result()
    except BaseException:
        fleet.stop()
        raise
    return fleet


def _start(
    fleet: Fleet,
    endpoint: str,
    variant: Json,
    models: dict[str, Json],
    is_wanted: Callable[[], bool],
) -> None:
    name = variant["VariantName"]
    fleet.launches[name] = partial(_launch_of, endpoint, name, models[model_name(variant)])
    try:
        started = Container(fleet.launches[name](), is_wanted=is_wanted)
    except ContainerError as error:
        raise RolloutFailed(f"Failed to start production variant {name}: {error}") from error
    fleet.containers[name] = started
    fleet.counts[name] = variant.get("InitialInstanceCount", 1)
    fleet.weights[name] = variant.get("InitialVariantWeight", 1.0)
    try:
        started.wait_healthy(CONFIG.scaled(_health_seconds(variant)))
    except ContainerError as error:
        raise RolloutFailed(
            f"The primary container for production variant {name} did not pass the ping health "
            "check. Please check CloudWatch logs for this endpoint. "
            f"(Emulator: the container {error})"
        ) from error


def _launch_of(endpoint: str, variant: str, model: Json) -> Launch:
    """Return what a container of a variant is started with, each with a log stream of its own."""
    container = model.get("PrimaryContainer") or model["Containers"][0]
    return Launch(
        name=variant,
        image_uri=container["Image"],
        environment=container.get("Environment") or {},
        model_data=ModelData.of(container),
        role_arn=model["ExecutionRoleArn"],
        log_group=f"/aws/sagemaker/Endpoints/{endpoint}",
        log_stream=f"{variant}/i-{uuid.uuid4().hex[:17]}",
    )


def _health_seconds(variant: Json) -> int:
    limit: int = variant.get("ContainerStartupHealthCheckTimeoutInSeconds", DEFAULT_HEALTH_SECONDS)
    return limit


def _named(config: Json, variant: str) -> Json:
    return next(v for v in config["ProductionVariants"] if v["VariantName"] == variant)


def model_name(variant: Json) -> str:
    """Return the model that a variant runs: its first pool's, where that names another."""
    pools = sorted(variant.get("InstancePools") or (), key=lambda pool: pool["Priority"])
    override = pools[0].get("ModelNameOverride") if pools else None
    name: str = override or variant["ModelName"]
    return name
