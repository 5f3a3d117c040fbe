"""An environment with a key of its own: all that it keeps is encrypted with it, and can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.invalid_environments import KEY, changed
from tests.synthesis import Synthesis, Template, only, resources, synthesize
from tests.test_stacks import always_list, statements
from tests.test_synth import EXISTING, lint

ENDPOINTS = ("cpu", "gpu", "chat")
NEW = "${Key/Key.Arn}"


@pytest.fixture(scope="module")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Synthesis:
    """An environment with a new key and a network."""
    settings = changed({"kms_key": "new", "vpc": {"cidr": "10.0.0.0/16"}})
    return synthesize("dev", tmp_path_factory.mktemp("cdk-key"), settings=settings)


@pytest.fixture(scope="module")
def templates(synthesis: Synthesis) -> dict[str, Template]:
    """Its readable templates by stack."""
    return synthesis.readable()


@pytest.fixture(scope="module")
def shared(templates: dict[str, Template]) -> Template:
    """The template of what endpoints share."""
    return templates["Ballot-dev-Artifacts"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Template]:
    """The templates of an environment that names a key."""
    return synthesize("own", tmp_path_factory.mktemp("cdk-given"), settings=EXISTING).readable()


def allowed(properties: Any, key: str) -> set[str]:
    """Return what a role may do with the key."""
    return {
        action
        for statement in statements(properties)
        if key in always_list(statement["Resource"])
        for action in always_list(statement["Action"])
    }


def test_linter_and_rules_find_nothing(synthesis: Synthesis) -> None:
    lint(synthesis)
    assert synthesis.findings == []


def test_the_key_rotates_and_goes_with_the_environment(shared: Template) -> None:
    key = shared["Resources"]["Key/Key"]
    assert key["Properties"]["EnableKeyRotation"] is True
    assert key["DeletionPolicy"] == "Delete"


def test_what_the_environment_keeps_is_under_the_key(shared: Template) -> None:
    (rule,) = only(shared, "AWS::S3::Bucket")["BucketEncryption"][
        "ServerSideEncryptionConfiguration"
    ]
    assert rule["ServerSideEncryptionByDefault"] == {
        "SSEAlgorithm": "aws:kms",
        "KMSMasterKeyID": NEW,
    }
    assert rule["BucketKeyEnabled"] is True
    for repository in resources(shared, "AWS::ECR::Repository"):
        assert repository["EncryptionConfiguration"] == {"EncryptionType": "KMS", "KmsKey": NEW}
    for project in resources(shared, "AWS::CodeBuild::Project"):
        assert project["EncryptionKey"] == NEW
    assert only(shared, "AWS::SNS::Topic")["KmsMasterKeyId"] in (NEW, "${Key/Key}")


def test_every_log_group_is_under_the_key(templates: dict[str, Template]) -> None:
    groups = [
        group
        for template in templates.values()
        for group in resources(template, "AWS::Logs::LogGroup")
    ]
    assert len(groups) >= len(ENDPOINTS) + 4
    assert {group["KmsKeyId"] for group in groups} == {NEW}


def test_logs_of_the_account_alone_may_use_the_key(shared: Template) -> None:
    policy = only(shared, "AWS::KMS::Key")["KeyPolicy"]["Statement"]
    (logs,) = [item for item in policy if "logs" in json.dumps(item["Principal"])]
    assert logs["Principal"] == {"Service": "logs.${AWS::Region}.amazonaws.com"}
    (context,) = logs["Condition"]["ArnLike"].items()
    assert context == (
        "kms:EncryptionContext:aws:logs:arn",
        "arn:${AWS::Partition}:logs:${AWS::Region}:${AWS::AccountId}:log-group:*",
    )


def test_variables_of_functions_are_under_the_key(shared: Template) -> None:
    functions = {
        path: resource["Properties"]
        for path, resource in shared["Resources"].items()
        if resource["Type"] == "AWS::Lambda::Function" and "Environment" in resource["Properties"]
    }
    assert len(functions) == 4
    for function in functions.values():
        assert function["KmsKeyArn"] == NEW
        role = function["Role"].removeprefix("${").removesuffix(".Arn}")
        assert "kms:Decrypt" in allowed(shared["Resources"][role]["Properties"], NEW)


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        ("Model/Build/Role", {"kms:Decrypt", "kms:GenerateDataKey"}),
        ("BuildWaiter/Role", {"kms:Decrypt"}),
        ("Image-cpu/Build/Role", {"kms:Decrypt", "kms:GenerateDataKey"}),
        ("Image-chat/Build/Role", set()),
        ("RolloutCheck/Role", set()),
        ("Endpoint-cpu/Role", {"kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey"}),
        ("Endpoint-gpu/Role", {"kms:Decrypt"}),
    ],
)
def test_a_role_may_do_with_the_key_what_its_work_takes(
    role: str, actions: set[str], shared: Template
) -> None:
    assert allowed(shared["Resources"][role]["Properties"], NEW) == actions


def test_grants_are_for_services_of_aws_alone(shared: Template) -> None:
    grants = [
        statement
        for role in resources(shared, "AWS::IAM::Role")
        for statement in statements(role)
        if "kms:CreateGrant" in always_list(statement["Action"])
    ]
    assert grants
    for grant in grants:
        assert grant["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}


def test_volumes_are_under_the_key_where_an_instance_has_any(
    templates: dict[str, Template],
) -> None:
    keys = {
        name: only(templates[f"Ballot-dev-{name}"], "AWS::SageMaker::EndpointConfig").get(
            "KmsKeyId"
        )
        for name in ENDPOINTS
    }
    assert keys == {
        "cpu": f"Ballot-dev-Artifacts:{NEW}",
        "gpu": None,
        "chat": f"Ballot-dev-Artifacts:{NEW}",
    }


def test_a_key_that_exists_is_used_as_it_is(given: dict[str, Template]) -> None:
    shared = given["Ballot-own-Artifacts"]
    assert resources(shared, "AWS::KMS::Key") == []
    assert {group["KmsKeyId"] for group in resources(shared, "AWS::Logs::LogGroup")} == {KEY}
    assert only(given["Ballot-own-own"], "AWS::SageMaker::EndpointConfig")["KmsKeyId"] == KEY
    assert "kms:Decrypt" in allowed(shared["Resources"]["Endpoint-own/Role"]["Properties"], KEY)


def test_without_a_key_nothing_names_one(environments: dict[str, Synthesis]) -> None:
    assert "kms:" not in json.dumps(environments["prod"].templates).lower()
