"""Environments: each wrong setting gets its own message, and a right one its types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sources import S3Source, parse_source
from stacks.catalog import AMI_VERSIONS
from stacks.environment import (
    Environment,
    ExistingVpc,
    HubFile,
    NewVpc,
    Scaling,
    choose_environment,
    read_environment,
)
from stacks.instance_types import (
    ARM_FAMILIES,
    CPU_FAMILIES,
    GPU_FAMILIES,
    OLD_GPU_FAMILIES,
    OTHER_FAMILIES,
    hardware_of,
    refusal,
)
from stacks.reading import SettingsError
from tests.adapter_process import ROOT
from tests.api_model import sagemaker_enum
from tests.invalid_environments import CHAT, DIGEST, GONE, HUB_MODEL, INVALID, SMALL, changed

ENVIRONMENTS = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]["environments"]


def read(changes: dict[str, Any]) -> Environment:
    return read_environment("dev", changed(changes))


def problems_of(changes: dict[str, Any]) -> list[str]:
    with pytest.raises(SettingsError) as error:
        read(changes)
    return str(error.value).split("\n  ")


@pytest.mark.parametrize(("changes", "message"), INVALID.values(), ids=INVALID.keys())
def test_each_wrong_setting_gets_its_message(changes: dict[str, Any], message: str) -> None:
    assert problems_of(changes) == ["environment dev has 1 problem:", message]


def test_the_table_is_long_enough_to_trust() -> None:
    assert len(INVALID) >= 40


def test_two_mistakes_give_two_messages() -> None:
    assert problems_of({"region": "mars", "endpoints/cpu/threads": 0}) == [
        "environment dev has 2 problems:",
        'dev.region: "mars" must be a Region such as eu-west-1',
        "dev.endpoints.cpu.threads: 0 must be a whole number from 1 to 1024",
    ]


def test_mistakes_of_all_parts_are_told_together() -> None:
    lines = problems_of(
        {
            "tags": [],
            "models/mine": {**HUB_MODEL, "sha256": "x"},
            "images/cpu": {"base": "x:latest", "bindings": "llama-cpp-python"},
            "endpoints/cpu/kind": "judge",
            "endpoints/gpu/gpu_layers": 0,
            "endpoints/chat/scaling": {"min": 2, "max": 1},
        }
    )
    assert [line.partition(":")[0] for line in lines] == [
        "environment dev has 7 problems",
        "dev.models.mine.sha256",
        "dev.images.cpu.base",
        "dev.images.cpu.bindings",
        "dev.tags",
        "dev.endpoints.cpu.kind",
        "dev.endpoints.gpu.gpu_layers",
        "dev.endpoints.chat.scaling.min",
    ]


def test_no_environment_lists_those_there_are() -> None:
    with pytest.raises(SettingsError) as error:
        choose_environment(None, ENVIRONMENTS)
    assert str(error.value) == (
        "choose an environment with -c environment=NAME; there are: dev, local, prod"
    )


def test_an_unknown_environment_lists_those_there_are() -> None:
    with pytest.raises(SettingsError) as error:
        choose_environment("prd", ENVIRONMENTS)
    assert str(error.value) == (
        "there is no environment prd (did you mean prod?); there are: dev, local, prod"
    )


@pytest.mark.parametrize("environments", [None, {}, []])
def test_a_project_without_environments_is_told(environments: object) -> None:
    with pytest.raises(SettingsError) as error:
        choose_environment("dev", environments)
    assert str(error.value) == ("cdk.json: context.environments must be an object of environments")


def test_the_name_of_an_environment_is_checked() -> None:
    with pytest.raises(SettingsError) as error:
        choose_environment("My_Env", {"My_Env": changed({})})
    assert str(error.value).splitlines()[1] == (
        "  My_Env: must be a name of 1 to 16 lower-case letters and digits"
    )


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_the_environments_of_cdk_json_are_right(name: str) -> None:
    assert choose_environment(name, ENVIRONMENTS).name == name


def test_defaults_follow_the_hardware() -> None:
    cpu, gpu, chat = read({}).endpoints
    assert (cpu.image.name, gpu.image.name, chat.image.name) == ("cpu", "cuda", "chat-cpu")
    assert (cpu.gpu_layers, gpu.gpu_layers) == (0, -1)
    assert cpu.health_timeout_seconds < gpu.health_timeout_seconds
    assert (cpu.image.inference_ami_version, gpu.image.inference_ami_version) == (
        None,
        "al2023-ami-sagemaker-inference-gpu-4-1",
    )


def test_a_full_environment_is_read() -> None:
    environment = read(
        {
            "account": "123456789012",
            "region": "eu-central-1",
            "artifacts": {"bucket_name": "my-models"},
            "tags": {"cost center": "a/b"},
            "vpc": {"cidr": "10.0.0.0/16", "availability_zones": 3},
            "models/mine": HUB_MODEL,
            "endpoints/cpu/model": "mine",
            "endpoints/cpu/scaling": {"min": 2, "max": 5},
            "endpoints/cpu/vpc": {
                "subnet_ids": ["subnet-0a1b2c3d"],
                "security_group_ids": ["sg-0a1b2c3d"],
            },
            "endpoints/chat": {
                "kind": "chat",
                "hub": {"repository": "o/n", "file": "x.gguf"},
                "network_isolation": False,
                "vpc": False,
                "instance_pools": ["ml.g6.xlarge", "ml.g5.xlarge"],
            },
        }
    )
    cpu, gpu, chat = environment.endpoints
    assert (environment.account, environment.region) == ("123456789012", "eu-central-1")
    assert environment.artifacts.bucket_name == "my-models"
    assert gpu.vpc == environment.vpc == NewVpc(cidr="10.0.0.0/16", availability_zones=3)
    assert cpu.vpc == ExistingVpc(
        subnet_ids=("subnet-0a1b2c3d",), security_group_ids=("sg-0a1b2c3d",)
    )
    assert (cpu.instance_count, cpu.scaling) == (
        2,
        Scaling(
            minimum=2,
            maximum=5,
            invocations_per_instance=60,
            scale_in_cooldown_seconds=600,
            scale_out_cooldown_seconds=120,
        ),
    )
    assert (cpu.model and cpu.model.file, chat.model) == ("a.gguf", None)
    assert (chat.vpc, chat.hub) == (None, HubFile(repository="o/n", file="x.gguf"))
    assert chat.instance_types == ("ml.g6.xlarge", "ml.g5.xlarge")


def test_a_model_of_the_environment_replaces_one_of_the_catalog() -> None:
    endpoint = read({f"models/{SMALL}": HUB_MODEL}).endpoints[0]
    assert endpoint.model is not None
    assert endpoint.model.sha256 == HUB_MODEL["sha256"]


def test_an_image_of_the_environment_replaces_one_of_the_catalog() -> None:
    image = {"base": f"example.com/x@{DIGEST}", "bindings": "llama-cpp-python==0.3.36"}
    cpu, gpu, _ = read({"images/cpu": image}).endpoints
    assert (cpu.image.base, cpu.image.bindings) == (image["base"], image["bindings"])
    assert gpu.image.base.startswith("public.ecr.aws/")


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ({"kind": "s3", "uri": "s3://bucket/a/b.gguf", "version": "v1"}, "b.gguf"),
        ({"kind": "s3", "uri": "s3://bucket/b-00002-of-00002.gguf"}, "b-00001-of-00002.gguf"),
        ({**HUB_MODEL["source"], "files": ["q/a-00001-of-00002.gguf"]}, "a-00001-of-00002.gguf"),
    ],
)
def test_the_file_of_a_model_is_that_of_its_source(source: dict[str, Any], file: str) -> None:
    changes = {"models/mine": {**HUB_MODEL, "source": source}, "endpoints/cpu/model": "mine"}
    model = read(changes).endpoints[0].model
    assert model is not None
    assert model.file == file


@pytest.mark.parametrize(
    "name",
    [
        "a.gguf",
        "a-00001-of-00001.gguf",
        "a-00003-of-00003.gguf",
        "a-00001-of-00999.gguf",
        "a-00001-of-01000.gguf",
        "a-00000-of-00000.gguf",
        "a-1-of-2.gguf",
        "a-00001-of-00002-00001-of-00003.gguf",
    ],
)
def test_the_objects_of_a_model_are_those_that_its_build_fetches(name: str) -> None:
    source = {"kind": "s3", "uri": f"s3://bucket/a-00001-of-00002.gguf/{name}"}
    changes = {"models/mine": {**HUB_MODEL, "source": source}, "endpoints/cpu/model": "mine"}
    model = read(changes).endpoints[0].model
    fetched = parse_source(json.dumps(source))
    assert isinstance(fetched, S3Source)
    assert model is not None
    assert model.s3_uris == tuple(f"s3://{fetched.bucket}/{key}" for key in fetched.keys)


def test_an_endpoint_may_have_the_longest_name() -> None:
    name = "a" * 32
    environment = read({"endpoints/cpu": GONE, "endpoints/gpu": GONE, f"endpoints/{name}": CHAT})
    assert environment.endpoints[1].name == name


def test_every_instance_type_of_the_api_is_known() -> None:
    """Each type that SageMaker hosts on is usable, or refused with a reason of its own."""
    for item in sagemaker_enum("ProductionVariantInstanceType"):
        assert hardware_of(item) or "no known family" not in refusal(item), item


def test_no_family_is_listed_twice_or_invented() -> None:
    groups = [CPU_FAMILIES, GPU_FAMILIES, ARM_FAMILIES, OLD_GPU_FAMILIES, OTHER_FAMILIES]
    hosted = {item.split(".")[1] for item in sagemaker_enum("ProductionVariantInstanceType")}
    assert sorted(family for group in groups for family in group) == sorted(hosted)


def test_the_ami_versions_are_those_of_the_api() -> None:
    versions = sagemaker_enum("ProductionVariantInferenceAmiVersion")
    assert set(AMI_VERSIONS) == {version for version in versions if "-gpu-" in version}
