"""Synthesis: without credentials, and right in the eyes of linters, rules and the API's model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapter_process import ROOT
from tests.api_model import violations
from tests.invalid_environments import KEY
from tests.synthesis import (
    CONTEXT,
    ENVIRONMENTS,
    FLAGS,
    Synthesis,
    Template,
    resources,
    synthesize,
)

SNAPSHOTS = ROOT / "tests/snapshots"
UPDATE = "BALLOT_UPDATE_SNAPSHOTS"
NAMES = sorted(ENVIRONMENTS)
# DependsOn beside a reference says the same twice. The CDK writes it wherever one construct is told
# to wait for another, and it does no harm.
REDUNDANT_DEPENDENCY = "W3005"

EXISTING: dict[str, Any] = {
    "monitoring": {"topic_arn": "arn:aws:sns:eu-west-1:123456789012:pager"},
    "kms_key": KEY,
    "artifacts": {
        "bucket_name": "company-models",
        "model_build_role_arn": "arn:aws:iam::123456789012:role/models",
        "image_build_role_arn": "arn:aws:iam::123456789012:role/images",
    },
    "models": {
        "ours": {
            "source": {"kind": "s3", "uri": "s3://company-raw/a/ours.gguf", "version": "v1"},
            "sha256": "b" * 64,
        }
    },
    "images": {
        "cpu": {
            "base": "763104351884.dkr.ecr.eu-west-1.amazonaws.com/llama-cpp@sha256:" + "a" * 64,
            "bindings": "llama-cpp-python==0.3.36",
        }
    },
    "endpoints": {
        "decision": {
            "kind": "decision",
            "model": "ours",
            "instance_type": "ml.c7i.xlarge",
            "max_queue": 4,
            "compression": "gzip",
            "role_arn": "arn:aws:iam::123456789012:role/endpoints",
            "vpc": {
                "subnet_ids": ["subnet-0a1b2c3d"],
                "security_group_ids": ["sg-0a1b2c3d"],
            },
            "tags": {"team": "support"},
        },
        "own": {
            "kind": "decision",
            "model": "ours",
            "instance_type": "ml.c7i.xlarge",
            "instance_count": 3,
            "routing": {
                "strategy": "prefix_aware",
                "prefix_bytes": 4096,
                "concurrency_threshold": 8,
            },
            "deployment": {
                "strategy": "linear",
                "percent": 34,
                "wait_seconds": 120,
                "max_seconds": 3600,
            },
        },
        "chat": {
            "kind": "chat",
            "hub": {"repository": "owner/name", "file": "a.gguf"},
            "network_isolation": False,
            "instance_type": "ml.g6.xlarge",
            "alarms": False,
        },
    },
}


@pytest.fixture(scope="module")
def existing(tmp_path_factory: pytest.TempPathFactory) -> Synthesis:
    """An environment that names what exists already."""
    return synthesize("own", tmp_path_factory.mktemp("cdk-own"), settings=EXISTING)


def run_app(
    folder: Path, context: dict[str, Any], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run app.py as the CDK CLI does, with neither credentials nor a configuration of AWS."""
    environment = {
        **variables,
        "PATH": os.environ["PATH"],
        "CDK_OUTDIR": str(folder),
        "CDK_CONTEXT_JSON": json.dumps({**CONTEXT, **context}),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "HOME": os.environ["HOME"],
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
    }
    return subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_app_needs_no_credentials_and_looks_nothing_up(tmp_path: Path) -> None:
    ended = run_app(tmp_path, {"environment": "prod"})
    assert ended.returncode == 0, ended.stderr
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert "missing" not in manifest
    stacks = {
        name: artifact["environment"]
        for name, artifact in manifest["artifacts"].items()
        if artifact["type"] == "aws:cloudformation:stack"
    }
    assert stacks == dict.fromkeys(
        [
            "Ballot-prod-Artifacts",
            "Ballot-prod-decision",
            "Ballot-prod-decision-gpu",
            "Ballot-prod-chat",
        ],
        "aws://unknown-account/unknown-region",
    )


def test_an_account_and_a_region_bring_no_look_ups(environments: dict[str, Synthesis]) -> None:
    manifest = json.loads((environments["prod"].folder / "manifest.json").read_text("utf-8"))
    assert "missing" not in manifest
    assert manifest["artifacts"]["Ballot-prod-chat"]["environment"] == (
        "aws://123456789012/eu-west-1"
    )


def test_the_app_refuses_the_credentials_of_another_account(tmp_path: Path) -> None:
    owned = {"prod": {**ENVIRONMENTS["prod"], "account": "123456789012"}}
    ended = run_app(
        tmp_path,
        {"environment": "prod", "environments": owned},
        CDK_DEFAULT_ACCOUNT="210987654321",
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "ballot: environment prod is of account 123456789012, and the credentials are of account "
        "210987654321: nothing is deployed\n"
    )
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_stacks_of_prod_are_protected(name: str, environments: dict[str, Synthesis]) -> None:
    manifest = json.loads((environments[name].folder / "manifest.json").read_text("utf-8"))
    protected = {
        artifact["properties"].get("terminationProtection", False)
        for artifact in manifest["artifacts"].values()
        if artifact["type"] == "aws:cloudformation:stack"
    }
    assert protected == {name == "prod"}


def test_the_app_says_which_environments_there_are(tmp_path: Path) -> None:
    ended = run_app(tmp_path, {})
    assert ended.returncode == 1
    assert ended.stderr == (
        "ballot: choose an environment with -c environment=NAME; there are: dev, local, prod\n"
    )


def test_the_app_tells_every_mistake(tmp_path: Path) -> None:
    wrong = {"bad": {"region": "mars", "endpoints": {}}}
    ended = run_app(tmp_path, {"environment": "bad", "environments": wrong})
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[:2] == [
        "ballot: environment bad has 2 problems:",
        '  bad.region: "mars" must be a Region such as eu-west-1',
    ]


def test_a_linter_and_a_model_that_pass_all_would_be_worth_nothing() -> None:
    target = {
        **SCALED,
        "MinCapacity": "two",
        "ScheduledActions": [{"ScheduledActionName": "9:00", "Schedule": "cron(0 9 * * ? *)"}],
    }
    found = refused_by_auto_scaling(target)
    assert len(found) == 2


@pytest.mark.parametrize("name", NAMES)
def test_cfn_lint_finds_nothing(name: str, environments: dict[str, Synthesis]) -> None:
    lint(environments[name])


def test_cfn_lint_finds_nothing_around_what_exists(existing: Synthesis) -> None:
    lint(existing)


def lint(synthesis: Synthesis) -> None:
    files = [str(file) for file in synthesis.template_files]
    assert files
    ended = subprocess.run(
        [
            Path(sys.executable).with_name("cfn-lint"),
            "--ignore-checks",
            REDUNDANT_DEPENDENCY,
            "--",
            *files,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr


@pytest.mark.parametrize("name", NAMES)
def test_cdk_nag_finds_nothing(name: str, environments: dict[str, Synthesis]) -> None:
    assert environments[name].findings == []


def test_cdk_nag_finds_nothing_around_what_exists(existing: Synthesis) -> None:
    assert existing.findings == []


@pytest.mark.parametrize("name", NAMES)
def test_sagemaker_takes_what_the_templates_ask_for(
    name: str, environments: dict[str, Synthesis]
) -> None:
    for stack, template in environments[name].readable().items():
        if not stack.endswith("-Artifacts"):
            assert refused_by_the_api(template) == []


def test_sagemaker_takes_what_an_environment_of_existing_parts_asks_for(
    existing: Synthesis,
) -> None:
    for stack, template in existing.readable().items():
        if not stack.endswith("-Artifacts"):
            assert refused_by_the_api(template) == []


SCALED = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/example/variant/AllTraffic",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}


def refused_by_the_api(template: Template) -> list[str]:
    """Return what SageMaker and auto scaling would refuse, by botocore's model of their APIs."""
    names = {
        "Model": {"ModelName": "generated"},
        "EndpointConfig": {"EndpointConfigName": "generated"},
        "Endpoint": {},
    }
    refused: list[str] = []
    for kind, name in names.items():
        for properties in resources(template, f"AWS::SageMaker::{kind}"):
            parameters = {**resolved(properties), **name}
            if kind == "Endpoint":
                refused += violations("sagemaker", "UpdateEndpoint", parameters)
            parameters.pop("RetainAllVariantProperties", None)  # of UpdateEndpoint alone
            refused += violations("sagemaker", f"Create{kind}", parameters)
    for properties in resources(template, "AWS::ApplicationAutoScaling::ScalableTarget"):
        refused += refused_by_auto_scaling(resolved(properties))
    for properties in resources(template, "AWS::ApplicationAutoScaling::ScalingPolicy"):
        parameters = {**SCALED, **resolved(properties)}
        del parameters["ScalingTargetId"]
        refused += violations("application-autoscaling", "PutScalingPolicy", parameters)
    return refused


def refused_by_auto_scaling(target: dict[str, Any]) -> list[str]:
    """Return what auto scaling would refuse of a target, which has its schedules in it."""
    actions = target.pop("ScheduledActions", [])
    refused = violations("application-autoscaling", "RegisterScalableTarget", target)
    for action in actions:
        refused += violations("application-autoscaling", "PutScheduledAction", {**SCALED, **action})
    return refused


def resolved(value: Any) -> Any:
    """Return properties with what CloudFormation will fill in replaced by examples."""
    match value:
        case dict():
            return {key: resolved(part) for key, part in value.items() if key != "Tags"}
        case list():
            return [resolved(part) for part in value]
        case str() if "Arn}" in value:
            return "arn:aws:iam::123456789012:role/example"
        case str() if ".ModelDataUri}" in value:
            return "s3://bucket/models/0123456789abcdef/"
        case str() if "${" in value or "Ballot-" in value:
            return "example-0123"
        case _:
            return value


def test_alarms_tell_a_topic_that_exists_as_it_is(existing: Synthesis) -> None:
    topics = [
        topic
        for template in existing.templates.values()
        for alarm in resources(template, "AWS::CloudWatch::Alarm")
        for topic in (*alarm["AlarmActions"], *alarm["OKActions"])
    ]
    assert set(topics) == {"arn:aws:sns:eu-west-1:123456789012:pager"}
    for kind in ("Topic", "TopicPolicy", "Subscription"):
        assert resources(existing.templates["Ballot-own-Artifacts"], f"AWS::SNS::{kind}") == []


@pytest.mark.parametrize("name", NAMES)
def test_templates_are_as_reviewed(name: str, environments: dict[str, Synthesis]) -> None:
    """Compare with the snapshot; BALLOT_UPDATE_SNAPSHOTS=1 writes it anew, for review."""
    readable = json.dumps(environments[name].readable(), indent=2) + "\n"
    snapshot = SNAPSHOTS / f"{name}.json"
    if os.environ.get(UPDATE):
        snapshot.write_text(readable, "utf-8")
    assert json.loads(readable) == json.loads(snapshot.read_text("utf-8"))


def test_the_context_of_cdk_json_is_flags_and_environments() -> None:
    assert all(key.startswith("@aws-cdk/") for key in FLAGS)
