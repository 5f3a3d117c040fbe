"""The bucket that models lie in."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.acknowledgements import acknowledge
from stacks.batch import BATCH, KEPT_DAYS
from stacks.log_groups import make_log_group
from stacks.permissions import may_write_logs

_KEPT_DAYS = 30
_AUTO_DELETE = "Custom::S3AutoDeleteObjectsCustomResourceProvider"
_AUTO_DELETE_SECONDS = 960


class ArtifactBucket(Construct):
    """An encrypted bucket that speaks TLS only, and that goes with its content."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        log_name: str,
        log_retention_days: int,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id)
        self.s3_bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            versioned=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            auto_delete_objects=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="OldBuilds",
                    noncurrent_version_expiration=cdk.Duration.days(_KEPT_DAYS),
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(1),
                ),
                s3.LifecycleRule(
                    id="BulkWork",
                    prefix=BATCH,
                    expiration=cdk.Duration.days(KEPT_DAYS),
                    # Expiring only adds a version: what was in the object goes with the old one.
                    noncurrent_version_expiration=cdk.Duration.days(1),
                ),
            ],
        )
        acknowledge(
            self.s3_bucket,
            "AwsSolutions-S1",
            "It holds models under their checksums, and only this account's roles read it; "
            "where access must be logged, an existing bucket can be named instead.",
        )
        log_group = make_log_group(
            self, "Log", name=f"/ballot/{log_name}", retention_days=log_retention_days, key=key
        )
        _tidy_auto_delete(self.s3_bucket, log_group)


def _tidy_auto_delete(bucket: s3.Bucket, log_group: logs.LogGroup) -> None:
    """Give CDK's emptying of the bucket a log that goes with the stack, a role, and a time limit.

    CDK offers no settings for it, and its function would leave a log group behind.
    """
    provider = cdk.Stack.of(bucket).node.find_child(_AUTO_DELETE)
    role, handler = provider.node.find_child("Role"), provider.node.find_child("Handler")
    resource = bucket.node.find_child("AutoDeleteObjectsCustomResource").node.default_child
    assert isinstance(role, cdk.CfnResource), "this is a bug: not CDK's role"
    assert isinstance(handler, cdk.CfnResource), "this is a bug: not CDK's function"
    assert isinstance(resource, cdk.CfnResource), "this is a bug: not CDK's custom resource"
    write = iam.PolicyDocument(statements=[may_write_logs(log_group)])
    role.add_property_deletion_override("ManagedPolicyArns")
    role.add_property_override("Policies", [{"PolicyName": "Log", "PolicyDocument": write}])
    handler.add_property_override("LoggingConfig", {"LogGroup": log_group.log_group_name})
    resource.add_property_override("ServiceTimeout", str(_AUTO_DELETE_SECONDS))
