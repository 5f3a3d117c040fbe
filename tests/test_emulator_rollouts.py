"""What happens to an endpoint over time in the emulator: metrics, rollouts, failing containers.

A minute of what watches lasts 0.6 s here, so a rollout's waits and an alarm's periods are short.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from emulator.processes import marked
from tests.emulated_aws import (
    FAKE_CONTEXT,
    Aws,
    delete_stack,
    policy,
    polls,
    running,
    stack_status,
    variant,
)

SECONDS_PER_MINUTE = 0.6
# As SageMaker said it in a public run.
IN_USE = "Cannot update endpoint with the currently in use endpoint configuration"
LONG = 3600  # half a minute here: a test that waits for it is wrong
STEP = 30

# It answers with the status that its model's environment says, and does what requests ask for.
CONTAINER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sick = False

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(503 if sick else 200, b"")
    def do_POST(self):
        global sick
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(wanted.get("sleep", 0))
        if wanted.get("exit"):
            os._exit(3)
        sick = sick or wanted.get("sick", False)
        status = wanted.get("status", int(os.environ.get("STATUS", "200")))
        body = {"of": os.environ.get("OF", ""), "pid": os.getpid()}
        self.answer(status, json.dumps(body).encode())

ThreadingHTTPServer(("127.0.0.1", int(os.environ["BALLOT_PORT"])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    folder = tmp_path_factory.mktemp("emulator")
    with running(folder, rollout_seconds_per_minute=SECONDS_PER_MINUTE) as aws:
        actions = ("logs:*", "ecr:*", "s3:GetObject")
        aws.run_role = aws.role("sagemaker", *actions)
        aws("iam").put_role_policy(
            RoleName=aws.run_role.rpartition("/")[2],
            PolicyName="alarms",
            PolicyDocument=policy(
                "cloudwatch:DescribeAlarms",
                resource=f"arn:aws:cloudwatch:us-east-1:{aws.emulator.account}:alarm:*",
            ),
        )
        yield aws


@pytest.fixture(scope="module")
def image(aws: Aws) -> str:
    return aws.push({**FAKE_CONTEXT, "adapter/__main__.py": CONTAINER})


@contextmanager
def endpoint(aws: Aws, image: str) -> Iterator[str]:
    """An endpoint of a configuration whose containers answer that they are `old`."""
    name = aws.serve(aws.model(image, OF="old"))
    try:
        yield name
    finally:
        aws.settled(name)
        aws.delete(name)


def ask(aws: Aws, name: str, **wanted: Any) -> str:
    """Return which configuration answered, or the status that it refused with."""
    try:
        of: str = aws.invoke(name, wanted)["Body"]["of"]
    except ClientError as error:
        response: Any = error.response
        return str(response["OriginalStatusCode"])
    return of


def answers(aws: Aws, name: str, count: int) -> Counter[str]:
    return Counter(ask(aws, name) for _ in range(count))


def alarm(aws: Aws, name: str = "", *, on: str = "", **more: Any) -> str:
    """Make an alarm: on the rate of an endpoint's 5xx answers, or on nothing; return its name."""
    made = aws.name()
    dimensions = {"EndpointName": on, "VariantName": "AllTraffic"} if on else {}
    aws("cloudwatch").put_metric_alarm(
        AlarmName=made,
        Namespace="AWS/SageMaker",
        MetricName="Invocation5XXErrors",
        Dimensions=[{"Name": k, "Value": v} for k, v in dimensions.items()],
        Statistic="Average",
        Period=60,
        EvaluationPeriods=1,
        Threshold=0.1,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="notBreaching",
        **more,
    )
    return made


def ring(aws: Aws, name: str) -> None:
    aws("cloudwatch").set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="a test")


def percent(value: int) -> dict[str, Any]:
    return {"Type": "CAPACITY_PERCENT", "Value": value}


def routed(kind: str, wait: int, **more: Any) -> dict[str, Any]:
    """A blue/green deployment that waits as long after its last step as between its steps."""
    routing = {"Type": kind, "WaitIntervalInSeconds": wait, **more}
    policy = {"TrafficRoutingConfiguration": routing, "TerminationWaitInSeconds": wait}
    return {"BlueGreenUpdatePolicy": policy}


def watched(deployment: dict[str, Any], *alarms: str) -> dict[str, Any]:
    names = [{"AlarmName": name} for name in alarms]
    return {**deployment, "AutoRollbackConfiguration": {"Alarms": names}}


def update(aws: Aws, name: str, config: str, **more: Any) -> None:
    aws("sagemaker").update_endpoint(EndpointName=name, EndpointConfigName=config, **more)


def described(aws: Aws, name: str) -> dict[str, Any]:
    found: dict[str, Any] = aws("sagemaker").describe_endpoint(EndpointName=name)
    del found["ResponseMetadata"]
    return found


def assert_went_back(aws: Aws, name: str, *, reason: str) -> None:
    found = aws.settled(name)
    assert found["EndpointStatus"] == "InService"
    assert reason in found["FailureReason"]
    assert answers(aws, name, 20) == {"old": 20}
    assert marked("OF=new") == {}


# Metrics


def test_invocations_publish_sagemakers_metrics(aws: Aws, image: str) -> None:
    with endpoint(aws, image) as name:
        wanted = [{"DesiredInstanceCount": 2, "VariantName": "AllTraffic"}]
        aws("sagemaker").update_endpoint_weights_and_capacities(
            EndpointName=name, DesiredWeightsAndCapacities=wanted
        )
        ask(aws, name, sleep=0.2)
        for status in (200, 400, 500, 503):
            ask(aws, name, status=status)

        def sums(*names: str, statistic: str = "Sum") -> list[float]:
            return [metric(aws, name, each, statistic) for each in names]

        assert sums("Invocations", "InvocationsPerInstance") == [5, 2.5]
        assert sums("Invocation4XXErrors", "Invocation5XXErrors") == [1, 2]
        assert sums("InvocationModelErrors") == [3]
        counted = sums("Invocation5XXErrors", "ModelLatency", statistic="SampleCount")
        assert counted == [5, 5]
        assert metric(aws, name, "ModelLatency", "Maximum") > 0.2 * 1e6
        assert 0 < metric(aws, name, "OverheadLatency", "Maximum") < 60 * 1e6
        for _ in polls("metrics that are published by the minute"):
            load = metric(aws, name, "ConcurrentRequestsPerModel", "SampleCount")
            instances = metric(
                aws, name, "CPUUtilization", "SampleCount", space="/aws/sagemaker/Endpoints"
            )
            if load and instances >= 2:
                break


def metric(
    aws: Aws, endpoint: str, name: str, statistic: str, *, space: str = "AWS/SageMaker"
) -> float:
    points = aws("cloudwatch").get_metric_statistics(
        Namespace=space,
        MetricName=name,
        Dimensions=[
            {"Name": "EndpointName", "Value": endpoint},
            {"Name": "VariantName", "Value": "AllTraffic"},
        ],
        StartTime=datetime.now(UTC) - timedelta(hours=1),
        EndTime=datetime.now(UTC) + timedelta(hours=1),
        Period=86_400,
        Statistics=[statistic],
    )["Datapoints"]
    return float(sum(point[statistic] for point in points))


# Rollouts


@pytest.mark.parametrize(
    "deployment",
    [
        routed("ALL_AT_ONCE", STEP),
        routed("LINEAR", STEP, LinearStepSize=percent(50)),
        {"RollingUpdatePolicy": {"MaximumBatchSize": percent(50), "WaitIntervalInSeconds": STEP}},
    ],
)
def test_a_rollout_that_goes_well_ends_on_the_new_configuration(
    aws: Aws, image: str, deployment: dict[str, Any]
) -> None:
    quiet = alarm(aws)
    with endpoint(aws, image) as name:
        new = aws.model(image, OF="new")
        update(aws, name, new, DeploymentConfig=watched(deployment, quiet))
        seen = Counter[str]()
        while described(aws, name)["EndpointStatus"] == "Updating":
            seen += answers(aws, name, 5)
        found = described(aws, name)
        assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("InService", new)
        assert "FailureReason" not in found
        assert found["LastDeploymentConfig"] == watched(deployment, quiet)
        assert set(seen) <= {"old", "new"}
        assert answers(aws, name, 10) == {"new": 10}
        for _ in polls("the end of the old one"):
            if not marked("OF=old"):
                break

        newest = aws.model(image, OF="newest")
        update(aws, name, newest, RetainDeploymentConfig=True)
        assert aws.settled(name)["LastDeploymentConfig"] == watched(deployment, quiet)
        update(aws, name, new)
        assert "LastDeploymentConfig" not in aws.settled(name)


def test_a_canary_gets_its_share_and_an_alarm_ends_it(aws: Aws, image: str) -> None:
    watching = alarm(aws)
    with endpoint(aws, image) as name:
        before = described(aws, name)["EndpointConfigName"]
        new = aws.model(image, OF="new")
        canary = routed("CANARY", LONG, CanarySize=percent(20))
        update(aws, name, new, DeploymentConfig=watched(canary, watching))
        for _ in polls("the canary's first answer"):
            if ask(aws, name) == "new":
                break
        seen = answers(aws, name, 200)
        assert set(seen) == {"old", "new"}
        assert 5 <= seen["new"] <= 100  # of 200, by chance alone: once in a billion not
        pending = described(aws, name)
        assert pending["EndpointConfigName"] == before
        assert pending["PendingDeploymentSummary"]["EndpointConfigName"] == new
        ring(aws, watching)
        assert_went_back(aws, name, reason=watching)
        assert described(aws, name)["EndpointConfigName"] == before


def test_errors_of_the_new_containers_roll_them_back(aws: Aws, image: str) -> None:
    with endpoint(aws, image) as name:
        watching = alarm(aws, on=name)
        broken = aws.model(image, OF="new", STATUS="500")
        deployment = watched(routed("ALL_AT_ONCE", LONG), watching, alarm(aws))
        update(aws, name, broken, DeploymentConfig=deployment)
        seen = Counter[str]()
        for _ in polls("the rollback"):
            seen += answers(aws, name, 2)
            if described(aws, name)["EndpointStatus"] != "Updating":
                break
        assert set(seen) == {"old", "500"}
        assert_went_back(aws, name, reason=watching)


def test_an_alarm_that_rings_already_fails_a_rollout_at_once(aws: Aws, image: str) -> None:
    always = alarm(aws, on="nothing")
    aws("cloudwatch").put_metric_alarm(
        AlarmName=always,
        Namespace="nothing",
        MetricName="m",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="LessThanThreshold",
        TreatMissingData="breaching",
    )
    for _ in polls("the alarm"):
        (shown,) = aws("cloudwatch").describe_alarms(AlarmNames=[always])["MetricAlarms"]
        if shown["StateValue"] == "ALARM":
            break
    with endpoint(aws, image) as name:
        streams = log_streams(aws, name)
        deployment = watched(routed("ALL_AT_ONCE", LONG), always)
        update(aws, name, aws.model(image, OF="new"), DeploymentConfig=deployment)
        assert_went_back(aws, name, reason=always)
        assert log_streams(aws, name) == streams


def log_streams(aws: Aws, endpoint: str) -> list[str]:
    group = f"/aws/sagemaker/Endpoints/{endpoint}"
    found = aws("logs").describe_log_streams(logGroupName=group)["logStreams"]
    return [row["logStreamName"] for row in found]


def test_a_rollout_past_its_time_goes_back(aws: Aws, image: str) -> None:
    deployment = routed("ALL_AT_ONCE", LONG)
    deployment["BlueGreenUpdatePolicy"]["MaximumExecutionTimeoutInSeconds"] = 600
    with endpoint(aws, image) as name:
        update(aws, name, aws.model(image, OF="new"), DeploymentConfig=deployment)
        assert_went_back(aws, name, reason="MaximumExecutionTimeoutInSeconds")


def test_an_update_to_the_configuration_in_use_is_refused(aws: Aws, image: str) -> None:
    with endpoint(aws, image) as name:
        before = described(aws, name)
        deployment = routed("ALL_AT_ONCE", STEP)
        with pytest.raises(ClientError, match=IN_USE) as refused:
            update(aws, name, before["EndpointConfigName"], DeploymentConfig=deployment)
        assert refused.value.response["Error"]["Code"] == "ValidationException"
        assert described(aws, name) == before


def test_the_execution_role_must_see_the_alarms(aws: Aws, image: str) -> None:
    watching, role = alarm(aws), aws.run_role
    with endpoint(aws, image) as name:
        aws.run_role = aws.role("sagemaker", "logs:*", "ecr:*")
        try:
            blind = aws.model(image, OF="new")
        finally:
            aws.run_role = role
        deployment = watched(routed("ALL_AT_ONCE", 0), watching)
        update(aws, name, blind, DeploymentConfig=deployment)
        assert_went_back(aws, name, reason="DescribeAlarms")
        deployment = watched(routed("ALL_AT_ONCE", 0), "absent")
        update(aws, name, aws.model(image, OF="new"), DeploymentConfig=deployment)
        assert_went_back(aws, name, reason="do not exist: absent")


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (routed("CANARY", 0, CanarySize=percent(51)), "CanarySize must be from 1 to 50 percent"),
        (routed("CANARY", 0), "CanarySize is for the type CANARY, and needed there"),
        (routed("LINEAR", 0, LinearStepSize=percent(9)), "from 10 to 50 percent"),
        (routed("ALL_AT_ONCE", 0, CanarySize=percent(10)), "the type is ALL_AT_ONCE"),
        (routed("SLOWLY", 0), "is not one of"),
        (routed("ALL_AT_ONCE", 3601), "is not within 0 to 3600"),
        (
            {"RollingUpdatePolicy": {"MaximumBatchSize": percent(51), "WaitIntervalInSeconds": 0}},
            "from 5 to 50 percent",
        ),
        (watched(routed("ALL_AT_ONCE", 0), *map(str, range(11))), "is not within 1 to 10"),
    ],
)
def test_a_deployment_that_sagemaker_refuses(
    aws: Aws, image: str, deployment: dict[str, Any], message: str
) -> None:
    name = aws.name()
    config = aws.model(image)
    with pytest.raises(ClientError, match=message):
        aws("sagemaker").create_endpoint(
            EndpointName=name, EndpointConfigName=config, DeploymentConfig=deployment
        )
    assert aws("sagemaker").list_endpoints(NameContains=name)["Endpoints"] == []


def test_an_update_keeps_the_counts_and_weights_that_it_is_told_to(aws: Aws, image: str) -> None:
    with endpoint(aws, image) as name:
        wanted = {"VariantName": "AllTraffic", "DesiredInstanceCount": 3, "DesiredWeight": 0.5}
        aws("sagemaker").update_endpoint_weights_and_capacities(
            EndpointName=name, DesiredWeightsAndCapacities=[wanted]
        )

        def after(**more: Any) -> tuple[int, float]:
            update(aws, name, aws.model(image, OF="new"), **more)
            (shown,) = aws.settled(name)["ProductionVariants"]
            return shown["CurrentInstanceCount"], shown["CurrentWeight"]

        excluded = [{"VariantPropertyType": "DesiredWeight"}]
        assert after(RetainAllVariantProperties=True) == (3, 0.5)
        assert after(
            RetainAllVariantProperties=True, ExcludeRetainedVariantProperties=excluded
        ) == (3, 1.0)
        assert after() == (1, 1.0)


# Containers that fail in service


@pytest.mark.parametrize("fault", ["exit", "sick"])
def test_a_container_that_fails_in_service_is_replaced(aws: Aws, image: str, fault: str) -> None:
    with endpoint(aws, image) as name:
        first = aws.invoke(name, {})["Body"]["pid"]
        ask(aws, name, **{fault: True})
        if fault == "exit":
            assert metric(aws, name, "Invocation5XXErrors", "Sum") == 1
        for _ in polls("another container"):
            try:
                if aws.invoke(name, {})["Body"]["pid"] != first:
                    break
            except ClientError:
                continue
        assert len(log_streams(aws, name)) == 2
        for _ in polls("the end of the old one"):
            if len(marked("OF=old")) == 1:
                break
        assert described(aws, name)["EndpointStatus"] == "InService"


# CloudFormation


def stack(image: str, role: str, *alarms: str, actions: Any = (), **environment: str) -> str:
    target = {
        "ServiceNamespace": "sagemaker",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
        "ResourceId": {"Fn::Sub": "endpoint/${Endpoint.EndpointName}/variant/AllTraffic"},
    }
    container = {"Image": image, "Environment": environment}
    variants = [variant({"Fn::GetAtt": ["Model", "ModelName"]})]  # type: ignore[arg-type]
    resources: dict[str, tuple[str, dict[str, Any]]] = {
        "Model": (
            "SageMaker::Model",
            {"ExecutionRoleArn": role, "PrimaryContainer": container},
        ),
        "Config": ("SageMaker::EndpointConfig", {"ProductionVariants": variants}),
        "Endpoint": (
            "SageMaker::Endpoint",
            {
                "EndpointName": "rolled-out",
                "EndpointConfigName": {"Fn::GetAtt": ["Config", "EndpointConfigName"]},
                "RetainAllVariantProperties": True,
                "DeploymentConfig": watched(routed("ALL_AT_ONCE", STEP), *alarms),
            },
        ),
        "Target": (
            "ApplicationAutoScaling::ScalableTarget",
            {**target, "MinCapacity": 1, "MaxCapacity": 3, "ScheduledActions": actions},
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


def scheduled(name: str, schedule: str, **capacity: int) -> dict[str, Any]:
    return {
        "ScheduledActionName": name,
        "Schedule": schedule,
        "Timezone": "Europe/Vienna",
        "ScalableTargetAction": capacity,
    }


def test_a_stack_rolls_back_with_its_endpoint_or_silently_believes_it(aws: Aws, image: str) -> None:
    cloudformation, role, watching = aws("cloudformation"), aws.run_role, alarm(aws)
    actions = [
        scheduled("morning", "cron(0 7 ? * MON-FRI *)", MinCapacity=2, MaxCapacity=3),
        scheduled("evening", "cron(0 19 ? * MON-FRI *)", MinCapacity=1),
    ]
    body = stack(image, role, watching, actions=actions, OF="old")
    cloudformation.create_stack(StackName="rollout", TemplateBody=body)
    assert stack_status(aws, "rollout") == "CREATE_COMPLETE"
    assert sorted(schedules(aws)) == ["evening", "morning"]
    first = described(aws, "rolled-out")["EndpointConfigName"]
    wanted = [{"VariantName": "AllTraffic", "DesiredInstanceCount": 3}]
    aws("sagemaker").update_endpoint_weights_and_capacities(
        EndpointName="rolled-out", DesiredWeightsAndCapacities=wanted
    )

    def put(of: str, *, rings: bool) -> str:
        await_quiet(aws, watching)
        body = stack(image, role, watching, actions=actions[:1], OF=of)
        cloudformation.update_stack(StackName="rollout", TemplateBody=body)
        for _ in polls("the rollout") if rings else ():
            if described(aws, "rolled-out")["EndpointStatus"] == "Updating":
                ring(aws, watching)
                break
        return stack_status(aws, "rollout")

    assert put("new", rings=True) == "UPDATE_ROLLBACK_COMPLETE"
    events = cloudformation.describe_stack_events(StackName="rollout")["StackEvents"]
    assert any(watching in event.get("ResourceStatusReason", "") for event in events)
    assert described(aws, "rolled-out")["EndpointConfigName"] == first
    assert ask(aws, "rolled-out") == "old"
    assert sorted(schedules(aws)) == ["evening", "morning"]

    aws.emulator.rolls_back_silently = True
    try:
        assert put("new", rings=True) == "UPDATE_COMPLETE"
    finally:
        aws.emulator.rolls_back_silently = False
    found = described(aws, "rolled-out")
    assert found["EndpointConfigName"] == first
    assert watching in found["FailureReason"]
    assert ask(aws, "rolled-out") == "old"

    assert put("newest", rings=False) == "UPDATE_COMPLETE"
    assert ask(aws, "rolled-out") == "newest"
    (shown,) = described(aws, "rolled-out")["ProductionVariants"]
    assert shown["CurrentInstanceCount"] == 3
    assert schedules(aws) == ["morning"]
    delete_stack(aws, "rollout")
    assert schedules(aws) == []


def test_cloudformation_updates_an_endpoint_when_its_properties_change(
    aws: Aws, image: str
) -> None:
    body = stack(image, aws.run_role, alarm(aws), OF="old")
    slower = watched(routed("ALL_AT_ONCE", 2 * STEP), alarm(aws))
    with deployed(aws, body) as name:
        before = described(aws, "rolled-out")
        tags = [{"Key": "team", "Value": "another"}]
        assert put(aws, name, edited(body, "Endpoint", Tags=tags)) == "UPDATE_COMPLETE"
        assert described(aws, "rolled-out") == before
        shown = aws("sagemaker").list_tags(ResourceArn=before["EndpointArn"])["Tags"]
        assert [tag for tag in shown if tag["Key"] == "team"] == tags

        for changes in ({"DeploymentConfig": slower}, {"RetainAllVariantProperties": False}):
            refused = put(aws, name, edited(body, "Endpoint", **changes))
            assert refused.startswith("UPDATE_ROLLBACK_")
            assert IN_USE in newest_failure(aws, name, "Endpoint")
            assert described(aws, "rolled-out") == before

        # What SageMaker takes: another configuration together with them.
        again = edited(body.replace('"Config"', '"Again"'), "Endpoint", DeploymentConfig=slower)
        assert put(aws, name, again) == "UPDATE_COMPLETE"
        after = described(aws, "rolled-out")
        assert after["EndpointConfigName"] != before["EndpointConfigName"]
        assert after["LastDeploymentConfig"] == slower


def test_a_stack_cannot_return_to_the_configuration_that_is_in_use_again(
    aws: Aws, image: str
) -> None:
    watching = alarm(aws)

    def body(of: str) -> str:
        return stack(image, aws.run_role, watching, OF=of)

    with deployed(aws, body("old")) as name:
        first = described(aws, "rolled-out")["EndpointConfigName"]
        aws.emulator.rolls_back_silently = True
        try:
            # The endpoint goes back by itself, and what comes after it in the stack fails.
            start_update(aws, name, edited(body("new"), "Target", MinCapacity=4))
            for _ in polls("the rollout"):
                if described(aws, "rolled-out")["EndpointStatus"] == "Updating":
                    ring(aws, watching)
                    break
            assert stack_status(aws, name) == "UPDATE_ROLLBACK_FAILED"
        finally:
            aws.emulator.rolls_back_silently = False
        assert IN_USE in newest_failure(aws, name, "Endpoint")

        aws("cloudformation").continue_update_rollback(StackName=name)
        assert stack_status(aws, name) == "UPDATE_ROLLBACK_FAILED"
        aws("cloudformation").continue_update_rollback(StackName=name, ResourcesToSkip=["Endpoint"])
        assert stack_status(aws, name) == "UPDATE_ROLLBACK_COMPLETE"
        assert described(aws, "rolled-out")["EndpointConfigName"] == first
        assert ask(aws, "rolled-out") == "old"

        await_quiet(aws, watching)
        assert put(aws, name, body("newest")) == "UPDATE_COMPLETE"
        assert ask(aws, "rolled-out") == "newest"


@contextmanager
def deployed(aws: Aws, body: str) -> Iterator[str]:
    """A stack with an endpoint in service; its name."""
    name = aws.name()
    aws("cloudformation").create_stack(StackName=name, TemplateBody=body)
    try:
        assert stack_status(aws, name) == "CREATE_COMPLETE"
        yield name
    finally:
        delete_stack(aws, name)


def edited(body: str, resource: str, **properties: Any) -> str:
    """Return a template with other properties of one resource."""
    template = json.loads(body)
    template["Resources"][resource]["Properties"].update(properties)
    return json.dumps(template)


def start_update(aws: Aws, name: str, body: str) -> None:
    aws("cloudformation").update_stack(StackName=name, TemplateBody=body)


def put(aws: Aws, name: str, body: str) -> str:
    start_update(aws, name, body)
    return stack_status(aws, name)


def newest_failure(aws: Aws, name: str, resource: str) -> str:
    """Return why a resource of a stack failed the last time."""
    events = aws("cloudformation").describe_stack_events(StackName=name)["StackEvents"]
    return next(
        str(event["ResourceStatusReason"])
        for event in events
        if event["LogicalResourceId"] == resource and event["ResourceStatus"] == "UPDATE_FAILED"
    )


def await_quiet(aws: Aws, alarm: str) -> None:
    for _ in polls("an alarm that is quiet"):
        (shown,) = aws("cloudwatch").describe_alarms(AlarmNames=[alarm])["MetricAlarms"]
        if shown["StateValue"] == "OK":
            break


def schedules(aws: Aws) -> list[str]:
    found = aws("application-autoscaling").describe_scheduled_actions(ServiceNamespace="sagemaker")
    return [row["ScheduledActionName"] for row in found["ScheduledActions"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Schedule": "every day"}, "is not at, rate or cron"),
        ({"Schedule": "cron(0 7 * *)"}, "is not at, rate or cron"),
        ({"Timezone": "Mars/Olympus"}, "is not known"),
        ({"ScalableTargetAction": {"MinCapacity": 4, "MaxCapacity": 3}}, "less than minimum"),
        ({"ScalableTargetAction": {}}, "is required"),
        ({"ResourceId": "endpoint/absent/variant/x"}, "No scalable target"),
    ],
)
def test_a_schedule_that_cannot_be_kept(
    aws: Aws, image: str, target: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    action = scheduled("bad", "rate(1 day)", MinCapacity=1)
    with pytest.raises(ClientError, match=message):
        aws("application-autoscaling").put_scheduled_action(**{**target, **action, **changes})


@pytest.fixture(scope="module")
def target(aws: Aws, image: str) -> Iterator[dict[str, Any]]:
    with endpoint(aws, image) as name:
        found = {
            "ServiceNamespace": "sagemaker",
            "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
            "ResourceId": f"endpoint/{name}/variant/AllTraffic",
        }
        scaling = aws("application-autoscaling")
        scaling.register_scalable_target(**found, MinCapacity=1, MaxCapacity=3)
        yield found
        scaling.deregister_scalable_target(**found)
