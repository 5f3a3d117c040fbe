"""The key that an environment's data is encrypted with, where it is not AWS's own."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

# The shortest time that KMS lets pass between the deletion of a key and its end.
_PENDING_DAYS = 7


class EnvironmentKey(Construct):
    """A key of the environment's own, which rotates every year and goes with its stack.

    The account's policies say who may use it; logs, which AWS writes on nobody's behalf, are
    named by the key itself.
    """

    def __init__(self, scope: Construct, id: str, *, environment: str) -> None:
        super().__init__(scope, id)
        self.kms_key = kms.Key(
            self,
            "Key",
            description=f"Ballot: models, images, logs and alarms of environment {environment}",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(_PENDING_DAYS),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        self.kms_key.add_to_resource_policy(_logs_may_use_it(cdk.Stack.of(self)))


def _logs_may_use_it(stack: cdk.Stack) -> iam.PolicyStatement:
    groups = stack.format_arn(
        service="logs",
        resource="log-group",
        resource_name="*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    return iam.PolicyStatement(
        principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
        actions=[
            "kms:Decrypt",
            "kms:DescribeKey",
            "kms:Encrypt",
            "kms:GenerateDataKey*",
            "kms:ReEncrypt*",
        ],
        resources=["*"],
        conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
    )
