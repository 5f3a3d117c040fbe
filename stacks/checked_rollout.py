"""A look at the endpoint after each deployment: the custom resource, and the function behind it."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import custom_resources
from constructs import Construct

from stacks.acknowledgements import acknowledge_wildcards, logical_id
from stacks.build_project import EXCLUDED, ROOT
from stacks.lambda_role import lambda_role
from stacks.log_groups import make_log_group
from stacks.permissions import may_describe_endpoints, may_read_with

RESOURCE_TYPE = "Custom::BallotCheckedRollout"

# The function looks for ten minutes; then it ends, then CDK's, and only then CloudFormation's wait.
_FUNCTION_MINUTES = 12
_SERVICE_MINUTES = 16


class RolloutCheck(Construct):
    """The provider of the custom resource: its function compares what runs with what should."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        endpoint_names: Sequence[str],
        log_retention_days: int,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id)
        self.log_group = make_log_group(
            self, "Log", name=f"/ballot/{name}", retention_days=log_retention_days, key=key
        )
        self.lambda_on_event = lambda_.Function(
            self,
            "OnEvent",
            description="Ballot: whether an endpoint runs what was deployed",
            runtime=lambda_.Runtime.PYTHON_3_14,
            code=lambda_.Code.from_asset(
                str(ROOT / "lambda"), exclude=list(EXCLUDED), ignore_mode=cdk.IgnoreMode.GIT
            ),
            handler="rollout_check.handlers.on_event",
            timeout=cdk.Duration.minutes(_FUNCTION_MINUTES),
            memory_size=256,
            role=lambda_role(
                self,
                "Role",
                self.log_group,
                [may_describe_endpoints(endpoint_names, cdk.Stack.of(self))],
            ),
            log_group=self.log_group,
        )
        self.provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=self.lambda_on_event,
            framework_on_event_role=lambda_role(
                self, "EventRole", self.log_group, may_read_with(key)
            ),
            provider_function_env_encryption=key,
            log_group=self.log_group,
        )
        self.service_token = self.provider.service_token
        acknowledge_wildcards(
            self,
            "CDK lets its provider call any version of the function made here, and no other.",
            f"Resource::<{logical_id(self.lambda_on_event)}.Arn>:*",
        )


class CheckedRollout(Construct):
    """Fails the deployment unless the endpoint has come to run the configuration."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        service_token: str,
        endpoint_name: str,
        config_name: str,
    ) -> None:
        super().__init__(scope, id)
        self.custom_resource = cdk.CustomResource(
            self,
            "Resource",
            resource_type=RESOURCE_TYPE,
            service_token=service_token,
            service_timeout=cdk.Duration.minutes(_SERVICE_MINUTES),
            properties={"EndpointName": endpoint_name, "EndpointConfigName": config_name},
        )
