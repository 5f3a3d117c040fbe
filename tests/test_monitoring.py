"""Watching: alarms, metric filters, queries, dashboard, topic and budget, judged from outside.

Which metrics there are is SageMaker's developer guide's to say; what a log line has, a running
adapter's; what is well formed, the API models', cfn-lint's and cdk-nag's.
"""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import aws_cdk as cdk
import pytest

from adapter.lifecycle import Lifecycle
from adapter.logs import JsonFormatter
from stacks.alarms import EndpointMonitoring
from stacks.endpoint_metrics import REQUEST_METRICS
from stacks.environment import read_environment
from stacks.log_queries import QUERIES
from stacks.monitoring_settings import DEFAULTS, Alarms
from tests.adapter_process import PATIENCE, ROOT, AdapterProcess
from tests.api_model import violations
from tests.gguf_models import write_tiny_model
from tests.invalid_environments import changed
from tests.log_filters import FilterPattern
from tests.synthesis import ENVIRONMENTS, Synthesis, Template, only, resources, synthesize
from tests.test_load import open_request
from tests.test_synth import lint

ACCOUNT, REGION = "123456789012", "eu-west-1"
ENDPOINTS = [
    (environment, name)
    for environment, settings in ENVIRONMENTS.items()
    for name in settings["endpoints"]
]
every_environment = pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
every_endpoint = pytest.mark.parametrize(("environment", "name"), ENDPOINTS)

# Amazon SageMaker developer guide, "Monitor Amazon SageMaker with Amazon CloudWatch"
# (awsdocs/amazon-sagemaker-developer-guide, doc_source/monitoring-cloudwatch.md at 0d5df7f91fd9):
# the statistics said to be valid, or None where the guide names none.
PUBLISHED: dict[tuple[str, str], set[str] | None] = {
    ("AWS/SageMaker", "Invocation4XXErrors"): {"Average", "Sum"},
    ("AWS/SageMaker", "Invocation5XXErrors"): {"Average", "Sum"},
    ("AWS/SageMaker", "Invocations"): {"Sum"},
    ("AWS/SageMaker", "InvocationsPerInstance"): {"Sum"},
    ("AWS/SageMaker", "ModelLatency"): {"Average", "Sum", "Min", "Max", "SampleCount"},
    ("AWS/SageMaker", "OverheadLatency"): {"Average", "Sum", "Min", "Max", "SampleCount"},
    ("/aws/sagemaker/Endpoints", "CPUUtilization"): None,
    ("/aws/sagemaker/Endpoints", "MemoryUtilization"): None,
    ("/aws/sagemaker/Endpoints", "GPUUtilization"): None,
    ("/aws/sagemaker/Endpoints", "GPUMemoryUtilization"): None,
    ("/aws/sagemaker/Endpoints", "DiskUtilization"): None,
}
# CloudWatch user guide, "Statistics definitions": percentiles are there of every metric whose
# values are sent one by one, as latencies are.
PERCENTILE = re.compile(r"p\d{2}(\.\d)?")

COUNTING = "ballot-dev-cpu-instances"
EVERYWHERE = {"5xx", "4xx", "p95", "p99", "memory", "disk", "instances"}
OF_DECISIONS = {"refused", "token-mass", "failures"}
# An environment that says all there is to say of watching.
WATCHED = changed(
    {
        "kms_key": "new",
        "monitoring": {
            "alarm_emails": ["ops@example.com", "quality+ballot@example.org"],
            "monthly_budget_usd": 1500.5,
        },
        "endpoints/cpu/alarms": {
            "server_error_rate": 0.2,
            "p95_seconds": 1.5,
            "p99_seconds": 2.5,
            "token_mass": False,
            "instances": False,
        },
        "endpoints/gpu/price_per_instance_hour_usd": 1.25,
        "endpoints/gpu/scaling": {
            "min": 3,
            "max": 4,
            "scheduled": [{"name": "night", "schedule": "cron(0 22 * * ? *)", "min": 2}],
        },
        "endpoints/chat/alarms": False,
        "endpoints/chat/price_per_instance_hour_usd": 0.9,
    }
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Synthesis:
    """The environment that says all of watching, synthesized."""
    folder = tmp_path_factory.mktemp("cdk-watched")
    return synthesize("dev", folder, settings=WATCHED, account=ACCOUNT, region=REGION)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Lines of the log of adapters that answer, refuse, drain and fail, by what they are about."""
    folder = tmp_path_factory.mktemp("watched-adapter")
    write_tiny_model(folder / "tiny.gguf", chat_template=None)
    model, missing = (str(folder / name) for name in ("tiny.gguf", "none.gguf"))
    support_route = json.loads((ROOT / "examples/support-route.json").read_text("utf-8"))
    found = {}
    with AdapterProcess(
        BALLOT_GGUF_PATH=model,
        BALLOT_THREADS="1",
        BALLOT_MAX_QUEUE="0",
        BALLOT_BODY_TIMEOUT_SECONDS="3600",
    ).wait_ready() as adapter:
        with adapter.client() as client:

            def ask(request: Any) -> str:
                answer = client.post("/invocations", json=request)
                request_id = answer.headers["x-request-id"]
                while adapter.wait_for_event("request")["request_id"] != request_id:
                    pass
                return next(line for line in adapter.lines if request_id in line)

            found["one"] = ask(support_route)
            decision = support_route["decision"]
            pair = [{**decision, "id": str(number)} for number in (1, 2)]
            found["two"] = ask({"decisions": pair})
            found["invalid"] = ask({"decision": {}})
            with open_request(adapter.port, b"{", content_length=10_000):
                while '"busy"' not in (line := ask(support_route)):
                    pass
                found["busy"] = line
                adapter.process.send_signal(signal.SIGTERM)
                adapter.wait_for_event("draining")
                found["draining"] = ask(support_route)
        assert adapter.wait() == 0
        by_event = {json.loads(line)["event"]: line for line in adapter.lines}
        found["loaded"] = by_event["model_loaded"]
    with AdapterProcess(BALLOT_GGUF_PATH=missing, BALLOT_THREADS="1") as failed:
        assert failed.process.wait(timeout=PATIENCE) == 1
    found["failed"] = failed.lines[-1]
    return found


@pytest.fixture
def unhealthy(caplog: pytest.LogCaptureFixture) -> str:
    """The line of an adapter whose scorings fail one after another."""
    with caplog.at_level(logging.ERROR, logger="ballot"):
        lifecycle = Lifecycle()
        lifecycle.ready()
        for prompt in ("a", "b", "b", "c", "d"):
            lifecycle.scoring_failed(prompt)
    (record,) = caplog.records
    return JsonFormatter().format(record)


def alarms(template: Template) -> dict[str, Any]:
    """Return a stack's alarms by name."""
    return {item["AlarmName"]: item for item in resources(template, "AWS::CloudWatch::Alarm")}


def filters(template: Template) -> dict[tuple[str, str], Any]:
    """Return a stack's metric filters, each by namespace and name of the metric that it makes."""
    made = {}
    for item in resources(template, "AWS::Logs::MetricFilter"):
        (transformation,) = item["MetricTransformations"]
        made[transformation["MetricNamespace"], transformation["MetricName"]] = item
    return made


def dashboard(template: Template) -> list[Any]:
    """Return the widgets of a stack's dashboard."""
    body = only(template, "AWS::CloudWatch::Dashboard")["DashboardBody"]
    widgets: list[Any] = body["widgets"]
    return widgets


def metrics_of(widget: Any) -> Iterator[tuple[str, str, dict[str, str], dict[str, Any]]]:
    """Yield the metrics of a widget: namespace, name, dimensions and options."""
    for namespace, name, *dimensions, options in (
        line for line in widget["properties"]["metrics"] if "expression" not in line[0]
    ):
        yield namespace, name, dict(zip(dimensions[::2], dimensions[1::2], strict=True)), options


class TestAlarms:
    """The alarms of every endpoint."""

    @every_endpoint
    def test_each_endpoint_has_those_of_its_kind(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        is_decision = ENVIRONMENTS[environment]["endpoints"][name]["kind"] == "decision"
        expected = EVERYWHERE | (OF_DECISIONS if is_decision else set())
        assert set(alarms(templates[f"Ballot-{environment}-{name}"])) == {
            f"ballot-{environment}-{name}-{what}" for what in expected
        }

    @every_endpoint
    def test_each_watches_a_metric_that_there_is(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        made = filters(templates[f"Ballot-{environment}-Artifacts"])
        for alarm in alarms(templates[f"Ballot-{environment}-{name}"]).values():
            metric = alarm["Namespace"], alarm["MetricName"]
            statistic = alarm.get("Statistic") or alarm["ExtendedStatistic"]
            dimensions = {item["Name"]: item["Value"] for item in alarm["Dimensions"]}
            if metric in made:
                assert metric[0] == f"Ballot/{environment}/{name}"
                assert dimensions == {}
            else:
                assert_published(*metric, statistic)
                assert dimensions == {
                    "EndpointName": f"ballot-{environment}-{name}",
                    "VariantName": "AllTraffic",
                }

    @every_endpoint
    def test_one_outlier_pages_nobody_and_the_end_is_told_too(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:ballot-{environment}-alarms"
        for alarm in alarms(templates[f"Ballot-{environment}-{name}"]).values():
            assert 1 < alarm["DatapointsToAlarm"] <= alarm["EvaluationPeriods"]
            told = [placed(arn) for arn in (*alarm["AlarmActions"], *alarm["OKActions"])]
            assert told == [topic, topic]

    @every_endpoint
    def test_only_the_number_of_instances_rings_for_want_of_data_and_not_before_the_endpoint(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        for path, resource in template["Resources"].items():
            if resource["Type"] == "AWS::CloudWatch::Alarm":
                waits = "Endpoint/Endpoint" in resource.get("DependsOn", [])
                rings = resource["Properties"]["TreatMissingData"] == "breaching"
                assert rings == waits == (path == "Monitoring/instances"), path

    def test_rates_are_averages_and_latencies_microseconds(
        self, templates: dict[str, Template]
    ) -> None:
        found = alarms(templates["Ballot-dev-decision"])

        def judged(what: str) -> tuple[Any, ...]:
            alarm = found[f"ballot-dev-decision-{what}"]
            statistic = alarm.get("Statistic") or alarm["ExtendedStatistic"]
            return statistic, alarm["ComparisonOperator"], alarm["Threshold"]

        above, below = "GreaterThanOrEqualToThreshold", "LessThanThreshold"
        assert judged("5xx") == ("Average", above, 0.05)
        assert judged("4xx") == ("Average", above, 0.25)
        assert judged("p95") == ("p95", above, 20_000_000)
        assert judged("p99") == ("p99", above, 40_000_000)
        assert judged("refused") == ("Sum", above, 5)
        assert judged("token-mass") == ("Average", below, 0.5)
        assert judged("failures") == ("Sum", above, 1)
        assert judged("memory") == ("Maximum", above, 90)
        assert judged("instances") == ("SampleCount", below, 3)

    def test_settings_move_thresholds_and_leave_alarms_out(self, watched: Synthesis) -> None:
        found = alarms(watched.readable()["Ballot-dev-cpu"])
        assert set(found) == {
            f"ballot-dev-cpu-{what}"
            for what in (EVERYWHERE | OF_DECISIONS) - {"token-mass", "instances"}
        }
        assert found["ballot-dev-cpu-5xx"]["Threshold"] == 0.2
        assert found["ballot-dev-cpu-p95"]["Threshold"] == 1_500_000
        assert found["ballot-dev-cpu-p99"]["Threshold"] == 2_500_000

    def test_false_leaves_all_out(self, watched: Synthesis) -> None:
        assert alarms(watched.readable()["Ballot-dev-chat"]) == {}

    def test_the_fewest_instances_of_the_schedule_are_to_report(self, watched: Synthesis) -> None:
        alarm = alarms(watched.readable()["Ballot-dev-gpu"])["ballot-dev-gpu-instances"]
        assert alarm["Threshold"] == 2 * alarm["Period"] / 60 - 2

    @pytest.mark.parametrize("least", range(1, 21))
    def test_one_instance_lost_rings_and_two_late_samples_do_not(self, least: int) -> None:
        """Each instance sends a sample a minute; one that went stays silent for five."""
        settings = read_environment("dev", changed({"endpoints/cpu/instance_count": least}))
        monitoring = EndpointMonitoring(
            cdk.Stack(),
            "Monitoring",
            environment="dev",
            settings=settings.endpoints[0],
            topic_arn=f"arn:aws:sns:{REGION}:{ACCOUNT}:pager",
        )
        (alarm,) = [item for item in monitoring.alarms if item.alarm_name == COUNTING]
        threshold = alarm.threshold
        assert threshold is not None
        assert (alarm.period, alarm.comparison_operator) == (300, "LessThanThreshold")
        assert not least * 5 - 2 < threshold
        assert (least - 1) * 5 + 2 < threshold

    @every_endpoint
    def test_an_update_bakes_for_as_long_as_the_alarms_that_turn_it_back_look(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        config = only(template, "AWS::SageMaker::Endpoint")["DeploymentConfig"]
        bakes = (
            config["RollingUpdatePolicy"]["WaitIntervalInSeconds"]
            if "RollingUpdatePolicy" in config
            else config["BlueGreenUpdatePolicy"]["TerminationWaitInSeconds"]
        )
        for item in config["AutoRollbackConfiguration"]["Alarms"]:
            path = item["AlarmName"].removeprefix("${").removesuffix("}")
            alarm = template["Resources"][path]["Properties"]
            assert alarm["EvaluationPeriods"] * alarm["Period"] <= bakes, path

    @pytest.mark.parametrize("profile", sorted(DEFAULTS))
    def test_every_kind_of_endpoint_has_defaults_that_are_thresholds(self, profile: Any) -> None:
        names = {field.name for field in fields(Alarms)}
        assert set(DEFAULTS[profile]) <= names
        assert DEFAULTS[profile]["p95_seconds"] < DEFAULTS[profile]["p99_seconds"] < 60


def placed(arn: str) -> str:
    """Return an ARN as CloudFormation resolves it in the account and Region of these tests."""
    for name, value in (("Partition", "aws"), ("Region", REGION), ("AccountId", ACCOUNT)):
        arn = arn.replace(f"${{AWS::{name}}}", value)
    return arn


def assert_published(namespace: str, name: str, statistic: str) -> None:
    """Check a metric and its statistic against SageMaker's list."""
    valid = PUBLISHED[namespace, name]
    if PERCENTILE.fullmatch(statistic):
        assert name.endswith("Latency")
    else:
        assert valid is None or statistic in valid


class TestRequestMetrics:
    """What the log's lines are counted as."""

    @pytest.mark.parametrize(
        ("metric", "matching"),
        [
            ("Refused", {"busy", "draining"}),
            ("Errors", {"busy", "draining", "invalid"}),
            ("ContainerFailures", {"failed", "unhealthy"}),
            *(
                (name, {"one", "two"})
                for name in (
                    "AllowedTokenMass",
                    "QueueSeconds",
                    "ForwardSeconds",
                    "Decisions",
                    "InputTokens",
                    "CachedTokens",
                    "DecodedTokens",
                )
            ),
        ],
    )
    def test_patterns_fit_the_lines_of_an_adapter(
        self, metric: str, matching: set[str], lines: dict[str, str], unhealthy: str
    ) -> None:
        (pattern,) = [item.pattern for item in REQUEST_METRICS if item.name == metric]
        parsed = FilterPattern(pattern)
        every_line = {**lines, "unhealthy": unhealthy, "server": "GGML: no JSON"}
        assert {name for name, line in every_line.items() if parsed.matches(line)} == matching

    def test_values_are_numbers_of_the_line_or_one(self, lines: dict[str, str]) -> None:
        scored = json.loads(lines["two"])
        for metric in REQUEST_METRICS:
            if metric.value != "1":
                assert isinstance(scored[metric.value.removeprefix("$.")], int | float)
        assert scored["decisions"] == 2
        assert scored["input_tokens"] == scored["cached_tokens"] + scored["decoded_tokens"]

    def test_dimensions_are_fields_of_few_values(self, lines: dict[str, str]) -> None:
        for metric in REQUEST_METRICS:
            for dimension in metric.dimensions:
                assert isinstance(json.loads(lines["invalid"])[dimension], str)
                assert metric.dimensions == ("outcome",)

    def test_what_is_refused_is_what_the_errors_page_calls_so(self, lines: dict[str, str]) -> None:
        page = (ROOT / "docs/errors.md").read_text("utf-8")
        codes = re.findall(r"^\| `(\w+)` \| 503 \|", page, re.MULTILINE)
        (pattern,) = [item.pattern for item in REQUEST_METRICS if item.name == "Refused"]
        refused = {
            code
            for code in codes
            if FilterPattern(pattern).matches(
                json.dumps({**json.loads(lines["busy"]), "outcome": code})
            )
        }
        assert refused == {"busy", "deadline_exceeded", "draining"}
        assert set(codes) - refused == {"loading", "worker_failed"}

    @every_endpoint
    def test_filters_lie_with_the_log_of_decision_endpoints(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        made = filters(templates[f"Ballot-{environment}-Artifacts"])
        groups = {
            item["LogGroupName"]
            for (namespace, _), item in made.items()
            if namespace == f"Ballot/{environment}/{name}"
        }
        is_decision = ENVIRONMENTS[environment]["endpoints"][name]["kind"] == "decision"
        assert groups == ({f"${{Endpoint-{name}/Log}}"} if is_decision else set())


class TestQueries:
    """The saved queries."""

    @pytest.mark.parametrize("query", sorted(QUERIES))
    def test_they_ask_for_fields_that_lines_have(
        self, query: str, lines: dict[str, str], unhealthy: str
    ) -> None:
        known = {name for line in (*lines.values(), unhealthy) for name in json.loads(line)}
        # Only a scoring that failed has a cause, and only a start that failed a message.
        known |= {"cause", "@timestamp", "@message", "@logStream"}
        assert fields_of(QUERIES[query]) <= known

    def test_they_are_saved_for_all_decision_endpoints_of_the_environment(
        self, templates: dict[str, Template]
    ) -> None:
        saved = resources(templates["Ballot-prod-Artifacts"], "AWS::Logs::QueryDefinition")
        assert {item["Name"] for item in saved} == {f"ballot/prod/{name}" for name in QUERIES}
        for item in saved:
            assert item["LogGroupNames"] == [
                "${Endpoint-decision/Log}",
                "${Endpoint-decision-gpu/Log}",
            ]


def fields_of(query: str) -> set[str]:
    """Return the fields that a query reads: its words but for texts, functions and keywords."""
    bare = re.sub(r'"[^"]*"', "", query)
    aliases = set(re.findall(r"\bas (\w+)", bare))
    words = set(re.findall(r"(?<![\w@])@?[A-Za-z_]\w*(?!\w|\()", bare))
    keywords = {
        "fields",
        "filter",
        "sort",
        "stats",
        "limit",
        "by",
        "as",
        "and",
        "in",
        "asc",
        "desc",
    }
    return words - aliases - keywords - {"m", "h"}


class TestDashboard:
    """The dashboard of every environment."""

    @pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
    def test_widgets_fill_the_grid_without_overlap(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        taken: set[tuple[int, int]] = set()
        for widget in dashboard(templates[f"Ballot-{name}-Artifacts"]):
            cells = {
                (x, y)
                for x in range(widget["x"], widget["x"] + widget["width"])
                for y in range(widget["y"], widget["y"] + widget["height"])
            }
            assert widget["x"] >= 0
            assert widget["x"] + widget["width"] <= 24
            assert not cells & taken
            taken |= cells

    @pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
    def test_graphs_have_region_period_and_metrics_that_there_are(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{name}-Artifacts"]
        made = filters(template)
        for widget in dashboard(template):
            assert widget["type"] in ("text", "alarm", "metric")
            if widget["type"] == "metric":
                assert widget["properties"]["region"] in ("${AWS::Region}", REGION)
                assert widget["properties"]["period"] in (60, 3600)
                for namespace, metric, dimensions, options in metrics_of(widget):
                    if (namespace, metric) in made:
                        assert dimensions == {}
                    else:
                        assert_published(namespace, metric, options["stat"])
                        assert set(dimensions) - {"InstanceType"} == {"EndpointName", "VariantName"}

    def test_expressions_use_series_of_their_own_graph(self, watched: Synthesis) -> None:
        for widget in dashboard(watched.readable()["Ballot-dev-Artifacts"]):
            lines = widget["properties"].get("metrics", [])
            ids = [line[-1]["id"] for line in lines if "id" in line[-1]]
            assert len(ids) == len(set(ids))
            assert all(re.fullmatch("[a-z][a-zA-Z0-9_]*", item) for item in ids)
            for line in lines:
                expression = line[0]["expression"] if isinstance(line[0], dict) else ""
                if not expression.startswith("SEARCH("):
                    assert set(re.findall(r"\b[a-z]\w*", expression)) <= set(ids)

    @every_endpoint
    def test_each_endpoint_shows_what_its_kind_has(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        titles = titles_by_endpoint(templates[f"Ballot-{environment}-Artifacts"])[name]
        everywhere = {"Traffic", "Latency", "Errors", "Instances that report"}
        of_decisions = {"Queue and forward pass", "Cache hits", "Tokens", "Errors by code"}
        is_decision = ENVIRONMENTS[environment]["endpoints"][name]["kind"] == "decision"
        assert everywhere <= titles
        assert (of_decisions <= titles) if is_decision else not (of_decisions & titles)

    @pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
    def test_the_state_of_every_alarm_is_shown(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        shown = [
            arn.rpartition(":alarm:")[2]
            for widget in dashboard(templates[f"Ballot-{name}-Artifacts"])
            if widget["type"] == "alarm"
            for arn in widget["properties"]["alarms"]
        ]
        assert sorted(shown) == sorted(
            alarm
            for stack, template in templates.items()
            if stack.startswith(f"Ballot-{name}-")
            for alarm in alarms(template)
        )

    @every_endpoint
    def test_instances_are_counted_by_pool_where_there_are_pools(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        """Developer guide, "Monitor instance pools": dimensions of endpoint, variant and type."""
        pools = ENVIRONMENTS[environment]["endpoints"][name].get("instance_pools", [])
        counted = [
            (metric, options["stat"], dimensions.get("InstanceType"))
            for widget in dashboard(templates[f"Ballot-{environment}-Artifacts"])
            if widget["properties"].get("title") == "Instances that report"
            for _, metric, dimensions, options in metrics_of(widget)
            if dimensions["EndpointName"] == f"ballot-{environment}-{name}"
        ]
        assert counted == [("CPUUtilization", "SampleCount", item) for item in (None, *pools)]

    def test_pools_say_where_their_numbers_are(self, watched: Synthesis) -> None:
        texts = [
            widget["properties"]["markdown"]
            for widget in dashboard(watched.readable()["Ballot-dev-Artifacts"])
            if widget["type"] == "text"
        ]
        (pooled,) = [text for text in texts if "InstancePools" in text]
        assert "--endpoint-name ballot-dev-gpu " in pooled
        assert "ml.g6.xlarge" in pooled

    def test_a_price_makes_a_graph_of_the_cost(self, watched: Synthesis) -> None:
        titles = titles_by_endpoint(watched.readable()["Ballot-dev-Artifacts"])
        assert "Cost of 1,000 decisions at 1.25 USD an instance and hour" in titles["gpu"]
        assert "Cost of 1,000 requests at 0.9 USD an instance and hour" in titles["chat"]
        assert not any(title.startswith("Cost") for title in titles["cpu"])

    def test_the_cost_is_price_times_hours_by_decisions(self, watched: Synthesis) -> None:
        (graph,) = [
            widget["properties"]
            for widget in dashboard(watched.readable()["Ballot-dev-Artifacts"])
            if widget["properties"].get("title", "").startswith("Cost of 1,000 decisions")
        ]
        used, decisions, cost = (line[-1] for line in graph["metrics"])
        assert (used["stat"], decisions["stat"]) == ("SampleCount", "Sum")
        # Two instances for an hour report 120 times; at 1.25 USD each they cost 2.50 USD.
        formula = cost["expression"].replace(used["id"], "120").replace(decisions["id"], "5000")
        assert eval(formula, {"__builtins__": {}}) == pytest.approx(0.5)


def titles_by_endpoint(template: Template) -> dict[str, set[str]]:
    """Return the titles of the graphs under each endpoint's heading."""
    titles: dict[str, set[str]] = {}
    for widget in dashboard(template):
        if widget["type"] == "text":
            heading = widget["properties"]["markdown"].splitlines()[0].lstrip("# ")
            below = titles[heading] = set()
        elif widget["type"] == "metric":
            below.add(widget["properties"]["title"])
    return titles


class TestTopic:
    """Who is told, and who may tell."""

    def test_plain_http_is_refused_and_alarms_of_the_environment_may_publish(
        self, watched: Synthesis
    ) -> None:
        template = watched.readable()["Ballot-dev-Artifacts"]
        statements = only(template, "AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
        (refusal,) = [item for item in statements if item["Effect"] == "Deny"]
        assert refusal["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        allowed = {
            item["Principal"]["Service"]: item for item in statements if item["Effect"] == "Allow"
        }
        assert set(allowed) == {"cloudwatch.amazonaws.com", "budgets.amazonaws.com"}
        for item in allowed.values():
            assert item["Action"] == "sns:Publish"
            assert item["Condition"]["StringEquals"] == {"aws:SourceAccount": ACCOUNT}
        assert allowed["cloudwatch.amazonaws.com"]["Condition"]["ArnLike"] == {
            "aws:SourceArn": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:ballot-dev-*"
        }

    def test_a_key_lets_those_who_publish_encrypt(self, watched: Synthesis) -> None:
        template = watched.readable()["Ballot-dev-Artifacts"]
        (key,) = resources(template, "AWS::KMS::Key")
        may = {
            item["Principal"].get("Service"): item["Action"]
            for item in key["KeyPolicy"]["Statement"]
        }
        for service in ("cloudwatch.amazonaws.com", "budgets.amazonaws.com"):
            assert may[service] == ["kms:Decrypt", "kms:GenerateDataKey*"]
        assert "KmsMasterKeyId" in only(template, "AWS::SNS::Topic")

    def test_without_a_key_there_is_no_key_of_aws_which_no_alarm_could_use(
        self, templates: dict[str, Template]
    ) -> None:
        assert "KmsMasterKeyId" not in only(templates["Ballot-dev-Artifacts"], "AWS::SNS::Topic")

    def test_only_who_needs_it_may_publish(self, templates: dict[str, Template]) -> None:
        policy = only(templates["Ballot-dev-Artifacts"], "AWS::SNS::TopicPolicy")
        assert "budgets.amazonaws.com" not in json.dumps(policy)

    def test_it_goes_by_the_name_that_it_has(self, watched: Synthesis) -> None:
        template = watched.readable()["Ballot-dev-Artifacts"]
        assert only(template, "AWS::SNS::Topic")["TopicName"] == "ballot-dev-alarms"

    @every_environment
    def test_another_topic_can_take_its_place_while_every_endpoint_runs(
        self, name: str, environments: dict[str, Synthesis]
    ) -> None:
        """CloudFormation takes no export back that a stack imports, and so nobody imports this."""
        templates = environments[name].templates
        topics = {
            output["Export"]["Name"]
            for output in templates[f"Ballot-{name}-Artifacts"]["Outputs"].values()
            if "Topic" in json.dumps(output["Value"])
        }
        assert len(topics) == 1
        for stack, template in templates.items():
            assert not any(topic in json.dumps(template) for topic in topics) or (
                stack == f"Ballot-{name}-Artifacts"
            )

    def test_addresses_are_subscribed(self, watched: Synthesis) -> None:
        template = watched.readable()["Ballot-dev-Artifacts"]
        assert [
            (item["Protocol"], item["Endpoint"])
            for item in resources(template, "AWS::SNS::Subscription")
        ] == [("email", "ops@example.com"), ("email", "quality+ballot@example.org")]


class TestBudget:
    """The budget of a month."""

    def test_it_counts_what_is_tagged_as_the_environment(self, watched: Synthesis) -> None:
        template = watched.readable()["Ballot-dev-Artifacts"]
        budget = only(template, "AWS::Budgets::Budget")
        assert budget["Budget"]["CostFilters"] == {"TagKeyValue": ["user:ballot:environment$dev"]}
        assert budget["Budget"]["BudgetLimit"] == {"Amount": 1500.5, "Unit": "USD"}
        assert only(template, "AWS::SNS::Topic")["Tags"]["ballot:environment"] == "dev"
        for item in budget["NotificationsWithSubscribers"]:
            topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:ballot-dev-alarms"
            assert item["Subscribers"] == [{"Address": topic, "SubscriptionType": "SNS"}]

    def test_a_name_never_stands_in_the_way_of_the_budget_that_replaces_it(
        self, watched: Synthesis
    ) -> None:
        """CloudFormation replaces a budget whose notifications change, and makes the new first."""
        budget = only(watched.readable()["Ballot-dev-Artifacts"], "AWS::Budgets::Budget")
        assert "BudgetName" not in budget["Budget"]

    def test_it_waits_until_it_may_publish(self, watched: Synthesis) -> None:
        resource = watched.readable()["Ballot-dev-Artifacts"]["Resources"]["Monitoring/Budget"]
        assert "Monitoring/Topic/Policy" in resource["DependsOn"]

    @pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
    def test_none_is_made_unasked(self, name: str, templates: dict[str, Template]) -> None:
        assert resources(templates[f"Ballot-{name}-Artifacts"], "AWS::Budgets::Budget") == []


class TestOutsideJudges:
    """What linters, rules and the API models say of it."""

    def test_cfn_lint_finds_nothing(self, watched: Synthesis) -> None:
        lint(watched)

    def test_cdk_nag_finds_nothing(self, watched: Synthesis) -> None:
        assert watched.findings == []

    def test_the_apis_take_all_of_it(self, watched: Synthesis) -> None:
        refused = [
            line
            for template in watched.readable().values()
            for line in refused_by_the_apis(template)
        ]
        assert refused == []

    @every_endpoint
    def test_the_apis_take_every_alarm(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        assert alarms(template)
        assert list(refused_by_the_apis(template)) == []


def refused_by_the_apis(template: Template) -> Iterator[str]:
    """Yield what the services would refuse, by botocore's models of their APIs."""
    for properties in resources(template, "AWS::CloudWatch::Alarm"):
        yield from violations("cloudwatch", "PutMetricAlarm", without_tags(properties))
    for properties in resources(template, "AWS::CloudWatch::Dashboard"):
        body = json.dumps(properties["DashboardBody"])
        parameters = {**without_tags(properties), "DashboardBody": body}
        yield from violations("cloudwatch", "PutDashboard", parameters)
    for properties in resources(template, "AWS::Logs::MetricFilter"):
        yield from violations("logs", "PutMetricFilter", metric_filter(properties))
    for properties in resources(template, "AWS::Logs::QueryDefinition"):
        groups = ["/aws/sagemaker/Endpoints/example"] * len(properties["LogGroupNames"])
        yield from violations(
            "logs", "PutQueryDefinition", {**lower_first(properties), "logGroupNames": groups}
        )
    for properties in resources(template, "AWS::SNS::Topic"):
        yield from violations("sns", "CreateTopic", {"Name": properties["TopicName"]})
    for properties in resources(template, "AWS::Budgets::Budget"):
        parameters = {"AccountId": ACCOUNT, **without_tags(properties)}
        amount = str(properties["Budget"]["BudgetLimit"]["Amount"])
        parameters["Budget"] = {
            "BudgetName": "generated",
            **properties["Budget"],
            "BudgetLimit": {"Amount": amount, "Unit": "USD"},
        }
        yield from violations("budgets", "CreateBudget", parameters)


def without_tags(properties: Any) -> dict[str, Any]:
    """Return properties without tags, which the readable form has as an object."""
    return {key: value for key, value in properties.items() if "Tags" not in key}


def lower_first(properties: dict[str, Any]) -> dict[str, Any]:
    """Return properties under the names that the API of CloudWatch Logs has for them."""
    return {key[0].lower() + key[1:]: value for key, value in properties.items()}


def metric_filter(properties: Any) -> dict[str, Any]:
    """Return a metric filter as the API takes it: named, and dimensions as an object."""
    (transformation,) = properties["MetricTransformations"]
    dimensions = {item["Key"]: item["Value"] for item in transformation.get("Dimensions", [])}
    return {
        "filterName": "generated",
        "filterPattern": properties["FilterPattern"],
        "logGroupName": "/aws/sagemaker/Endpoints/example",
        "metricTransformations": [{**lower_first(transformation), "dimensions": dimensions}],
    }
