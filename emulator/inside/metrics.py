"""The metrics that SageMaker publishes of endpoints, put into the emulated CloudWatch.

From the developer guide, "Amazon SageMaker AI metrics in Amazon CloudWatch": names, units and
dimensions. Latencies are in microseconds; errors are sent as 1, and as 0 for a request without.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ministack.services import cloudwatch

INVOCATIONS, INSTANCES = "AWS/SageMaker", "/aws/sagemaker/Endpoints"
_MICROSECONDS = 1_000_000
_LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One request that reached a variant, after its answer."""

    endpoint: str
    variant: str
    instances: int
    status: int
    """The container's status; 0 when it gave none in time."""
    model_seconds: float
    total_seconds: float


def publish_invocation(invocation: Invocation) -> None:
    """Publish the metrics of one invocation."""
    status = invocation.status
    counts = {
        "Invocations": 1.0,
        "InvocationsPerInstance": 1.0 / max(invocation.instances, 1),
        "Invocation4XXErrors": float(status // 100 == 4),
        "Invocation5XXErrors": float(status // 100 == 5),
        "InvocationModelErrors": float(status // 100 != 2),
    }
    overhead = max(invocation.total_seconds - invocation.model_seconds, 0.0)
    latencies = {"ModelLatency": invocation.model_seconds, "OverheadLatency": overhead}
    dimensions = of_variant(invocation.endpoint, invocation.variant)
    for name, value in counts.items():
        publish(INVOCATIONS, name, value, "None", dimensions)
    for name, seconds in latencies.items():
        publish(INVOCATIONS, name, seconds * _MICROSECONDS, "Microseconds", dimensions)


def of_variant(endpoint: str, variant: str) -> dict[str, str]:
    """Return the dimensions of a variant's metrics."""
    return {"EndpointName": endpoint, "VariantName": variant}


def publish(namespace: str, name: str, value: float, unit: str, dimensions: dict[str, str]) -> None:
    """Publish one value of a metric, now."""
    cloudwatch.record_metric(namespace, name, value, unit, dimensions)


def _one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(*arguments: Any, **named: Any) -> Any:
        with _LOCK:
            return function(*arguments, **named)

    return locked


def install() -> None:
    """Let threads put metrics, which ministack expects of its event loop alone."""
    for name in ("_evict_old_metrics", "_store_datum", "record_metric"):
        setattr(cloudwatch, name, _one_at_a_time(getattr(cloudwatch, name)))
