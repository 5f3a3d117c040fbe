"""The dashboard of an environment: every endpoint under the same rows.

Source of the JSON: CloudWatch API reference, "Dashboard Body Structure and Syntax".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stacks.alarms import alarm_names
from stacks.endpoint_metrics import (
    CACHED_TOKENS,
    DECISIONS,
    DECODED_TOKENS,
    ERRORS,
    FORWARD_SECONDS,
    INPUT_TOKENS,
    QUEUE_SECONDS,
    REFUSED,
    TOKEN_MASS,
    EndpointMetrics,
    MetricId,
    RequestMetric,
    endpoint_name,
)
from stacks.environment import Endpoint

COLUMNS = 24
GRAPH_HEIGHT = 6
TEXT_HEIGHT = 4
MINUTE = 60
HOUR = 3600

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A statistic of a metric; one that expressions use has an `id`, and may be hidden itself."""

    metric: MetricId
    statistic: str
    label: str
    id: str | None = None
    visible: bool = True


@dataclass(frozen=True, kw_only=True)
class Expression:
    """Metric math over the series of a graph."""

    expression: str
    label: str
    id: str


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One graph; `unit` stands at its axis."""

    title: str
    unit: str
    lines: Sequence[Series | Expression]
    period: int = MINUTE


def dashboard_body(
    environment: str, endpoints: Sequence[Endpoint], *, region: str, alarm_arn_prefix: str
) -> Json:
    """Return the body of an environment's dashboard.

    An alarm's ARN is `alarm_arn_prefix` with its name behind.
    """
    widgets = [_text(_introduction(environment), y=0, width=COLUMNS)]
    y = TEXT_HEIGHT
    for endpoint in endpoints:
        arns = [f"{alarm_arn_prefix}{name}" for name in alarm_names(environment, endpoint)]
        half = COLUMNS // 2
        widgets.append(_text(_heading(environment, endpoint), y=y, width=half if arns else COLUMNS))
        if arns:
            widgets.append(_alarms(arns, x=half, y=y, width=half))
        y += TEXT_HEIGHT
        for row in _rows(endpoint, EndpointMetrics(environment, endpoint.name)):
            width = COLUMNS // len(row)
            widgets += [
                _widget(graph, x=index * width, y=y, width=width, region=region)
                for index, graph in enumerate(row)
            ]
            y += GRAPH_HEIGHT
    return {"start": "-PT3H", "periodOverride": "inherit", "widgets": widgets}


def _introduction(environment: str) -> str:
    return (
        f"# Ballot, {environment}\n"
        "What each alarm means: `docs/monitoring.md`. What to do, by symptom: "
        "`docs/operations.md` (*Unhealthy* for 5xx and failures, *Slow* for p95 and p99, "
        "*Refused*, *Pool exhausted* for instances, *Callers are refused with 4xx*, *Wrong "
        "answers after a rollout* for token mass).\n\n"
        f"Alarms that ring: `aws cloudwatch describe-alarms --alarm-name-prefix "
        f"ballot-{environment}- --state-value ALARM`. Logs Insights has saved queries under "
        f"`ballot/{environment}`."
    )


def _heading(environment: str, endpoint: Endpoint) -> str:
    name = endpoint_name(environment, endpoint.name)
    model = endpoint.model.name if endpoint.model else endpoint.hub.file if endpoint.hub else ""
    types = ", then ".join(endpoint.instance_types)
    pools = (
        "\n\nInstances by pool: `aws sagemaker describe-endpoint --endpoint-name "
        f"{name} --query 'ProductionVariants[0].InstancePools'`."
        if endpoint.pooled
        else ""
    )
    return f"## {endpoint.name}\n`{name}`: {endpoint.kind}, {model} on {types}.{pools}"


def _rows(endpoint: Endpoint, metrics: EndpointMetrics) -> list[list[Graph]]:
    first = [_traffic(metrics), _latency(metrics), _errors(metrics)]
    last = [_instances(metrics, endpoint), _use(metrics, endpoint), _memory(metrics, endpoint)]
    if endpoint.kind == "chat":
        return [first, [*last, *_cost(endpoint, metrics)]]
    return [
        first,
        [_waiting(metrics), _refused(metrics), _kinds_of_errors(metrics)],
        [_cache(metrics), _tokens(metrics), _token_mass(metrics)],
        [*last, *_cost(endpoint, metrics)],
    ]


def _traffic(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Traffic",
        unit="invocations a minute",
        lines=[
            Series(
                metric=metrics.of_invocations("Invocations"), statistic="Sum", label="invocations"
            ),
            Series(
                metric=metrics.of_invocations("InvocationsPerInstance"),
                statistic="Sum",
                label="an instance",
            ),
        ],
    )


def _latency(metrics: EndpointMetrics) -> Graph:
    model, overhead = (metrics.of_invocations(f"{part}Latency") for part in ("Model", "Overhead"))
    shown = [(model, "p50"), (model, "p95"), (model, "p99"), (overhead, "p99")]
    labels = ["p50", "p95", "p99", "p99 of SageMaker's overhead"]
    return Graph(
        title="Latency",
        unit="seconds",
        lines=[
            line
            for index, ((metric, statistic), label) in enumerate(zip(shown, labels, strict=True))
            for line in _in_seconds(metric, statistic, label=label, index=index)
        ],
    )


def _in_seconds(
    metric: MetricId, statistic: str, *, label: str, index: int
) -> tuple[Series, Expression]:
    hidden = f"m{index}"
    return (
        Series(metric=metric, statistic=statistic, label=label, id=hidden, visible=False),
        Expression(expression=f"{hidden} / 1000000", label=label, id=f"e{index}"),
    )


def _errors(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Errors",
        unit="invocations a minute",
        lines=[
            Series(
                metric=metrics.of_invocations(f"Invocation{digit}XXErrors"),
                statistic="Sum",
                label=f"{digit}xx",
            )
            for digit in (5, 4)
        ],
    )


def _waiting(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Queue and forward pass",
        unit="seconds",
        lines=[
            Series(
                metric=metrics.of_requests(metric), statistic=statistic, label=f"{part} {statistic}"
            )
            for metric, part in ((QUEUE_SECONDS, "queue"), (FORWARD_SECONDS, "forward"))
            for statistic in ("p50", "p95")
        ],
    )


def _refused(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Refused: busy, too late, draining",
        unit="requests a minute",
        lines=[Series(metric=metrics.of_requests(REFUSED), statistic="Sum", label="refused")],
    )


def _kinds_of_errors(metrics: EndpointMetrics) -> Graph:
    search = (
        f'SEARCH(\'{{"{metrics.request_namespace}",{",".join(ERRORS.dimensions)}}} '
        f"MetricName=\"{ERRORS.name}\"', 'Sum', {MINUTE})"
    )
    return Graph(
        title="Errors by code",
        unit="requests a minute",
        lines=[Expression(expression=search, label="${PROP('Dim.outcome')}", id="e1")],
    )


def _cache(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Cache hits",
        unit="% of the input tokens",
        lines=[
            *_hidden(metrics, cached=CACHED_TOKENS, input=INPUT_TOKENS),
            Expression(expression="100 * cached / input", label="found in memory", id="hits"),
        ],
    )


def _tokens(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Tokens",
        unit="tokens a second",
        lines=[
            *_hidden(metrics, input=INPUT_TOKENS, decoded=DECODED_TOKENS),
            Expression(expression="input / PERIOD(input)", label="input", id="e1"),
            Expression(expression="decoded / PERIOD(decoded)", label="decoded", id="e2"),
        ],
    )


def _hidden(metrics: EndpointMetrics, **tokens: RequestMetric) -> list[Series]:
    return [
        Series(metric=metrics.of_requests(metric), statistic="Sum", label=id, id=id, visible=False)
        for id, metric in tokens.items()
    ]


def _token_mass(metrics: EndpointMetrics) -> Graph:
    return Graph(
        title="Token mass: what the model gives to the options",
        unit="share",
        lines=[
            Series(
                metric=metrics.of_requests(TOKEN_MASS),
                statistic=statistic,
                label=statistic.lower(),
            )
            for statistic in ("Average", "p10")
        ],
    )


def _instances(metrics: EndpointMetrics, endpoint: Endpoint) -> Graph:
    # Each instance reports once a minute.
    pools = endpoint.instance_types if endpoint.pooled else ()
    return Graph(
        title="Instances that report",
        unit="instances",
        lines=[
            Series(
                metric=metrics.of_instances("CPUUtilization", instance_type=instance_type),
                statistic="SampleCount",
                label=instance_type or "instances",
            )
            for instance_type in (None, *pools)
        ],
    )


def _use(metrics: EndpointMetrics, endpoint: Endpoint) -> Graph:
    names = ["CPUUtilization", *(["GPUUtilization"] if endpoint.hardware == "gpu" else [])]
    return Graph(
        title="Processors (100 % for each core or GPU)",
        unit="%",
        lines=[
            Series(metric=metrics.of_instances(name), statistic="Average", label=name)
            for name in names
        ],
    )


def _memory(metrics: EndpointMetrics, endpoint: Endpoint) -> Graph:
    names = ["MemoryUtilization", "DiskUtilization"]
    if endpoint.hardware == "gpu":
        names.append("GPUMemoryUtilization")
    return Graph(
        title="Memory and disk",
        unit="%",
        lines=[
            Series(metric=metrics.of_instances(name), statistic="Maximum", label=name)
            for name in names
        ],
    )


def _cost(endpoint: Endpoint, metrics: EndpointMetrics) -> list[Graph]:
    """Return the graph of what 1,000 answers cost, if a price is given.

    An instance's sample stands for a minute of it: `used` samples are `used / 60` hours.
    """
    price = endpoint.price_per_instance_hour_usd
    if price is None:
        return []
    is_chat = endpoint.kind == "chat"
    answers = "requests" if is_chat else "decisions"
    answered = metrics.of_invocations("Invocations") if is_chat else metrics.of_requests(DECISIONS)
    used = metrics.of_instances("CPUUtilization")
    return [
        Graph(
            title=f"Cost of 1,000 {answers} at {price:g} USD an instance and hour",
            unit="USD",
            lines=[
                Series(
                    metric=used, statistic="SampleCount", label="used", id="used", visible=False
                ),
                Series(
                    metric=answered, statistic="Sum", label=answers, id="answered", visible=False
                ),
                Expression(
                    expression=f"1000 * {price:g} * used / 60 / answered",
                    label=f"USD for 1,000 {answers}",
                    id="cost",
                ),
            ],
            period=HOUR,
        )
    ]


def _alarms(arns: list[str], *, x: int, y: int, width: int) -> Json:
    return {
        "type": "alarm",
        "x": x,
        "y": y,
        "width": width,
        "height": TEXT_HEIGHT,
        "properties": {"title": "Alarms", "alarms": arns},
    }


def _text(markdown: str, *, y: int, width: int) -> Json:
    return {
        "type": "text",
        "x": 0,
        "y": y,
        "width": width,
        "height": TEXT_HEIGHT,
        "properties": {"markdown": markdown},
    }


def _widget(graph: Graph, *, x: int, y: int, width: int, region: str) -> Json:
    return {
        "type": "metric",
        "x": x,
        "y": y,
        "width": width,
        "height": GRAPH_HEIGHT,
        "properties": {
            "title": graph.title,
            "view": "timeSeries",
            "stacked": False,
            "region": region,
            "period": graph.period,
            "metrics": [_line(line) for line in graph.lines],
            "yAxis": {"left": {"min": 0, "label": graph.unit, "showUnits": False}},
        },
    }


def _line(line: Series | Expression) -> list[Any]:
    if isinstance(line, Expression):
        return [{"expression": line.expression, "label": line.label, "id": line.id}]
    pairs = [part for pair in line.metric.dimensions.items() for part in pair]
    options: Json = {"stat": line.statistic, "label": line.label}
    if line.id:
        options["id"] = line.id
    if not line.visible:
        options["visible"] = False
    return [line.metric.namespace, line.metric.name, *pairs, options]
