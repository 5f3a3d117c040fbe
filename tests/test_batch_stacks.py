"""What `"batch": true` adds to the stacks: a packed model for batch transform, and its rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from tests.invalid_environments import KEY, changed
from tests.synthesis import Synthesis, Template, only, resources, synthesize

BUCKET = "${Bucket/Bucket.Arn}"


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Synthesis:
    """An environment whose CPU endpoint does bulk work, too, and whose GPU endpoint does not."""
    settings = changed({"endpoints/cpu/batch": True})
    return synthesize("dev", tmp_path_factory.mktemp("bulk"), settings=settings)


def models(template: Template) -> dict[str, Any]:
    """Return the containers of a stack's models, by what of the model's data each has."""
    containers = [item["PrimaryContainer"] for item in resources(template, "AWS::SageMaker::Model")]
    return {name: some for some in containers for name in some if name.startswith("ModelData")}


def test_the_model_is_made_once_more_as_an_archive(bulk: Synthesis) -> None:
    template = bulk.readable()["Ballot-dev-cpu"]
    found = models(template)
    assert sorted(found) == ["ModelDataSource", "ModelDataUrl"]
    served, packed = found["ModelDataSource"], found["ModelDataUrl"]
    # "Currently you cannot use ModelDataSource in conjunction with SageMaker batch transform."
    assert packed["ModelDataUrl"] == "${Archive/Resource.ModelDataUri}"
    assert (packed["Image"], packed["Environment"]) == (served["Image"], served["Environment"])
    builds = {
        path: resource["Properties"]["Environment"]["MODEL_COMPRESSION"]
        for path, resource in template["Resources"].items()
        if "MODEL_COMPRESSION" in resource["Properties"].get("Environment", {})
    }
    assert builds == {"Model/Resource": "none", "Archive/Resource": "gzip"}
    first, second = resources(template, "AWS::SageMaker::Model")
    for key in ("ExecutionRoleArn", "EnableNetworkIsolation"):
        assert first[key] == second[key]


def test_the_endpoint_says_which_model_that_is(bulk: Synthesis) -> None:
    template = bulk.readable()["Ballot-dev-cpu"]
    endpoint = only(template, "AWS::SageMaker::Endpoint")
    assert endpoint["Tags"]["ballot:batch-model"] == "${BatchModel.ModelName}"
    config = only(template, "AWS::SageMaker::EndpointConfig")
    (variant,) = config["ProductionVariants"]
    assert variant["ModelName"] == "${Endpoint/Model.ModelName}"


def test_an_endpoint_that_is_packed_itself_names_its_own_model(tmp_path: Path) -> None:
    changes = {"endpoints/cpu/batch": True, "endpoints/cpu/compression": "gzip"}
    template = synthesize("dev", tmp_path, settings=changed(changes)).readable()["Ballot-dev-cpu"]
    assert list(models(template)) == ["ModelDataUrl"]
    tags = only(template, "AWS::SageMaker::Endpoint")["Tags"]
    assert tags["ballot:batch-model"] == "${Endpoint/Model.ModelName}"


def test_packed_alone_does_no_bulk_work(tmp_path: Path) -> None:
    changes = {"endpoints/cpu/compression": "gzip", "kms_key": KEY}
    template = synthesize("dev", tmp_path, settings=changed(changes)).readable()["Ballot-dev-cpu"]
    tags = only(template, "AWS::SageMaker::Endpoint")["Tags"]
    assert not {"ballot:batch-model", "ballot:kms-key"} & set(tags)


def test_a_key_is_told_and_may_encrypt_what_a_job_leaves(tmp_path: Path) -> None:
    """An endpoint on local disks takes no volume key, but its jobs run elsewhere too."""
    changes = {
        "endpoints/cpu/batch": True,
        "endpoints/cpu/instance_type": "ml.c5d.2xlarge",
        "kms_key": KEY,
    }
    templates = synthesize("dev", tmp_path, settings=changed(changes)).readable()
    endpoint = only(templates["Ballot-dev-cpu"], "AWS::SageMaker::Endpoint")
    assert endpoint["Tags"]["ballot:kms-key"] == KEY
    shared = templates["Ballot-dev-Artifacts"]
    for action in ("kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant", "kms:DescribeKey"):
        assert KEY in allowed(shared, "cpu", action)


def statements(template: Template, endpoint: str) -> list[dict[str, Any]]:
    """Return what the role of an endpoint may do."""
    role = template["Resources"][f"Endpoint-{endpoint}/Role"]["Properties"]
    (policy,) = role["Policies"]
    found: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return found


def allowed(template: Template, endpoint: str, action: str) -> list[str]:
    """Return the resources on which a role may do something."""
    return [
        resource
        for statement in statements(template, endpoint)
        if action in statement["Action"]
        for resource in (
            [statement["Resource"]]
            if isinstance(statement["Resource"], str)
            else statement["Resource"]
        )
    ]


def test_only_its_role_may_read_inputs_and_write_outputs(bulk: Synthesis) -> None:
    template = bulk.readable()["Ballot-dev-Artifacts"]
    assert allowed(template, "cpu", "s3:PutObject") == [f"{BUCKET}/batch/*"]
    assert allowed(template, "cpu", "s3:GetObject") == [f"{BUCKET}/models/*", f"{BUCKET}/batch/*"]
    listed = [item for item in statements(template, "cpu") if item["Action"] == "s3:ListBucket"]
    prefixes = [item["Condition"]["StringLike"]["s3:prefix"] for item in listed]
    assert prefixes == ["models/*", "batch/*"]
    (log,) = allowed(template, "cpu", "logs:CreateLogGroup")
    assert log.endswith(":log-group:/aws/sagemaker/TransformJobs:*")
    for other in ("gpu", "chat"):
        assert allowed(template, other, "s3:PutObject") == []
        assert allowed(template, other, "logs:CreateLogGroup") == []


def test_what_bulk_work_leaves_in_the_bucket_goes_after_a_month(bulk: Synthesis) -> None:
    bucket = only(bulk.templates["Ballot-dev-Artifacts"], "AWS::S3::Bucket")
    rules = bucket["LifecycleConfiguration"]["Rules"]
    # Of a bucket with versions, expiring leaves the old one, which has to go as well.
    assert {
        "Id": "BulkWork",
        "Prefix": "batch/",
        "Status": "Enabled",
        "ExpirationInDays": 30,
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
    } in rules


def test_cdk_nag_finds_nothing_that_is_not_acknowledged(bulk: Synthesis) -> None:
    assert bulk.findings == []


def test_what_batch_transform_is_said_not_to_have_is_so() -> None:
    """CUDA 13 needs driver 580, and no archive but `ModelDataUrl`'s is taken."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    machine_image = model.shape_for("TransformResources").members["TransformAmiVersion"]
    drivers = re.findall(r"batch-gpu-(\d+)", machine_image.documentation)
    assert max(map(int, drivers)) == 535
    source = model.shape_for("ContainerDefinition").members["ModelDataSource"]
    assert "cannot use" in source.documentation
    assert "batch transform" in source.documentation
