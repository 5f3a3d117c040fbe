"""The whole of it: the CDK CLI deploys the app to the emulator, whose builds, functions and
containers really run, with IAM enforced; then it changes, breaks, mends and destroys it.

What this cannot show, because it is emulated: docs/emulator.md. The tests of one class run in
their order: each finds the deployment as the one before left it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from emulator import Emulator
from emulator.cdk import CdkApp, CdkError
from emulator.clients import make_client
from tests.adapter_process import ROOT, AdapterProcess

DECISION = "ballot-local-decision"
CHAT = "ballot-local-chat"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SCALING = {"min": 2, "max": 4, "concurrent_requests_per_instance": 2}
# Half of the requests for ten alarm minutes, then all of them.
CANARY = {"strategy": "canary", "percent": 50, "wait_seconds": 600}
BOUNDED = {"strategy": "all_at_once", "max_seconds": 7200}
PROJECTS = ("ballot-local-model", "ballot-local-image-cpu", "ballot-local-image-chat")


class Account:
    """An emulated account with Ballot's app deployed to it."""

    def __init__(self, emulator: Emulator, app: CdkApp) -> None:
        self.emulator = emulator
        self.app = app

    def client(self, service: str) -> Any:
        config = Config(read_timeout=70, retries={"total_max_attempts": 1})
        return closing(make_client(self.emulator.exports, service, config=config))

    def invoke(self, endpoint: str, request: dict[str, Any]) -> dict[str, Any]:
        with self.client("sagemaker-runtime") as runtime:
            answer = runtime.invoke_endpoint(
                EndpointName=endpoint, ContentType="application/json", Body=json.dumps(request)
            )
            body: dict[str, Any] = json.loads(answer["Body"].read())
            return body

    def endpoint(self, name: str) -> dict[str, Any]:
        with self.client("sagemaker") as sagemaker:
            described: dict[str, Any] = sagemaker.describe_endpoint(EndpointName=name)
            return described

    def builds(self) -> dict[str, int]:
        """How many builds each project has ever started."""
        with self.client("codebuild") as codebuild:
            return {
                project: len(codebuild.list_builds_for_project(projectName=project)["ids"])
                for project in PROJECTS
            }

    def set_instances(self, endpoint: str, count: int) -> None:
        """Do what auto scaling does under load."""
        with self.client("sagemaker") as sagemaker:
            (variant,) = sagemaker.describe_endpoint(EndpointName=endpoint)["ProductionVariants"]
            wanted = {"VariantName": variant["VariantName"], "DesiredInstanceCount": count}
            sagemaker.update_endpoint_weights_and_capacities(
                EndpointName=endpoint, DesiredWeightsAndCapacities=[wanted]
            )

    def instances(self, endpoint: str) -> int:
        (variant,) = self.endpoint(endpoint)["ProductionVariants"]
        return int(variant["CurrentInstanceCount"])

    def configs(self) -> list[str]:
        with self.client("sagemaker") as sagemaker:
            rows = sagemaker.list_endpoint_configs()["EndpointConfigs"]
            return sorted(row["EndpointConfigName"] for row in rows)

    def output(self, stack: str, key: str) -> str:
        with self.client("cloudformation") as cloudformation:
            (described,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
            return next(
                str(row["OutputValue"]) for row in described["Outputs"] if row["OutputKey"] == key
            )

    def stack_status(self, stack: str) -> str:
        with self.client("cloudformation") as cloudformation:
            (described,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
            return str(described["StackStatus"])

    def reason_of_failure(self, stack: str, resource_type: str) -> str:
        """Why the stack's only resource of a type failed the last time."""
        with self.client("cloudformation") as cloudformation:
            events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
            return next(
                str(event["ResourceStatusReason"])
                for event in events
                if event["ResourceType"] == resource_type
                and event["ResourceStatus"].endswith("FAILED")
            )

    def skip_the_endpoint_of(self, stack: str) -> None:
        """Do what the runbook says of an endpoint that went back before its stack did."""
        with self.client("cloudformation") as cloudformation:
            found = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
            (endpoint,) = (
                row["LogicalResourceId"]
                for row in found
                if row["ResourceType"] == "AWS::SageMaker::Endpoint"
            )
            cloudformation.continue_update_rollback(StackName=stack, ResourcesToSkip=[endpoint])
            cloudformation.get_waiter("stack_rollback_complete").wait(
                StackName=stack, WaiterConfig={"Delay": 1}
            )


def write(app: CdkApp, name: str, text: str) -> str:
    """Replace a file of the app's copy; return what it held."""
    path = app.folder / name
    before = path.read_text()
    path.write_text(text)
    return before


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    # An alarm's minute is a second: it rings, and a rollout waits, in seconds.
    with Emulator(rollout_seconds_per_minute=1) as emulator:
        app = CdkApp(emulator, tmp_path_factory.mktemp("app"), environment="local")
        app.change_settings(
            lambda settings: settings["endpoints"]["decision"].update(scaling=SCALING)
        )
        app.bootstrap()
        app.deploy()
        yield Account(emulator, app)


@pytest.mark.timeout(600)
class TestDeployment:
    def test_decision_endpoint_answers_as_the_adapter_does(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        result = account.invoke(DECISION, support_route)["result"]
        with (
            AdapterProcess(BALLOT_THREADS="1", BALLOT_CONTEXT_TOKENS="2048") as adapter,
            adapter.wait_ready().client() as client,
        ):
            alone = client.post("/invocations", json=support_route).json()["result"]

        assert result["model"]["sha256"] == MODEL_SHA256
        assert result["model"] == alone["model"]
        for number in ("option_logits", "probabilities", "allowed_token_mass", "prompt_sha256"):
            assert result[number] == alone[number]

    def test_shared_state_example_is_answered(
        self, account: Account, shared_state: dict[str, Any]
    ) -> None:
        results = account.invoke(DECISION, shared_state)["results"]

        assert [result["id"] for result in results] == ["refund-allowed", "next-step"]

    def test_chat_endpoint_completes(self, account: Account) -> None:
        message = {"role": "user", "content": "Say hello."}
        answer = account.invoke(CHAT, {"messages": [message], "max_tokens": 8})

        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert answer["choices"][0]["message"]["content"]

    def test_outputs_name_what_was_verified(self, account: Account) -> None:
        stack = "Ballot-local-decision"

        assert account.output(stack, "EndpointName") == DECISION
        assert account.output(stack, "ModelSha256") == MODEL_SHA256
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", account.output(stack, "ImageDigest"))
        assert account.output(stack, "InvokeCommand").startswith("aws sagemaker-runtime invoke")

    def test_what_is_in_the_image_is_listed_under_its_digest(self, account: Account) -> None:
        digest = account.output("Ballot-local-decision", "ImageDigest").removeprefix("sha256:")
        with account.client("s3") as s3:
            (bucket,) = (
                item["Name"]
                for item in s3.list_buckets()["Buckets"]
                if item["Name"].startswith("ballot-local-artifacts")
            )
            listed = s3.get_object(Bucket=bucket, Key=f"sboms/{digest}.cdx.json")
        assert listed["ContentType"] == "application/vnd.cyclonedx+json"
        assert json.loads(listed["Body"].read())["bomFormat"] == "CycloneDX"

    def test_deploying_again_changes_nothing_and_builds_nothing(self, account: Account) -> None:
        builds, configs = account.builds(), account.configs()
        output = account.app.deploy()

        assert output.count("(no changes)") == 3
        assert account.builds() == builds == dict.fromkeys(PROJECTS, 1)
        assert account.configs() == configs

    def test_touching_the_adapter_rebuilds_its_image_and_updates_its_endpoint_in_place(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        builds, before, chat = account.builds(), account.endpoint(DECISION), account.endpoint(CHAT)
        digest = account.output("Ballot-local-decision", "ImageDigest")
        account.set_instances(DECISION, 3)
        path = account.app.folder / "container/adapter/__init__.py"
        path.write_text(path.read_text() + "\n# touched\n")
        deployed = threading.Event()

        def ask_until_deployed() -> int:
            asked = 0
            while not deployed.is_set():
                assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"
                asked += 1
            return asked

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask_until_deployed)
            try:
                account.app.deploy()
            finally:
                deployed.set()
        after = account.endpoint(DECISION)

        assert asking.result() > 0
        assert account.instances(DECISION) == 3
        assert account.builds() == {**builds, "ballot-local-image-cpu": 2}
        assert after["EndpointArn"] == before["EndpointArn"]
        assert after["EndpointConfigName"] != before["EndpointConfigName"]
        assert account.output("Ballot-local-decision", "ImageDigest") != digest
        assert account.endpoint(CHAT)["EndpointConfigName"] == chat["EndpointConfigName"]
        assert account.configs() == sorted(
            [after["EndpointConfigName"], chat["EndpointConfigName"]]
        )

    def test_wrong_pin_fails_the_deployment_by_name_and_rolls_back(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        before = account.endpoint(DECISION)
        catalog = json.loads((account.app.folder / "stacks/catalog.json").read_text())
        source = catalog["models"]["smollm2-135m-instruct-q4-1"]["source"]
        wrong = "0" * 64

        def pin_wrongly(settings: dict[str, Any]) -> None:
            settings["models"] = {"wrong": {"source": source, "sha256": wrong}}
            settings["endpoints"]["decision"]["model"] = "wrong"

        cdk_json = (account.app.folder / "cdk.json").read_text()
        account.app.change_settings(pin_wrongly)
        with pytest.raises(CdkError) as caught:
            account.app.deploy("Ballot-local-decision")
        write(account.app, "cdk.json", cdk_json)

        assert MODEL_SHA256 in str(caught.value)
        assert wrong in str(caught.value)
        assert account.endpoint(DECISION)["EndpointConfigName"] == before["EndpointConfigName"]
        assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"

    def test_failing_build_fails_the_deployment_with_its_reason(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        spec = (account.app.folder / "container/buildspec.yml").read_text()
        broken = spec.replace(
            "commands:\n", "commands:\n      - echo the disk is full; exit 9\n", 1
        )
        assert broken != spec
        write(account.app, "container/buildspec.yml", broken)
        with pytest.raises(CdkError) as caught:
            account.app.deploy("Ballot-local-decision")
        write(account.app, "container/buildspec.yml", spec)

        assert "the disk is full" in str(caught.value)
        assert "exit status 9" in str(caught.value)
        assert "#logsV2:log-groups" in str(caught.value)
        assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"

    def test_adapter_that_cannot_load_its_model_fails_the_deployment_with_its_reason(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        before = account.endpoint(DECISION)
        name = "container/adapter/artifact.py"
        source = (account.app.folder / name).read_text()
        broken = source.replace('_MAGIC = b"GGUF"', '_MAGIC = b"NONE"')
        assert broken != source
        write(account.app, name, broken)
        with pytest.raises(CdkError) as caught:
            account.app.deploy("Ballot-local-decision")
        write(account.app, name, source)

        assert "is not a GGUF file" in str(caught.value)
        assert account.endpoint(DECISION)["EndpointConfigName"] == before["EndpointConfigName"]
        assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"

    def test_adapter_that_fails_under_traffic_is_rolled_back_by_an_alarm(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        before, instances = account.endpoint(DECISION), account.instances(DECISION)
        name = "container/adapter/admission.py"
        source = (account.app.folder / name).read_text()
        broken = source.replace(
            "turn.scored[index] = score(encoded, forward)", 'raise ScoringError("not finite")'
        )
        assert broken != source
        write(account.app, name, broken)
        cdk_json = (account.app.folder / "cdk.json").read_text()
        account.app.change_settings(
            lambda settings: settings["endpoints"]["decision"].update(deployment=CANARY)
        )
        ended = threading.Event()

        def ask_until_ended() -> list[int]:
            """Return the statuses of the answers; each prompt is another one."""
            statuses: list[int] = []
            while not ended.is_set():
                decision = {**support_route["decision"], "id": f"asked-{len(statuses)}"}
                decision["state"] = f"{decision['state']} ({len(statuses)})"
                try:
                    answer = account.invoke(DECISION, {"decision": decision})
                    assert answer["result"]["id"] == decision["id"]
                    statuses.append(200)
                except ClientError as error:
                    response: Any = error.response
                    statuses.append(response["OriginalStatusCode"])
            return statuses

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask_until_ended)
            try:
                with pytest.raises(CdkError) as caught:
                    account.app.deploy("Ballot-local-decision")
            finally:
                ended.set()
        write(account.app, name, source)
        write(account.app, "cdk.json", cdk_json)
        statuses = asking.result()

        assert f"{DECISION}-5xx" in str(caught.value)
        assert {200, 500} <= set(statuses) <= {200, 500, 503}
        first, last = statuses.index(500), max(i for i, s in enumerate(statuses) if s != 200)
        assert 200 in statuses[first:last], "the old one answers meanwhile"
        after = account.endpoint(DECISION)
        assert after["EndpointStatus"] == "InService"
        assert f"{DECISION}-5xx" in after["FailureReason"]
        assert after["EndpointConfigName"] == before["EndpointConfigName"]
        assert account.instances(DECISION) == instances
        assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"

    def test_silent_rollback_is_caught_by_the_stack(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        before = account.endpoint(DECISION)
        name = "container/adapter/__init__.py"
        source = (account.app.folder / name).read_text()
        write(account.app, name, f'{source}\nraise SystemExit("it ends at once")\n')
        account.emulator.rolls_back_silently = True
        try:
            with pytest.raises(CdkError) as caught:
                account.app.deploy("Ballot-local-decision")
        finally:
            account.emulator.rolls_back_silently = False
        write(account.app, name, source)

        said = " ".join(str(caught.value).split())  # the CLI breaks lines
        assert f"the endpoint {DECISION} is InService on the configuration" in said
        assert before["EndpointConfigName"] in said
        assert "the update was rolled back" in said
        assert "it ends at once" in said
        assert account.endpoint(DECISION)["EndpointConfigName"] == before["EndpointConfigName"]
        assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"
        stack = "Ballot-local-decision"
        assert account.stack_status(stack) == "UPDATE_ROLLBACK_FAILED"
        refused = account.reason_of_failure(stack, "AWS::SageMaker::Endpoint")
        assert "the currently in use endpoint configuration" in refused
        assert before["EndpointConfigName"].lower() in refused  # an ARN

        account.skip_the_endpoint_of(stack)
        assert account.stack_status(stack) == "UPDATE_ROLLBACK_COMPLETE"
        assert account.endpoint(DECISION)["EndpointConfigName"] == before["EndpointConfigName"]

    def test_a_change_of_the_deployment_alone_is_a_rollout(
        self, account: Account, support_route: dict[str, Any]
    ) -> None:
        """And it is the next deployment of a stack that could not go back by itself."""
        before, builds = account.endpoint(DECISION), account.builds()
        account.app.change_settings(
            lambda settings: settings["endpoints"]["decision"].update(deployment=BOUNDED)
        )
        account.app.deploy("Ballot-local-decision")
        after = account.endpoint(DECISION)

        assert after["EndpointStatus"] == "InService"
        assert "FailureReason" not in after
        assert after["EndpointConfigName"] != before["EndpointConfigName"]
        policy = after["LastDeploymentConfig"]["BlueGreenUpdatePolicy"]
        assert policy["MaximumExecutionTimeoutInSeconds"] == BOUNDED["max_seconds"]
        assert before["EndpointConfigName"] not in account.configs()
        assert account.builds() == builds
        assert account.invoke(DECISION, support_route)["result"]["id"] == "support-route"

    def test_destroy_leaves_nothing(self, account: Account) -> None:
        account.app.destroy()
        left = account.emulator.leftovers()

        assert not any(left.values()), left
        assert {
            "buckets",
            "repositories",
            "projects",
            "roles",
            "log groups",
            "functions",
            "state machines",
            "models",
            "endpoint configs",
            "endpoints",
            "alarms",
            "dashboards",
            "topics",
            "metric filters",
            "saved queries",
            "scalable targets",
            "scaling policies",
            "processes",
        } <= set(left)


@pytest.mark.timeout(600)
def test_build_past_its_time_out_fails_the_first_deployment_and_can_be_destroyed(
    tmp_path: Path,
) -> None:
    # Its shortest time-out is five minutes: ten seconds here.
    with Emulator(seconds_per_minute=2) as emulator:
        app = CdkApp(emulator, tmp_path, environment="local")
        app.change_settings(lambda settings: settings.update(build_timeout_minutes=5))
        spec = (tmp_path / "container/buildspec.yml").read_text()
        write(
            app,
            "container/buildspec.yml",
            spec.replace("commands:\n", "commands:\n      - sleep 3600\n", 1),
        )
        app.bootstrap()
        with pytest.raises(CdkError) as caught:
            app.deploy("Ballot-local-decision")
        app.destroy()
        left = emulator.leftovers()

        assert re.search(r"TIMED_OUT|timed out", str(caught.value))
        assert not any(left.values()), left


def test_documented_commands_are_those_that_ran() -> None:
    """Every `npx cdk` line of the docs is one of the commands that `emulator.cdk` runs above."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    commands = {
        line.removeprefix("npx cdk ")
        for page in pages
        for line in re.findall(r"^npx cdk .*$", page.read_text(), re.MULTILINE)
    }

    ran = (
        r"bootstrap -c environment=(dev|prod) aws://\d{12}/[a-z0-9-]+",
        r"(deploy|destroy) -c environment=(dev|prod) (--all|Ballot-(dev|prod)-[a-z-]+)",
    )
    assert commands
    for command in commands:
        assert any(re.fullmatch(pattern, command) for pattern in ran), command
