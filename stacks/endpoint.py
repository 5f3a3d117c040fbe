"""The stack of one endpoint: its checked image and model, what may run it, how it is reached."""

from __future__ import annotations

import json
import shlex

import aws_cdk as cdk
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.alarms import EndpointMonitoring
from stacks.artifacts import ArtifactsStack
from stacks.batch import BATCH_MODEL_TAG, KMS_KEY_TAG
from stacks.checked_build import BuildPlan, CheckedBuild
from stacks.checked_rollout import CheckedRollout
from stacks.container_environment import container_environment
from stacks.environment import Endpoint, ExistingVpc, Kind
from stacks.image_builds import line_of
from stacks.provenance import provenance_tags
from stacks.sagemaker_endpoint import (
    VARIANT,
    ModelData,
    Place,
    SageMakerEndpoint,
    make_model,
)
from stacks.scaling import TargetTracking
from stacks.tags import ENDPOINT_TAG, tag, tag_stack

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
            termination_protection=environment.termination_protection,
            description=f"Ballot: {endpoint.kind} endpoint {endpoint.name} of {environment.name}",
        )
        self._settings = endpoint
        self._artifacts = artifacts
        self._endpoint_name = f"ballot-{environment.name}-{endpoint.name}"
        self.add_stack_dependency(artifacts, "The endpoint's log group and role are there first.")
        images = artifacts.images[line_of(endpoint.image)]
        self.image = self._checked_build("Image", images.plan(endpoint.image))
        self.model = self._checked_model()
        self.monitoring = self._monitoring()
        self.endpoint = self._endpoint()
        self._allow_bulk_work()
        self.monitoring.start_with(self.endpoint.sagemaker_endpoint)
        self._check_rollout()
        self._scale()
        self._write_outputs()
        tag_stack(
            self,
            environment.name,
            {ENDPOINT_TAG: endpoint.name},
            environment.tags,
            endpoint.tags,
        )

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
        settings = self._settings
        if settings.model is None:
            return None
        plan = self._artifacts.models.plan(settings.model, settings.compression)
        return self._checked_build("Model", plan)

    def _monitoring(self) -> EndpointMonitoring:
        return EndpointMonitoring(
            self,
            "Monitoring",
            environment=self._artifacts.settings.name,
            settings=self._settings,
            topic_arn=self._artifacts.monitoring.topic_arn,
        )

    def _endpoint(self) -> SageMakerEndpoint:
        return SageMakerEndpoint(
            self,
            "Endpoint",
            name=self._endpoint_name,
            settings=self._settings,
            image_uri=self.image.attribute("ImageUri"),
            model_data=self._model_data(),
            environment=container_environment(self._settings),
            role_arn=self._artifacts.lasting_parts[self._settings.name].role_arn,
            place=self._place(),
            rollback_alarms=self.monitoring.rollback_alarms,
            key=self._artifacts.key,
            tags=provenance_tags(
                image=self.image,
                model=self._settings.model,
                checked_model=self.model,
                hub=self._settings.hub,
            ),
        )

    def _allow_bulk_work(self) -> None:
        """Tag the endpoint with what bulk work takes: the model, and the environment's key."""
        if not self._settings.batch:
            return
        tags = {BATCH_MODEL_TAG: self._batch_model().attr_model_name}
        if self._artifacts.key:
            tags[KMS_KEY_TAG] = self._artifacts.key.key_arn
        tag(self.endpoint.sagemaker_endpoint, tags)

    def _batch_model(self) -> sagemaker.CfnModel:
        """Return the model of bulk work: the endpoint's own where that is an archive already."""
        settings = self._settings
        if settings.compression == "gzip":
            return self.endpoint.sagemaker_model
        assert settings.model is not None, "this is a bug: a decision endpoint has a model"
        archive = self._checked_build(
            "Archive", self._artifacts.models.plan(settings.model, "gzip")
        )
        return make_model(
            self,
            "BatchModel",
            settings=settings,
            image_uri=self.image.attribute("ImageUri"),
            model_data=ModelData(uri=archive.attribute("ModelDataUri"), compression="gzip"),
            environment=container_environment(settings),
            role_arn=self._artifacts.lasting_parts[settings.name].role_arn,
            place=self._place(),
        )

    def _model_data(self) -> ModelData | None:
        if self.model is None:
            return None
        return ModelData(
            uri=self.model.attribute("ModelDataUri"), compression=self._settings.compression
        )

    def _place(self) -> Place | None:
        vpc = self._settings.vpc
        if vpc is None:
            return None
        if isinstance(vpc, ExistingVpc):
            return Place(subnet_ids=vpc.subnet_ids, security_group_ids=vpc.security_group_ids)
        network = self._artifacts.network
        assert network is not None, "this is a bug: a new VPC is wanted, so it is made"
        return Place(subnet_ids=network.subnet_ids, security_group_ids=network.security_group_ids)

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
            settings=scaling,
        )

    def _check_rollout(self) -> None:
        CheckedRollout(
            self,
            "Rollout",
            service_token=self._artifacts.rollout_check.service_token,
            endpoint_name=self.endpoint.sagemaker_endpoint.attr_endpoint_name,
            config_name=self.endpoint.sagemaker_config.attr_endpoint_config_name,
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
