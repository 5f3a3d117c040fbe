"""Alarms, metric filters and what else watches an account, in the emulator."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulated_aws import Aws, running, stack_status

TREATMENTS = ("missing", "ignore", "breaching", "notBreaching")
OK, ALARM, UNKNOWN = "OK", "ALARM", "INSUFFICIENT_DATA"
KEPT = UNKNOWN  # the state that a new alarm has, and so retains

# Both tables of the User Guide, "Configuring how CloudWatch alarms treat missing data": the data
# points, the oldest first, X breaching and - missing; then the state for each treatment.
THREE_OF_THREE = {
    "0 - X - X": (OK, OK, OK, OK),
    "0 - - - -": (OK, OK, OK, OK),
    "- - - - -": (UNKNOWN, KEPT, ALARM, OK),
    "0 X X - X": (ALARM, ALARM, ALARM, ALARM),
    "- - X - -": (ALARM, KEPT, ALARM, OK),
}
TWO_OF_THREE = {
    "0 - X - X": (ALARM, ALARM, ALARM, ALARM),
    "0 0 X 0 X": (ALARM, ALARM, ALARM, ALARM),
    "0 - X - -": (OK, OK, ALARM, OK),
    "- - - - 0": (OK, OK, ALARM, OK),
    "- - - X -": (ALARM, KEPT, ALARM, OK),
}


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with running(tmp_path_factory.mktemp("emulator")) as aws:
        yield aws


def put(aws: Aws, namespace: str, **data: Any) -> None:
    aws("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[data])


def put_alarm(aws: Aws, name: str, **more: Any) -> None:
    given = {
        "AlarmName": name,
        "Statistic": "Maximum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 5,
        "ComparisonOperator": "GreaterThanThreshold",
        **more,
    }
    aws("cloudwatch").put_metric_alarm(**{k: v for k, v in given.items() if v is not None})


def states(aws: Aws, prefix: str) -> dict[str, str]:
    pages = aws("cloudwatch").get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix)
    return {row["AlarmName"]: row["StateValue"] for page in pages for row in page["MetricAlarms"]}


def await_states(aws: Aws, prefix: str, expected: dict[str, str]) -> None:
    found: dict[str, str] = {}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (found := states(aws, prefix)) != expected:
        time.sleep(0.1)
    assert found == expected


@pytest.mark.parametrize(("needed", "table"), [(3, THREE_OF_THREE), (2, TWO_OF_THREE)])
def test_missing_data_is_treated_as_the_user_guide_says(
    aws: Aws, needed: int, table: dict[str, tuple[str, ...]]
) -> None:
    now, expected = datetime.now(UTC), {}
    for row, (points, wanted) in enumerate(table.items()):
        for age, point in enumerate(reversed(points.split())):
            when = now - timedelta(seconds=60 * age + 30)
            value = {"0": 1.0, "X": 10.0}.get(point)
            if value is not None:
                put(aws, f"of{needed}", MetricName=f"row-{row}", Value=value, Timestamp=when)
        for treatment, state in zip(TREATMENTS, wanted, strict=True):
            name = f"of{needed}-{row}-{treatment}"
            expected[name] = state
            put_alarm(
                aws,
                name,
                Namespace=f"of{needed}",
                MetricName=f"row-{row}",
                EvaluationPeriods=3,
                DatapointsToAlarm=needed,
                TreatMissingData=treatment,
            )
    await_states(aws, f"of{needed}-", expected)


def test_an_alarm_sees_its_own_metric_alone(aws: Aws) -> None:
    mine, other = ([{"Name": "EndpointName", "Value": v}] for v in ("mine", "other"))
    put(aws, "one", MetricName="m", Dimensions=mine, Value=1.0, Unit="Count")
    put(aws, "one", MetricName="m", Dimensions=other, Value=100.0, Unit="Count")
    put(aws, "one", MetricName="m", Value=100.0)
    alarms: dict[str, dict[str, Any]] = {
        "mine": {"Dimensions": mine},
        "mine-in-seconds": {"Dimensions": mine, "Unit": "Seconds"},
        "other": {"Dimensions": other},
    }
    for name, more in alarms.items():
        put_alarm(aws, f"one-{name}", Namespace="one", MetricName="m", **more)
    expected = {"one-mine": OK, "one-mine-in-seconds": UNKNOWN, "one-other": ALARM}
    await_states(aws, "one-", expected)


def test_percentiles_and_sums_are_those_of_the_period(aws: Aws) -> None:
    put(aws, "p", MetricName="m", Values=[1.0, 100.0], Counts=[90.0, 10.0])
    old = datetime.now(UTC) - timedelta(seconds=90)
    put(aws, "p", MetricName="m", Values=[1000.0], Counts=[100.0], Timestamp=old)
    common = {"Namespace": "p", "MetricName": "m"}
    statistics: dict[str, dict[str, Any]] = {
        "p50": {"ExtendedStatistic": "p50", "Statistic": None},
        "p99": {"ExtendedStatistic": "p99", "Statistic": None},
        "sum": {"Statistic": "Sum", "Threshold": 1090.5},
        "count": {"Statistic": "SampleCount", "Threshold": 99.5},
    }
    for name, more in statistics.items():
        put_alarm(aws, f"p-{name}", **{**common, **more})
    await_states(aws, "p-", {"p-p50": OK, "p-p99": ALARM, "p-sum": OK, "p-count": ALARM})
    (shown,) = aws("cloudwatch").describe_alarms(AlarmNames=["p-p99"])["MetricAlarms"]
    assert shown["ExtendedStatistic"] == "p99"
    assert "Statistic" not in shown


def math_queries(expression: str) -> list[dict[str, Any]]:
    def of(name: str) -> dict[str, Any]:
        metric = {"Namespace": "math", "MetricName": name}
        stat = {"Metric": metric, "Period": 60, "Stat": "Sum"}
        return {"Id": name, "MetricStat": stat, "ReturnData": False}

    return [
        of("errors"),
        of("requests"),
        of("absent"),
        {"Id": "rate", "Expression": expression, "ReturnData": True},
    ]


@pytest.mark.parametrize(
    ("expression", "state"),
    [
        ("100 * errors / requests", ALARM),
        ("errors / requests", OK),
        ("requests / absent", UNKNOWN),
        ("requests / (errors - errors)", UNKNOWN),
        ("FILL(absent, 7)", ALARM),
        ("IF(requests > 1000, 100 * errors / requests, 0)", OK),
        ("SUM([errors, absent])", ALARM),
    ],
)
def test_metric_math(aws: Aws, expression: str, state: str) -> None:
    name = aws.name()
    put(aws, "math", MetricName="errors", Value=6.0)
    put(aws, "math", MetricName="requests", Value=60.0)
    given = {"Statistic": None, "Period": None, "Metrics": math_queries(expression)}
    put_alarm(aws, name, **given)
    await_states(aws, name, {name: state})
    (shown,) = aws("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
    assert shown["Metrics"] == given["Metrics"]
    assert "MetricName" not in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Metrics": math_queries("ANOMALY_DETECTION_BAND(errors)"), "Statistic": None}, "is not"),
        ({"Metrics": math_queries("errors +"), "Statistic": None}, "is not an expression"),
        ({"Metrics": math_queries("unknown"), "Statistic": None}, "is not emulated"),
        ({"ExtendedStatistic": "tm99", "Statistic": None}, "is not emulated"),
        ({"ComparisonOperator": "Above"}, "is not one of"),
        ({"EvaluationPeriods": 0}, "valid min value: 1"),
        ({"TreatMissingData": ""}, "valid min length: 1"),
    ],
)
def test_an_alarm_that_cannot_be_evaluated(aws: Aws, changes: dict[str, Any], message: str) -> None:
    metric = {} if "Metrics" in changes else {"Namespace": "x", "MetricName": "y"}
    with pytest.raises(ClientError, match=message):
        put_alarm(aws, "never", **metric, **changes)
    assert states(aws, "never") == {}


def test_a_state_that_is_set_stays_until_the_next_evaluation(aws: Aws) -> None:
    put_alarm(aws, "set", Namespace="nothing", MetricName="m", TreatMissingData="notBreaching")
    await_states(aws, "set", {"set": OK})
    aws("cloudwatch").set_alarm_state(AlarmName="set", StateValue=ALARM, StateReason="a test")
    assert states(aws, "set") == {"set": ALARM}


# Metric filters

EVENTS = [
    {"event": "request", "outcome": "ok", "seconds": 0.5, "allowed_token_mass": 0.9},
    {"event": "request", "outcome": "ok", "seconds": 2, "allowed_token_mass": 0.1},
    {"event": "request", "outcome": "busy", "status": 503, "cached": True},
    {"event": "request", "outcome": "draining", "error": {"code": "x"}, "cached": False},
    {"event": "ready", "seconds": 9, "note": None, "list": [{"a": "deep"}]},
]
PATTERNS = {
    "": 6,
    '{ $.event = "request" }': 4,
    "{ $.event = request }": 4,
    '{ $.event = "request" && $.outcome = "busy" }': 1,
    '{ $.event = "request" && ($.outcome = "busy" || $.outcome = "draining") }': 2,
    '{ $.event = "ready" || $.event = "request" && $.outcome = "busy" }': 2,
    '{ $.event = "request" && $.outcome != "ok" }': 2,
    '{ $.event = "request" && $.allowed_token_mass >= 0 }': 2,
    "{ $.seconds > 0.5 }": 2,
    "{ $.seconds <= 0.5 }": 1,
    "{ $.status = 503 }": 1,
    "{ $.status = 5* }": 1,
    "{ $.seconds = * }": 3,
    '{ $.error.code = "x" }': 1,
    '{ $.list[0].a = "de*" }': 1,
    "{ $.note IS NULL }": 1,
    "{ $.cached IS TRUE }": 1,
    "{ $.status NOT EXISTS }": 4,
    "{ $.outcome = %^(ok|busy)$% }": 3,
    "not JSON": 1,
    "request -busy": 3,
    "?busy ?ready": 2,
    '"not JSON"': 1,
}


def test_log_events_become_metrics_as_they_arrive(aws: Aws) -> None:
    logs, group = aws("logs"), f"/{aws.name()}"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    for number, pattern in enumerate(PATTERNS):
        transformation = {
            "metricNamespace": "filters",
            "metricName": f"m{number}",
            "metricValue": "1",
        }
        logs.put_metric_filter(
            logGroupName=group,
            filterName=f"f{number}",
            filterPattern=pattern,
            metricTransformations=[transformation],
        )
    field = {
        "metricNamespace": "filters",
        "metricName": "seconds",
        "metricValue": "$.seconds",
        "unit": "Seconds",
        "dimensions": {"outcome": "$.outcome"},
    }
    logs.put_metric_filter(
        logGroupName=group,
        filterName="field",
        filterPattern='{ $.event = "request" }',
        metricTransformations=[field],
    )
    messages = [*map(json.dumps, EVENTS), "this is not JSON"]
    now = int(time.time() * 1000)
    logs.put_log_events(
        logGroupName=group,
        logStreamName="s",
        logEvents=[{"timestamp": now, "message": message} for message in messages],
    )
    found = {pattern: total(aws, f"m{number}") for number, pattern in enumerate(PATTERNS)}
    assert found == PATTERNS
    assert total(aws, "seconds", outcome="ok") == 2.5
    assert total(aws, "seconds", outcome="busy") == 0


def total(aws: Aws, name: str, **dimensions: str) -> float:
    points = aws("cloudwatch").get_metric_statistics(
        Namespace="filters",
        MetricName=name,
        Dimensions=[{"Name": k, "Value": v} for k, v in dimensions.items()],
        StartTime=datetime.now(UTC) - timedelta(minutes=10),
        EndTime=datetime.now(UTC) + timedelta(minutes=1),
        Period=3600,
        Statistics=["Sum"],
    )["Datapoints"]
    return float(sum(point["Sum"] for point in points))


@pytest.mark.parametrize(
    "pattern", ["{ $.a = }", "{ $.a ~ 1 }", "{ $.a = 1", "{ $.a > x }", "[a, b]", "{ a = 1 }"]
)
def test_a_filter_with_a_bad_pattern_is_refused(aws: Aws, pattern: str) -> None:
    group = f"/{aws.name()}"
    aws("logs").create_log_group(logGroupName=group)
    value = {"metricNamespace": "n", "metricName": "m", "metricValue": "1"}
    with pytest.raises(ClientError, match="Invalid filter pattern"):
        aws("logs").put_metric_filter(
            logGroupName=group,
            filterName="bad",
            filterPattern=pattern,
            metricTransformations=[value],
        )


# CloudFormation


def watching_template(*, amount: float, threshold: int) -> str:
    topic = {"Ref": "Topic"}
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": topic,
    }
    document = {"Version": "2012-10-17", "Statement": [statement]}
    key_statement = {
        "Effect": "Allow",
        "Principal": {"AWS": {"Fn::Sub": "arn:aws:iam::${AWS::AccountId}:root"}},
        "Action": "kms:*",
        "Resource": "*",
    }
    transformation = {"MetricNamespace": "stack", "MetricName": "m", "MetricValue": "$.seconds"}
    notification = {
        "Notification": {
            "NotificationType": "ACTUAL",
            "ComparisonOperator": "GREATER_THAN",
            "Threshold": 80,
        },
        "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "team@example.com"}],
    }
    limit = {"Amount": amount, "Unit": "USD"}
    resources: dict[str, tuple[str, dict[str, Any]]] = {
        "Topic": ("SNS::Topic", {"TopicName": "watching"}),
        "TopicPolicy": ("SNS::TopicPolicy", {"PolicyDocument": document, "Topics": [topic]}),
        "Mail": (
            "SNS::Subscription",
            {"Protocol": "email", "TopicArn": topic, "Endpoint": "team@example.com"},
        ),
        "Group": ("Logs::LogGroup", {"LogGroupName": "/watching"}),
        "Filter": (
            "Logs::MetricFilter",
            {
                "LogGroupName": {"Ref": "Group"},
                "FilterPattern": '{ $.event = "request" }',
                "MetricTransformations": [transformation],
            },
        ),
        "Query": (
            "Logs::QueryDefinition",
            {
                "Name": "Ballot/slowest",
                "QueryString": "fields @timestamp | sort seconds desc",
                "LogGroupNames": [{"Ref": "Group"}],
            },
        ),
        "Alarm": (
            "CloudWatch::Alarm",
            {
                "AlarmName": "watching",
                "Metrics": math_queries("100 * errors / requests"),
                "EvaluationPeriods": 3,
                "DatapointsToAlarm": 2,
                "Threshold": threshold,
                "ComparisonOperator": "GreaterThanThreshold",
                "TreatMissingData": "notBreaching",
                "AlarmActions": [topic],
            },
        ),
        "Dashboard": (
            "CloudWatch::Dashboard",
            {"DashboardName": "watching", "DashboardBody": '{"widgets": []}'},
        ),
        "Budget": (
            "Budgets::Budget",
            {
                "Budget": {
                    "BudgetName": "watching",
                    "BudgetType": "COST",
                    "TimeUnit": "MONTHLY",
                    "BudgetLimit": limit,
                },
                "NotificationsWithSubscribers": [notification],
            },
        ),
        "Key": (
            "KMS::Key",
            {"KeyPolicy": {"Version": "2012-10-17", "Statement": [key_statement]}},
        ),
        "Alias": (
            "KMS::Alias",
            {"AliasName": "alias/watching", "TargetKeyId": {"Ref": "Key"}},
        ),
    }
    return json.dumps(
        {
            "Resources": {
                name: {"Type": f"AWS::{kind}", "Properties": properties}
                for name, (kind, properties) in resources.items()
            }
        }
    )


def test_a_stack_that_watches_is_created_changed_and_deleted(aws: Aws) -> None:
    cloudformation = aws("cloudformation")
    body = watching_template(amount=100, threshold=5)
    cloudformation.create_stack(StackName="watching", TemplateBody=body)
    assert stack_status(aws, "watching") == "CREATE_COMPLETE"
    left = aws.emulator.leftovers()
    for kind, name in {
        "dashboards": "watching",
        "budgets": "watching",
        "alarms": "watching",
        "saved queries": "Ballot/slowest",
        "key aliases": "alias/watching",
        "subscriptions": "team@example.com",
        "topics": f"arn:aws:sns:us-east-1:{aws.emulator.account}:watching",
    }.items():
        assert name in left[kind], kind
    assert [name for name in left["metric filters"] if name.startswith("Filter-")]
    assert len(left["keys"]) == 1

    body = watching_template(amount=250.5, threshold=50)
    cloudformation.update_stack(StackName="watching", TemplateBody=body)
    assert stack_status(aws, "watching") == "UPDATE_COMPLETE"
    (alarm,) = aws("cloudwatch").describe_alarms(AlarmNames=["watching"])["MetricAlarms"]
    assert (alarm["Threshold"], alarm["DatapointsToAlarm"]) == (50.0, 2)
    assert alarm["TreatMissingData"] == "notBreaching"
    budget = aws("budgets").describe_budget(AccountId=aws.emulator.account, BudgetName="watching")[
        "Budget"
    ]
    assert float(budget["BudgetLimit"]["Amount"]) == 250.5
    queries = aws("logs").describe_query_definitions(queryDefinitionNamePrefix="Ballot/")
    assert queries["queryDefinitions"][0]["logGroupNames"] == ["/watching"]

    stack = cloudformation.describe_stacks(StackName="watching")["Stacks"][0]["StackId"]
    cloudformation.delete_stack(StackName="watching")
    assert stack_status(aws, stack) == "DELETE_COMPLETE"
    left = aws.emulator.leftovers()
    assert "watching" not in left["alarms"]
    for kind in ("topics", "subscriptions", "dashboards", "budgets", "keys", "key aliases"):
        assert left[kind] == [], kind
    assert left["saved queries"] == []
    assert not [name for name in left["metric filters"] if name.startswith("Filter-")]
