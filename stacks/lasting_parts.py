"""What of an endpoint outlives its stack: its log group, and the role that it runs as."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.acknowledgements import (
    acknowledge_wildcards,
    alarms_finding,
    log_finding,
    objects_finding,
)
from stacks.batch import BATCH, LOG_GROUP, may_work_in_bulk
from stacks.environment import Endpoint
from stacks.log_groups import make_log_group
from stacks.permissions import (
    MODELS,
    may_encrypt_volumes,
    may_find_log_streams,
    may_join_vpc,
    may_pull,
    may_put_endpoint_metrics,
    may_read_models,
    may_read_with,
    may_see_alarms,
    may_write_logs,
    may_write_with,
)
from stacks.tags import ENDPOINT_TAG, tag


class LastingParts(Construct):
    """An endpoint's log group, and its execution role unless it is given one.

    The log tells why a first deployment failed, once that has been rolled back. The role is what
    SageMaker removes network interfaces with, after the endpoint is reported as deleted.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        settings: Endpoint,
        repositories: Sequence[ecr.IRepository],
        bucket: s3.IBucket,
        in_vpc: bool,
        log_retention_days: int,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id)
        # Whoever comes first makes the log group; SageMaker's would stay for ever.
        self.log_group = make_log_group(
            self,
            "Log",
            name=f"/aws/sagemaker/Endpoints/{name}",
            retention_days=log_retention_days,
            key=key,
        )
        self.role: iam.Role | None = None
        if settings.role_arn:
            self.role_arn = settings.role_arn
        else:
            self.role = self._make_role(settings, repositories, bucket, in_vpc, key)
            self.role_arn = self.role.role_arn
        tag(self, {ENDPOINT_TAG: settings.name, **settings.tags})

    def _make_role(
        self,
        settings: Endpoint,
        repositories: Sequence[ecr.IRepository],
        bucket: s3.IBucket,
        in_vpc: bool,
        key: kms.IKey | None,
    ) -> iam.Role:
        """Make the role, whose policy is part of it, so that whatever waits for one has both.

        It may use each image and model of the environment: this stack is updated first, and until
        the endpoint has moved, or after it has moved back, its old instances may be replaced.
        """
        statements = [
            may_write_logs(self.log_group),
            may_find_log_streams(self.log_group),
            may_put_endpoint_metrics(),
            may_see_alarms(cdk.Stack.of(self)),
            *may_pull(repositories),
            *may_read_models(bucket),
            *may_read_with(key),
        ]
        if key and (settings.takes_volume_key or settings.batch):
            statements.extend(may_encrypt_volumes(key))
        if settings.batch:
            statements.extend(may_work_in_bulk(bucket, cdk.Stack.of(self)))
            statements.extend(may_write_with(key))
        if in_vpc:
            statements.append(may_join_vpc())
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
            objects_finding(bucket, f"{MODELS}*"),
        )
        if settings.batch:
            acknowledge_wildcards(
                role,
                "Each job has a folder and log streams of its own, which do not exist yet.",
                objects_finding(bucket, f"{BATCH}*"),
                log_finding(role, LOG_GROUP),
            )
        acknowledge_wildcards(
            role,
            "Rollouts look alarms up by name, which CloudWatch allows for all of them or none.",
            alarms_finding(self),
        )
        return role
