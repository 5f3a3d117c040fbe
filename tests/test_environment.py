"""Environments: each wrong setting gets its own message, and a right one its types."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from adapter.settings import read_settings
from sources import S3Source, parse_source
from stacks.catalog import AMI_VERSIONS
from stacks.deployment_target import deployment_target
from stacks.environment import (
    DEFAULT_MAX_QUEUE,
    Environment,
    ExistingVpc,
    HubFile,
    NewVpc,
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
    has_local_disks,
    refusal,
)
from stacks.reading import SettingsError
from stacks.rollout_settings import Deployment, Routing
from stacks.scaling_settings import Scaling, ScheduledCapacity
from stacks.schedules import schedule_problem
from tests.adapter_process import ROOT
from tests.api_model import sagemaker_enum
from tests.invalid_environments import (
    CHAT,
    DIGEST,
    GONE,
    HUB_MODEL,
    INVALID,
    KEY,
    SMALL,
    changed,
)

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
            "kms_key": "new",
            "endpoints/cpu/scaling": {
                "min": 2,
                "max": 5,
                "scheduled": [
                    {"name": "day", "schedule": "cron(0 7 ? * 2-6 *)", "min": 3, "max": 8},
                    {
                        "name": "sale",
                        "schedule": "at(2027-11-26T00:00:00)",
                        "time_zone": "America/New_York",
                        "min": 9,
                        "max": 9,
                    },
                ],
            },
            "endpoints/cpu/routing": {"strategy": "prefix_aware", "prefix_bytes": 4096},
            "endpoints/cpu/deployment": {
                "strategy": "linear",
                "percent": 25,
                "wait_seconds": 60,
                "max_seconds": 7200,
            },
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
            concurrent_requests_per_instance=2,
            scale_in_cooldown_seconds=900,
            scale_out_cooldown_seconds=120,
            scheduled=(
                ScheduledCapacity(
                    name="day",
                    schedule="cron(0 7 ? * 2-6 *)",
                    time_zone=None,
                    minimum=3,
                    maximum=8,
                ),
                ScheduledCapacity(
                    name="sale",
                    schedule="at(2027-11-26T00:00:00)",
                    time_zone="America/New_York",
                    minimum=9,
                    maximum=9,
                ),
            ),
        ),
    )
    assert cpu.routing == Routing(
        strategy="prefix_aware", prefix_bytes=4096, concurrency_threshold=4
    )
    assert cpu.deployment == Deployment(
        strategy="linear", percent=25, wait_seconds=60, bake_seconds=600, max_seconds=7200
    )
    assert environment.kms_key == "new"
    assert (gpu.routing.strategy, gpu.deployment) == ("least_outstanding", None)
    assert (cpu.model and cpu.model.file, chat.model) == ("a.gguf", None)
    assert (chat.vpc, chat.hub) == (None, HubFile(repository="o/n", file="x.gguf"))
    assert chat.instance_types == ("ml.g6.xlarge", "ml.g5.xlarge")


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"bake_seconds": 900}, 900),
        ({"strategy": "canary", "wait_seconds": 600}, 2 * 600 + 600),
        ({"strategy": "linear", "percent": 33, "wait_seconds": 600}, 4 * 600 + 600),
        ({"strategy": "rolling", "percent": 50, "wait_seconds": 900}, 2 * 900),
    ],
)
def test_a_deployments_limit_leaves_room_for_all_its_waiting(
    settings: dict[str, Any], least: int
) -> None:
    def deployment(limit: int) -> dict[str, Any]:
        return {
            "endpoints/cpu/instance_count": 2,
            "endpoints/cpu/deployment": {**settings, "max_seconds": limit},
        }

    assert problems_of(deployment(least))[1:] == [
        f"dev.endpoints.cpu.deployment.max_seconds: {least} must be more than the waiting, "
        f"{least} seconds"
    ]
    assert read(deployment(least + 1)).endpoints[0].deployment is not None


def test_an_update_waits_for_less_than_sagemakers_eight_hours() -> None:
    def deployment(wait: int) -> dict[str, Any]:
        settings = {"strategy": "rolling", "percent": 10, "wait_seconds": wait}
        return {"endpoints/cpu/instance_count": 10, "endpoints/cpu/deployment": settings}

    assert read(deployment(2879)).endpoints[0].deployment is not None
    assert problems_of(deployment(2880))[1:] == [
        "dev.endpoints.cpu.deployment.wait_seconds: 2880 comes to 28800 seconds of waiting; an "
        "update must end within 28800"
    ]


def test_a_topic_of_another_account_is_right_without_a_budget() -> None:
    topic = "arn:aws:sns:eu-west-1:210987654321:pager"
    environment = read(
        {
            "account": "123456789012",
            "region": "eu-west-1",
            "monitoring": {"topic_arn": topic},
        }
    )
    assert environment.monitoring.topic_arn == topic


def documented_settings() -> list[str]:
    """Return the settings of an endpoint that the documentation shows."""
    pages = [(ROOT / "docs" / page).read_text("utf-8") for page in ("deploy.md", "routing.md")]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    ]
    return [block for block in blocks if block.startswith('"')]


@pytest.mark.parametrize("block", documented_settings(), ids=lambda block: block.split('"')[1])
def test_documented_settings_are_right(block: str) -> None:
    shown = json.loads(f"{{{block}}}")
    settings = {"scaling": {"min": 2, "max": 6}, **shown}
    read({f"endpoints/cpu/{key}": value for key, value in settings.items()})


def test_what_a_queue_holds_is_known_as_the_adapter_has_it() -> None:
    assert read_settings({}).max_queue == DEFAULT_MAX_QUEUE


@pytest.mark.parametrize(
    "schedule",
    [
        "at(2028-02-29T23:59:59)",
        "rate(1 minute)",
        "rate(36 hours)",
        "cron(0 10 * * ? *)",
        "cron(15 12 * * ? *)",
        "cron(0 18 ? * MON-FRI *)",
        "cron(0 8 1 * ? *)",
        "cron(0/15 * * * ? *)",
        "cron(0/10 8-17,20 ? * MON-FRI *)",
        "cron(0 0 L * ? *)",
        "cron(0 0 3W JAN,JUL ? 2027-2030)",
        "cron(0 9 ? * 2#1 *)",
        "cron(0 9 ? * FRIL *)",
    ],
)
def test_a_schedule_that_aws_documents_is_taken(schedule: str) -> None:
    assert schedule_problem(schedule) is None


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "cron()",
        "at()",
        "at(2027-13-01T00:00:00)",
        "at(2027-1-1T0:00:00)",
        "at(2027-01-01 00:00:00)",
        "at(2027-01-01T24:00:00)",
        "rate(0 days)",
        "rate(-1 days)",
        "rate(1.5 hours)",
        "rate(2 weeks)",
        "rate(5 minute)",
        "rate(1  day)",
        "cron(0 24 * * ? *)",
        "cron(0 7 0 * ? *)",
        "cron(0 7 32W * ? *)",
        "cron(0 7 * 13 ? *)",
        "cron(0 7 ? * 8 *)",
        "cron(0 7 ? * 2#6 *)",
        "cron(0 7 ? * FRI-MON *)",
        "cron(0 7 ? * mon-fri *)",
        "cron(0 7 ? * ? *)",
        "cron(0 7 1,? * ? *)",
        "cron(0 7 ? * 2#1,2#3 *)",
        "cron(0 7 * * ? 1969)",
        "cron(0 7 * * ? 2200)",
        "cron(*/0 7 * * ? *)",
        "cron(/5 7 * * ? *)",
        "cron(1, 7 * * ? *)",
        "cron(0  7 * * ? *)",
        "cron(0 7 * * ? * *)",
        "cron(0 7 * * ? *",
        " cron(0 7 * * ? *)",
        "cron(0 7 * * ? *)\n",
        "cron(\u0660 7 * * ? *)",
        "cron(0/\u0665 7 * * ? *)",
        "rate(1\u0665 days)",
        "at(\u0662027-01-01T00:00:00)",
    ],
)
def test_a_schedule_that_means_nothing_is_refused(schedule: str) -> None:
    assert schedule_problem(schedule) is not None


def test_routing_by_one_word_is_short_for_an_object() -> None:
    short = read({"endpoints/cpu/routing": "prefix_aware"})
    full = read({"endpoints/cpu/routing": {"strategy": "prefix_aware"}})
    assert short.endpoints[0].routing == full.endpoints[0].routing
    assert short.endpoints[0].routing.prefix_bytes == 1024


@pytest.mark.parametrize(
    ("name", "settings", "protected"),
    [
        ("prod", {}, True),
        ("prod", {"termination_protection": False}, False),
        ("dev", {}, False),
        ("dev", {"termination_protection": True}, True),
    ],
)
def test_prod_is_protected_unless_it_says_otherwise(
    name: str, settings: dict[str, Any], protected: bool
) -> None:
    assert read_environment(name, changed(settings)).termination_protection is protected


def test_the_key_may_be_of_the_environments_own_account_and_region() -> None:
    own = {"account": "123456789012", "region": "eu-west-1", "kms_key": KEY}
    assert read(own).kms_key == KEY
    several_regions = KEY.rpartition("/")[0] + "/mrk-" + "a" * 32
    assert read({"kms_key": several_regions}).kms_key == several_regions


@pytest.mark.parametrize(
    ("account", "credentials", "expected"),
    [
        (None, None, None),
        (None, "210987654321", "210987654321"),
        ("123456789012", None, "123456789012"),
        ("123456789012", "123456789012", "123456789012"),
    ],
)
def test_the_account_is_that_of_the_environment_or_else_of_the_credentials(
    account: str | None, credentials: str | None, expected: str | None
) -> None:
    environment = read({"account": account} if account else {})
    variables = {"CDK_DEFAULT_ACCOUNT": credentials} if credentials else {}
    assert deployment_target(environment, variables).account == expected


def test_credentials_of_another_account_are_refused_with_both_names() -> None:
    with pytest.raises(SettingsError) as error:
        deployment_target(
            read({"account": "123456789012"}), {"CDK_DEFAULT_ACCOUNT": "210987654321"}
        )
    assert str(error.value) == (
        "environment dev is of account 123456789012, and the credentials are of account "
        "210987654321: nothing is deployed"
    )


def test_the_region_is_the_environments_choice() -> None:
    variables = {"CDK_DEFAULT_REGION": "us-east-1"}
    assert deployment_target(read({"region": "eu-west-1"}), variables).region == "eu-west-1"
    assert deployment_target(read({}), variables).region == "us-east-1"


def test_instances_with_disks_of_their_own_take_no_key() -> None:
    """As EC2's user guide has it: a `d` in the family, or a GPU, comes with NVMe disks."""
    for family in CPU_FAMILIES:
        assert has_local_disks(f"ml.{family}.xlarge") is family.endswith("d")
    assert all(has_local_disks(f"ml.{family}.xlarge") for family in GPU_FAMILIES)


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
