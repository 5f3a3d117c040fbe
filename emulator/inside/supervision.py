"""Looks after the containers in service: asks `/ping`, replaces what is dead, publishes metrics."""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from emulator.inside import metrics
from emulator.inside.config import CONFIG
from emulator.inside.containers import Container, ContainerError
from emulator.inside.endpoints import Endpoint, in_background
from emulator.inside.fleet import Fleet

log = logging.getLogger("ballot.supervision")

_FAILURES_TO_REPLACE = 3
_PING_SECONDS = max(0.2, CONFIG.rollout_scaled(10))
_MINUTE_SECONDS = max(_PING_SECONDS, CONFIG.rollout_scaled(60))


def supervise(endpoint: Endpoint) -> None:
    """Look after an endpoint's containers until it is gone."""
    failures: dict[Container, int] = defaultdict(int)
    published = time.monotonic()
    while endpoint.is_there:
        time.sleep(_PING_SECONDS)
        healthy = [
            (fleet, variant, container)
            for fleet in endpoint.fleets
            for variant, container in list(fleet.containers.items())
            if _is_well(endpoint, fleet, variant, container, failures)
        ]
        _publish_load(endpoint)
        if time.monotonic() - published >= _MINUTE_SECONDS:
            published = time.monotonic()
            for fleet, variant, container in healthy:
                _publish_instances(endpoint, fleet, variant, container)


def _is_well(
    endpoint: Endpoint,
    fleet: Fleet,
    variant: str,
    container: Container,
    failures: dict[Container, int],
) -> bool:
    """Ask a container; have it replaced when it has ended, or failed to answer three times."""
    if not container.has_ended and container.is_healthy():
        failures.pop(container, None)
        return True
    failures[container] += 1
    if container.has_ended or failures[container] >= _FAILURES_TO_REPLACE:
        failures.pop(container)
        if fleet.begin_replacing(variant):
            name = f"replace {endpoint.name}/{variant}"
            in_background(name, lambda: _replace(endpoint, fleet, variant))
    return False


def _replace(endpoint: Endpoint, fleet: Fleet, variant: str) -> None:
    log.warning("endpoint %s: a container of %s is replaced", endpoint.name, variant)
    try:
        fleet.replace(variant, is_wanted=lambda: endpoint.is_there)
    except ContainerError as error:
        # The next round finds the old one dead again, and tries again.
        log.warning("endpoint %s: %s: its replacement %s", endpoint.name, variant, error)
    finally:
        fleet.end_replacing(variant)


def _publish_load(endpoint: Endpoint) -> None:
    for fleet in endpoint.fleets:
        for variant, container in list(fleet.containers.items()):
            dimensions = metrics.of_variant(endpoint.name, variant)
            per_instance = container.requests / max(fleet.counts[variant], 1)
            metrics.publish(
                metrics.INVOCATIONS, "ConcurrentRequestsPerModel", per_instance, "None", dimensions
            )


def _publish_instances(
    endpoint: Endpoint, fleet: Fleet, variant: str, container: Container
) -> None:
    """Publish what each instance says of itself; one process stands for them all."""
    usage = container.usage()
    dimensions = metrics.of_variant(endpoint.name, variant)
    for _ in range(fleet.counts[variant]):
        for name, percent in usage.items():
            metrics.publish(metrics.INSTANCES, name, percent, "Percent", dimensions)
