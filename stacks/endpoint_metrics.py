"""The metrics of an endpoint: SageMaker's, and those that its adapter's log lines give.

Source of SageMaker's: its developer guide, "Amazon SageMaker AI metrics in Amazon CloudWatch" and
"Monitor instance pools".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.sagemaker_endpoint import VARIANT

INVOCATIONS = "AWS/SageMaker"
INSTANCES = "/aws/sagemaker/Endpoints"

Unit = Literal["Count", "None", "Seconds"]

_REQUEST = '$.event = "request"'


@dataclass(frozen=True, kw_only=True)
class MetricId:
    """A metric by namespace, name and dimensions, as CloudWatch knows it."""

    namespace: str
    name: str
    dimensions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RequestMetric:
    """A metric that CloudWatch Logs makes of the lines that fit a pattern.

    `value` is a number, or the field of the line that has it; `dimensions` are fields by whose
    values the metric is told apart.
    """

    name: str
    pattern: str
    value: str
    unit: Unit
    dimensions: tuple[str, ...] = ()


def _of_field(name: str, field: str, unit: Unit) -> RequestMetric:
    return RequestMetric(
        name=name,
        pattern=f"{{ {_REQUEST} && $.{field} >= 0 }}",
        value=f"$.{field}",
        unit=unit,
    )


# A 503 of the container is a 5xx to SageMaker: only the log tells what was refused from what broke.
REFUSED = RequestMetric(
    name="Refused",
    pattern=f'{{ {_REQUEST} && ($.outcome = "busy" || $.outcome = "deadline_exceeded" || '
    '$.outcome = "draining") }',
    value="1",
    unit="Count",
)
ERRORS = RequestMetric(
    name="Errors",
    pattern=f'{{ {_REQUEST} && $.outcome != "ok" }}',
    value="1",
    unit="Count",
    dimensions=("outcome",),
)
CONTAINER_FAILURES = RequestMetric(
    name="ContainerFailures",
    pattern='{ $.event = "startup_failed" || $.event = "worker_failed" || $.event = "unhealthy" }',
    value="1",
    unit="Count",
)
TOKEN_MASS = _of_field("AllowedTokenMass", "allowed_token_mass", "None")
QUEUE_SECONDS = _of_field("QueueSeconds", "queue_seconds", "Seconds")
FORWARD_SECONDS = _of_field("ForwardSeconds", "forward_seconds", "Seconds")
DECISIONS = _of_field("Decisions", "decisions", "Count")
INPUT_TOKENS = _of_field("InputTokens", "input_tokens", "Count")
CACHED_TOKENS = _of_field("CachedTokens", "cached_tokens", "Count")
DECODED_TOKENS = _of_field("DecodedTokens", "decoded_tokens", "Count")
REQUEST_METRICS = (
    REFUSED,
    ERRORS,
    CONTAINER_FAILURES,
    TOKEN_MASS,
    QUEUE_SECONDS,
    FORWARD_SECONDS,
    DECISIONS,
    INPUT_TOKENS,
    CACHED_TOKENS,
    DECODED_TOKENS,
)


def endpoint_name(environment: str, endpoint: str) -> str:
    """Return the name that an endpoint has in SageMaker."""
    return f"ballot-{environment}-{endpoint}"


class EndpointMetrics:
    """Finds the metrics of one endpoint."""

    def __init__(self, environment: str, endpoint: str) -> None:
        # A metric of a log has no room for the endpoint's name but in its namespace.
        self.request_namespace = f"Ballot/{environment}/{endpoint}"
        self._dimensions: dict[str, str] = {
            "EndpointName": endpoint_name(environment, endpoint),
            "VariantName": VARIANT,
        }

    def of_invocations(self, name: str) -> MetricId:
        """Return one of SageMaker's metrics of invocations; latencies are in microseconds."""
        return MetricId(namespace=INVOCATIONS, name=name, dimensions=self._dimensions)

    def of_instances(self, name: str, *, instance_type: str | None = None) -> MetricId:
        """Return one of SageMaker's metrics of instances, one sample an instance and minute.

        Those of one type are there where an endpoint has pools.
        """
        of_type = {"InstanceType": instance_type} if instance_type else {}
        return MetricId(namespace=INSTANCES, name=name, dimensions=self._dimensions | of_type)

    def of_requests(self, metric: RequestMetric) -> MetricId:
        """Return a metric of the adapter's log."""
        return MetricId(namespace=self.request_namespace, name=metric.name, dimensions={})


class RequestMetrics(Construct):
    """The metric filters on the log group of a decision endpoint.

    They live where the log group does, and so see why a first deployment fails.
    """

    def __init__(
        self, scope: Construct, id: str, *, log_group: logs.ILogGroup, namespace: str
    ) -> None:
        super().__init__(scope, id)
        for metric in REQUEST_METRICS:
            logs.CfnMetricFilter(
                self,
                metric.name,
                log_group_name=log_group.log_group_name,
                filter_pattern=metric.pattern,
                metric_transformations=[_transformation(metric, namespace)],
            )


def _transformation(
    metric: RequestMetric, namespace: str
) -> logs.CfnMetricFilter.MetricTransformationProperty:
    dimensions = [
        logs.CfnMetricFilter.DimensionProperty(key=field, value=f"$.{field}")
        for field in metric.dimensions
    ]
    return logs.CfnMetricFilter.MetricTransformationProperty(
        metric_namespace=namespace,
        metric_name=metric.name,
        metric_value=metric.value,
        unit=metric.unit,
        dimensions=dimensions or None,
    )
