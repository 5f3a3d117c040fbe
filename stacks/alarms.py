"""The alarms of one endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct, IConstruct

from stacks.endpoint_metrics import (
    CONTAINER_FAILURES,
    REFUSED,
    TOKEN_MASS,
    EndpointMetrics,
    MetricId,
    endpoint_name,
)
from stacks.environment import Endpoint
from stacks.monitoring_settings import Alarms

MICROSECONDS = 1_000_000
AT_OR_ABOVE = "GreaterThanOrEqualToThreshold"
BELOW = "LessThanThreshold"
MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One alarm: what it looks at and when it rings.

    It rings when `of` of the last `out_of` periods are beyond the threshold, so that one bad
    minute pages nobody. A minute without data is a good one, unless `missing` says otherwise.
    """

    what: str
    means: str
    metric: MetricId
    statistic: str
    threshold: float | None
    of: int
    out_of: int
    seconds: int = MINUTE
    comparison: str = AT_OR_ABOVE
    missing: Literal["notBreaching", "breaching"] = "notBreaching"
    rolls_back: bool = False


class EndpointMonitoring(Construct):
    """An endpoint's alarms, which tell the environment's topic both when they ring and when not.

    They know the endpoint by its name and are made before it, so that a deployment can be rolled
    back by those in `rollback_alarms`. Those must not ring for want of data: there is none before
    the endpoint, and SageMaker lets no deployment pass while one of them rings.
    """

    def __init__(
        self, scope: Construct, id: str, *, environment: str, settings: Endpoint, topic_arn: str
    ) -> None:
        super().__init__(scope, id)
        self._topic_arn = topic_arn
        made = [
            (watch, self._alarm(watch, name=_alarm_name(environment, settings, watch)))
            for watch in _watches(environment, settings)
        ]
        self.alarms = [alarm for _, alarm in made]
        self.rollback_alarms = [alarm for watch, alarm in made if watch.rolls_back]
        self._on_absence = [alarm for watch, alarm in made if watch.missing == "breaching"]

    def start_with(self, endpoint: IConstruct) -> None:
        """Let the alarms that ring for want of data wait until there is an endpoint to give it."""
        for alarm in self._on_absence:
            alarm.node.add_dependency(endpoint)

    def _alarm(self, watch: Watch, *, name: str) -> cloudwatch.CfnAlarm:
        is_percentile = watch.statistic.startswith("p")
        return cloudwatch.CfnAlarm(
            self,
            watch.what,
            alarm_name=name,
            alarm_description=f"{watch.means} See docs/monitoring.md.",
            namespace=watch.metric.namespace,
            metric_name=watch.metric.name,
            dimensions=[
                cloudwatch.CfnAlarm.DimensionProperty(name=name, value=value)
                for name, value in watch.metric.dimensions.items()
            ],
            statistic=None if is_percentile else watch.statistic,
            extended_statistic=watch.statistic if is_percentile else None,
            period=watch.seconds,
            evaluation_periods=watch.out_of,
            datapoints_to_alarm=watch.of,
            threshold=watch.threshold,
            comparison_operator=watch.comparison,
            treat_missing_data=watch.missing,
            alarm_actions=[self._topic_arn],
            ok_actions=[self._topic_arn],
        )


def alarm_names(environment: str, settings: Endpoint) -> list[str]:
    """Return the names of an endpoint's alarms."""
    return [_alarm_name(environment, settings, watch) for watch in _watches(environment, settings)]


def _alarm_name(environment: str, settings: Endpoint, watch: Watch) -> str:
    return f"{endpoint_name(environment, settings.name)}-{watch.what}"


def _watches(environment: str, settings: Endpoint) -> list[Watch]:
    """Return what to watch, without what the settings leave out."""
    alarms, metrics = settings.alarms, EndpointMetrics(environment, settings.name)
    if alarms is None:
        return []
    watches = [
        *_of_answers(alarms, metrics),
        *_of_latency(alarms, metrics),
        *_of_decisions(alarms, metrics),
        *_of_instances(alarms, metrics, least=settings.least_instances),
    ]
    return [watch for watch in watches if watch.threshold is not None]


def _of_answers(alarms: Alarms, metrics: EndpointMetrics) -> list[Watch]:
    # SageMaker sends 1 for each such answer and 0 for every other: the average is the rate.
    return [
        Watch(
            what="5xx",
            means="Invocations fail: errors of the container, no answer within 60 s, refusals.",
            metric=metrics.of_invocations("Invocation5XXErrors"),
            statistic="Average",
            threshold=alarms.server_error_rate,
            of=2,
            out_of=3,
            rolls_back=True,
        ),
        Watch(
            what="4xx",
            means="Callers send what is not valid, more than they use to.",
            metric=metrics.of_invocations("Invocation4XXErrors"),
            statistic="Average",
            threshold=alarms.client_error_rate,
            of=2,
            out_of=3,
            seconds=5 * MINUTE,
        ),
    ]


def _of_latency(alarms: Alarms, metrics: EndpointMetrics) -> list[Watch]:
    latency = metrics.of_invocations("ModelLatency")
    return [
        Watch(
            what="p95",
            means="One answer in twenty takes too long.",
            metric=latency,
            statistic="p95",
            threshold=_microseconds(alarms.p95_seconds),
            of=3,
            out_of=5,
        ),
        Watch(
            what="p99",
            means="One answer in a hundred takes too long.",
            metric=latency,
            statistic="p99",
            threshold=_microseconds(alarms.p99_seconds),
            of=3,
            out_of=5,
            rolls_back=True,
        ),
    ]


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MICROSECONDS


def _of_decisions(alarms: Alarms, metrics: EndpointMetrics) -> list[Watch]:
    return [
        Watch(
            what="refused",
            means="Requests are refused: the queue is full, or deadlines pass in it.",
            metric=metrics.of_requests(REFUSED),
            statistic="Sum",
            threshold=alarms.refused_per_minute,
            of=3,
            out_of=5,
        ),
        Watch(
            what="token-mass",
            means="The model would rather say something else than any of the options.",
            metric=metrics.of_requests(TOKEN_MASS),
            statistic="Average",
            threshold=alarms.token_mass,
            of=3,
            out_of=5,
            comparison=BELOW,
            rolls_back=True,
        ),
        Watch(
            what="failures",
            means="Containers do not start, lose their worker, or fail on every request.",
            metric=metrics.of_requests(CONTAINER_FAILURES),
            statistic="Sum",
            threshold=alarms.container_failures,
            of=2,
            out_of=10,
            rolls_back=True,
        ),
    ]


def _of_instances(alarms: Alarms, metrics: EndpointMetrics, *, least: int) -> list[Watch]:
    return [
        Watch(
            what="memory",
            means="An instance is nearly out of memory.",
            metric=metrics.of_instances("MemoryUtilization"),
            statistic="Maximum",
            threshold=alarms.memory_percent,
            of=3,
            out_of=5,
        ),
        Watch(
            what="disk",
            means="An instance's disk is nearly full.",
            metric=metrics.of_instances("DiskUtilization"),
            statistic="Maximum",
            threshold=alarms.disk_percent,
            of=3,
            out_of=5,
        ),
        Watch(
            what="instances",
            means="Fewer instances report than the endpoint has at least.",
            # There is no metric of healthy instances. Each reports its use once a minute; two
            # samples of the five minutes may come late, and one instance less still shows.
            metric=metrics.of_instances("CPUUtilization"),
            statistic="SampleCount",
            threshold=5 * least - 2 if alarms.instances else None,
            of=3,
            out_of=3,
            seconds=5 * MINUTE,
            comparison=BELOW,
            missing="breaching",
        ),
    ]
