"""The stack of one endpoint: its checked image and model, what may run it, how it is reached."""

from __future__ import annotations

import json
import shlex

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.acknowledgements import acknowledge_wildcards, objects_finding
from stacks.artifacts import ArtifactsStack
from stacks.checked_build import BuildPlan, CheckedBuild
from stacks.container_environment import container_environment
from stacks.environment import Endpoint, ExistingVpc, Kind
from stacks.image_builds import line_of
from stacks.log_groups import make_log_group
from stacks.permissions import (
    MODELS,
    may_join_vpc,
    may_pull,
    may_put_endpoint_metrics,
    may_read_models,
    may_write_logs,
)
from stacks.sagemaker_endpoint import VARIANT, ModelData, Place, SageMakerEndpoint
from stacks.scaling import TargetTracking
from stacks.tags import tag_stack

EXAMPLES: dict[Kind, object] = {
    "decision": {
        "decision": {
            "id": "support-route",
            "state": "The customer forgot the password and the reset email never arrived.",
            "question": "Which queue should handle this request?",
            "options": [
                {"id": "account_access", "description": "Account access and authentication."},
                {"id": "billing", "description": "Billing and payments."},
            ],
        }
    },
    "chat": {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32},
}


class EndpointStack(cdk.Stack):
    """Everything that comes and goes with one endpoint."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        endpoint: Endpoint,
        artifacts: ArtifactsStack,
        env: cdk.Environment,
    ) -> None:
        environment = artifacts.settings
        super().__init__(
            scope,
            id,
            env=env,
            description=f"Ballot: {endpoint.kind} endpoint {endpoint.name} of {environment.name}",
        )
        self._settings = endpoint
        self._artifacts = artifacts
        self._endpoint_name = f"ballot-{environment.name}-{endpoint.name}"
        self.log_group = make_log_group(
            self,
            "Log",
            name=f"/aws/sagemaker/Endpoints/{self._endpoint_name}",
            retention_days=environment.log_retention_days,
        )
        self._images = artifacts.images[line_of(endpoint.image)]
        self.image = self._checked_build("Image", self._images.plan(endpoint.image))
        self.model = self._checked_model()
        self.endpoint = self._endpoint()
        self._scale()
        self._write_outputs()
        tag_stack(self, environment.name, environment.tags, endpoint.tags)

    def _checked_build(self, id: str, plan: BuildPlan) -> CheckedBuild:
        waiter = self._artifacts.build_waiter
        return CheckedBuild(
            self,
            id,
            service_token=waiter.service_token,
            service_timeout=waiter.service_timeout,
            plan=plan,
        )

    def _checked_model(self) -> CheckedBuild | None:
        settings, builds = self._settings, self._artifacts.models
        if settings.model is None:
            return None
        assert builds is not None, "this is a bug: a model is used, so models are built"
        return self._checked_build("Model", builds.plan(settings.model, settings.compression))

    def _endpoint(self) -> SageMakerEndpoint:
        endpoint = SageMakerEndpoint(
            self,
            "Endpoint",
            name=self._endpoint_name,
            settings=self._settings,
            image_uri=self.image.attribute("ImageUri"),
            model_data=self._model_data(),
            environment=container_environment(self._settings),
            role=self._role(),
            place=self._place(),
        )
        # Whoever comes first makes the log group; if SageMaker did, it would outlive the stack.
        endpoint.sagemaker_endpoint.node.add_dependency(self.log_group)
        return endpoint

    def _model_data(self) -> ModelData | None:
        if self.model is None:
            return None
        return ModelData(
            uri=self.model.attribute("ModelDataUri"), compression=self._settings.compression
        )

    def _role(self) -> iam.IRole:
        if self._settings.role_arn:
            return iam.Role.from_role_arn(self, "Role", self._settings.role_arn, mutable=False)
        statements = [
            may_write_logs(self.log_group),
            may_put_endpoint_metrics(),
            *may_pull(self._images.ecr_repository),
        ]
        if self._settings.model:
            statements += may_read_models(self._artifacts.s3_bucket)
        if self._settings.vpc:
            statements.append(may_join_vpc())
        # The policy is part of the role, so that the model waits for both.
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"),
            inline_policies={"Run": iam.PolicyDocument(statements=statements)},
        )
        acknowledge_wildcards(
            role,
            "Logging in to ECR, metrics (held to SageMaker's namespaces) and network interfaces "
            "that do not exist yet name no resource.",
            "Resource::*",
        )
        acknowledge_wildcards(
            role,
            "An endpoint that moves from one model to another needs both meanwhile.",
            objects_finding(self._artifacts.s3_bucket, f"{MODELS}*"),
        )
        return role

    def _place(self) -> Place | None:
        vpc = self._settings.vpc
        if vpc is None:
            return None
        if isinstance(vpc, ExistingVpc):
            return Place(subnet_ids=vpc.subnet_ids, security_group_ids=vpc.security_group_ids)
        network = self._artifacts.network
        assert network is not None, "this is a bug: a new VPC is wanted, so it is made"
        return Place(
            subnet_ids=[subnet.subnet_id for subnet in network.ec2_vpc.isolated_subnets],
            security_group_ids=[network.ec2_security_group.security_group_id],
        )

    def _scale(self) -> None:
        scaling = self._settings.scaling
        if scaling is None:
            return
        TargetTracking(
            self,
            "Scaling",
            endpoint=self.endpoint.sagemaker_endpoint,
            endpoint_name=self._endpoint_name,
            variant_name=VARIANT,
            minimum=scaling.minimum,
            maximum=scaling.maximum,
            invocations_per_instance=scaling.invocations_per_instance,
            scale_in_cooldown_seconds=scaling.scale_in_cooldown_seconds,
            scale_out_cooldown_seconds=scaling.scale_out_cooldown_seconds,
        )

    def _write_outputs(self) -> None:
        console = f"https://{self.region}.console.aws.amazon.com"
        log = f"$252Faws$252Fsagemaker$252FEndpoints$252F{self._endpoint_name}"
        outputs = {
            "EndpointName": self.endpoint.sagemaker_endpoint.attr_endpoint_name,
            "EndpointArn": self.endpoint.sagemaker_endpoint.ref,
            "ImageDigest": self.image.attribute("ImageDigest"),
            "ConsoleUrl": f"{console}/sagemaker/home?region={self.region}"
            f"#/endpoints/{self._endpoint_name}",
            "LogsUrl": f"{console}/cloudwatch/home?region={self.region}"
            f"#logsV2:log-groups/log-group/{log}",
            "InvokeCommand": self._invoke_command(),
        }
        if self.model:
            outputs["ModelSha256"] = self.model.attribute("GgufSha256")
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)

    def _invoke_command(self) -> str:
        body = shlex.quote(json.dumps(EXAMPLES[self._settings.kind]))
        return (
            f"aws sagemaker-runtime invoke-endpoint --region {self.region} "
            f"--endpoint-name {self._endpoint_name} --content-type application/json "
            f"--cli-binary-format raw-in-base64-out --body {body} /dev/stdout"
        )
