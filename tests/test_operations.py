"""The runbook: each command of docs/operations.md is run as it stands, against an emulator."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.settings import variables
from stacks.log_queries import QUERIES
from tests.adapter_process import PATIENCE, ROOT
from tests.emulated_aws import BUCKET, Aws, polls, running
from tests.emulated_endpoints import adapter_image
from tests.gguf_models import write_tiny_model

ENDPOINT = "ballot-dev-decision"
JOB = "ballot-dev-decision-20260131-120000-1f2e"
PAGE = (ROOT / "docs/operations.md").read_text()
# What the emulator has no service for, or no state: only the command's form is checked.
FORM_ONLY = ("service-quotas", "continue-update-rollback", "update-termination-protection")
TEMPLATE = {
    "Resources": {
        "Alarm": {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "AlarmName": f"{ENDPOINT}-5xx",
                "Namespace": "AWS/SageMaker",
                "MetricName": "Invocation5XXErrors",
                "Statistic": "Average",
                "Period": 60,
                "EvaluationPeriods": 1,
                "Threshold": 0.5,
                "ComparisonOperator": "GreaterThanThreshold",
            },
        },
        "Target": {
            "Type": "AWS::ApplicationAutoScaling::ScalableTarget",
            "Properties": {
                "ServiceNamespace": "sagemaker",
                "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
                "ResourceId": f"endpoint/{ENDPOINT}/variant/AllTraffic",
                "MinCapacity": 1,
                "MaxCapacity": 2,
            },
        },
    }
}


def commands() -> list[str]:
    """Return the commands of the page's blocks, once each; `cdk` is test_end_to_end's."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if not line.startswith("npx cdk ")))


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """An account with an endpoint as `dev` has it, and what lies around one."""
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(model, chat_template=None)
    with running(tmp_path_factory.mktemp("emulator")) as aws:
        aws("logs").create_log_group(logGroupName="/aws/codebuild/ballot-dev-model")
        aws("logs").create_log_group(logGroupName="/aws/sagemaker/TransformJobs")
        aws("s3").upload_file(str(model), BUCKET, "models/tiny/tiny.gguf")
        config = aws.model(
            adapter_image(aws),
            prefix="models/tiny/",
            BALLOT_THREADS="1",
            BALLOT_CONTEXT_TOKENS="1024",
        )
        aws("sagemaker").create_endpoint(EndpointName=ENDPOINT, EndpointConfigName=config)
        assert aws.settled(ENDPOINT)["EndpointStatus"] == "InService"
        aws("cloudformation").create_stack(
            StackName="Ballot-dev-decision", TemplateBody=json.dumps(TEMPLATE)
        )
        for _ in polls("the stack"):
            (stack,) = aws("cloudformation").describe_stacks()["Stacks"]
            if not stack["StackStatus"].endswith("IN_PROGRESS"):
                break
        assert stack["StackStatus"] == "CREATE_COMPLETE"
        submit(aws)
        yield aws


def submit(aws: Aws) -> None:
    """Start a batch job that fails: its model has no data."""
    aws("s3").put_object(Bucket=BUCKET, Key="batch/input.jsonl", Body=b"{}\n")
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/batch/input.jsonl"}
    aws("sagemaker").create_transform_job(
        TransformJobName=JOB,
        ModelName=aws.model(adapter_image(aws)),
        TransformInput={"DataSource": {"S3DataSource": source}},
        TransformOutput={"S3OutputPath": f"s3://{BUCKET}/batch/output"},
        TransformResources={"InstanceType": "ml.c7i.xlarge", "InstanceCount": 1},
    )


def run(command: str, aws: Aws) -> subprocess.CompletedProcess[str]:
    """Run a command of the page with the project's tools, against the emulator."""
    tools = [str(ROOT / ".build/awscli/bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, **aws.emulator.exports, "PATH": os.pathsep.join(tools)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_page_has_commands() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize("command", commands())
def test_command_runs(command: str, account: Aws) -> None:
    is_form_only = any(word in shlex.split(command) for word in FORM_ONLY)
    done = run(f"{command} --generate-cli-skeleton" if is_form_only else command, account)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_symptom_of_the_table_has_its_entry() -> None:
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings}
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)

    assert links
    assert set(links) <= anchors


def test_every_saved_query_of_the_page_is_there() -> None:
    named = re.findall(r"`ballot/dev/([^`]+)`", PAGE)

    assert named
    assert set(named) <= set(QUERIES)


def test_every_setting_that_the_page_names_is_one() -> None:
    settings = set(re.findall(r"`(BALLOT_[A-Z_]+)`", PAGE))

    assert settings
    assert settings <= set(variables())
