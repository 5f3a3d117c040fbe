"""The containers behind an endpoint: one process for each variant of a configuration."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from emulator.inside.config import CONFIG
from emulator.inside.containers import Container, ContainerError, Launch, ModelData

Json = dict[str, Any]
DEFAULT_HEALTH_SECONDS = 600


class RolloutFailed(Exception):
    """A fleet did not become healthy; the text is SageMaker's FailureReason."""


@dataclass
class Fleet:
    """Healthy containers by the name of their variant, and the configuration they run."""

    config: Json
    containers: dict[str, Container]
    counts: dict[str, int]

    def choose(self, target: str | None) -> str | None:
        """Return the variant that serves a request: the asked one, or one drawn by weight."""
        if target is not None:
            return target if target in self.containers else None
        variants = self.config["ProductionVariants"]
        weights = [variant.get("InitialVariantWeight", 1.0) for variant in variants]
        if not any(weights):
            weights = [1.0] * len(variants)
        name: str = random.choices(variants, weights)[0]["VariantName"]
        return name

    def stop(self) -> None:
        """End all containers."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(Container.stop, self.containers.values()))


def launch(
    endpoint: str, config: Json, models: dict[str, Json], *, is_wanted: Callable[[], bool]
) -> Fleet:
    """Start and await a container for each variant.

    Raises:
        RolloutFailed: one of them failed; none is left running.
    """
    fleet = Fleet(config=config, containers={}, counts={})
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
    model = models[model_name(variant)]
    container = model.get("PrimaryContainer") or model["Containers"][0]
    try:
        started = Container(
            Launch(
                name=name,
                image_uri=container["Image"],
                environment=container.get("Environment") or {},
                model_data=ModelData.of(container),
                role_arn=model["ExecutionRoleArn"],
                log_group=f"/aws/sagemaker/Endpoints/{endpoint}",
                log_stream=f"{name}/i-{uuid.uuid4().hex[:17]}",
            ),
            is_wanted=is_wanted,
        )
    except ContainerError as error:
        raise RolloutFailed(f"Failed to start production variant {name}: {error}") from error
    fleet.containers[name] = started
    fleet.counts[name] = variant.get("InitialInstanceCount", 1)
    limit = variant.get("ContainerStartupHealthCheckTimeoutInSeconds", DEFAULT_HEALTH_SECONDS)
    try:
        started.wait_healthy(CONFIG.scaled(limit))
    except ContainerError as error:
        raise RolloutFailed(
            f"The primary container for production variant {name} did not pass the ping health "
            "check. Please check CloudWatch logs for this endpoint. "
            f"(Emulator: the container {error})"
        ) from error


def model_name(variant: Json) -> str:
    """Return the model that a variant runs: its first pool's, where that names another."""
    pools = sorted(variant.get("InstancePools") or (), key=lambda pool: pool["Priority"])
    override = pools[0].get("ModelNameOverride") if pools else None
    name: str = override or variant["ModelName"]
    return name
