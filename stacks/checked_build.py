"""Builds that are waited for: the custom resource, and the functions behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import custom_resources
from constructs import Construct

from stacks.acknowledgements import acknowledge, acknowledge_wildcards, logical_id
from stacks.build_project import EXCLUDED, QUEUED_MINUTES, ROOT
from stacks.lambda_role import lambda_role
from stacks.log_groups import make_log_group
from stacks.permissions import may_read_with

RESOURCE_TYPE = "Custom::BallotCheckedBuild"

_POLL_SECONDS = 10
_MARGIN_MINUTES = 2


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """One build: its project, source and inputs, and the properties that say what it must leave.

    `inputs_hash` covers the source and `inputs`. `settled` are inputs that do not change in the
    life of the environment, and may be known to CloudFormation only.
    """

    project_name: str
    source_location: str
    inputs_hash: str
    inputs: Mapping[str, str]
    settled: Mapping[str, str]
    result: Mapping[str, str]


def hash_inputs(source_hash: str, inputs: Mapping[str, str]) -> str:
    """Return the SHA-256 of a build's source and inputs, in hex."""
    return hashlib.sha256(compact_json([source_hash, dict(inputs)]).encode()).hexdigest()


def compact_json(value: object) -> str:
    """Return JSON in its one shortest form, for hashes and environment variables."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class BuildWaiter(Construct):
    """The provider of the custom resource: its functions start builds, wait, and check results."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        statements: Sequence[iam.PolicyStatement],
        build_timeout_minutes: int,
        log_retention_days: int,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id)
        self.log_group = make_log_group(
            self, "Log", name=f"/ballot/{name}", retention_days=log_retention_days, key=key
        )
        role = lambda_role(self, "Role", self.log_group, statements)
        # CodeBuild gives a build up first, then the waiting, and only then CloudFormation.
        patience = build_timeout_minutes + QUEUED_MINUTES + _MARGIN_MINUTES
        self.service_timeout = cdk.Duration.minutes(patience + _MARGIN_MINUTES)
        self.lambda_on_event = self._function("OnEvent", "on_event", role)
        self.lambda_is_complete = self._function("IsComplete", "is_complete", role)
        self.provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=self.lambda_on_event,
            is_complete_handler=self.lambda_is_complete,
            query_interval=cdk.Duration.seconds(_POLL_SECONDS),
            total_timeout=cdk.Duration.minutes(patience),
            framework_on_event_role=lambda_role(
                self, "EventRole", self.log_group, may_read_with(key)
            ),
            framework_complete_and_timeout_role=lambda_role(
                self, "CompleteRole", self.log_group, may_read_with(key)
            ),
            provider_function_env_encryption=key,
            log_group=self.log_group,
        )
        self.service_token = self.provider.service_token
        self._acknowledge()

    def _function(self, id: str, handler: str, role: iam.IRole) -> lambda_.Function:
        return lambda_.Function(
            self,
            id,
            description=f"Ballot: images and models that are built unless there ({handler})",
            runtime=lambda_.Runtime.PYTHON_3_14,
            code=lambda_.Code.from_asset(
                str(ROOT / "lambda"), exclude=list(EXCLUDED), ignore_mode=cdk.IgnoreMode.GIT
            ),
            handler=f"build_waiter.handlers.{handler}",
            timeout=cdk.Duration.seconds(60),
            memory_size=256,
            role=role,
            log_group=self.log_group,
        )

    def _acknowledge(self) -> None:
        framework = [
            self.provider.node.find_child(f"framework-{name}")
            for name in ("isComplete", "onTimeout")
        ]
        for function in (self.lambda_on_event, self.lambda_is_complete, *framework):
            acknowledge_wildcards(
                self,
                "CDK lets its provider call any version of the functions made here, and no others.",
                f"Resource::<{logical_id(function)}.Arn>:*",
            )
        for rule in ("AwsSolutions-SF1", "AwsSolutions-SF2"):
            acknowledge(
                self.provider,
                rule,
                "The state machine only repeats a function until it is done; that function's log "
                "and the stack's events tell each outcome.",
            )


class CheckedBuild(Construct):
    """A result that is built unless it is there, and whose checksums come from where it lies."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        service_token: str,
        service_timeout: cdk.Duration,
        plan: BuildPlan,
    ) -> None:
        super().__init__(scope, id)
        self.custom_resource = cdk.CustomResource(
            self,
            "Resource",
            resource_type=RESOURCE_TYPE,
            service_token=service_token,
            service_timeout=service_timeout,
            properties={
                "ProjectName": plan.project_name,
                "SourceLocation": plan.source_location,
                "InputsHash": plan.inputs_hash,
                "Environment": cdk.Stack.of(self).to_json_string({**plan.inputs, **plan.settled}),
                **plan.result,
            },
        )

    def attribute(self, name: str) -> str:
        """Return an attribute of the checked result."""
        return self.custom_resource.get_att_string(name)
