"""Bulk work on an endpoint's model: the setting, and what may be done where.

Batch transform takes a model only as one archive that its `ModelDataUrl` names, and its newest
machine images for GPUs have driver 535, which a CUDA 13 image does not run on: see the API's
`ContainerDefinition` and `TransformResources`.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from stacks.instance_types import Hardware
from stacks.reading import Section

BATCH = "batch/"
KEPT_DAYS = 30
BATCH_MODEL_TAG = "ballot:batch-model"
KMS_KEY_TAG = "ballot:kms-key"
# SageMaker's name for the log of all the transform jobs of an account.
LOG_GROUP = "/aws/sagemaker/TransformJobs"


def read_batch(section: Section, *, is_decision: bool, hardware: Hardware | None) -> bool:
    """Read whether an endpoint's model is to do bulk work, too."""
    wanted = section.flag("batch", default=False)
    if wanted and not is_decision:
        section.refuse("batch", "is for decision endpoints")
    if wanted and hardware == "gpu":
        section.refuse(
            "batch",
            "is for CPU instance types: batch transform has no driver for CUDA 13; "
            "`ballot batch run` asks the endpoint itself",
        )
    return wanted


def may_work_in_bulk(bucket: s3.IBucket, stack: cdk.Stack) -> list[iam.PolicyStatement]:
    """Allow reading inputs and writing outputs of transform jobs, and their log."""
    group = stack.format_arn(
        service="logs",
        resource="log-group",
        resource_name=f"{LOG_GROUP}:*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    return [
        iam.PolicyStatement(
            actions=["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            resources=[bucket.arn_for_objects(f"{BATCH}*")],
        ),
        iam.PolicyStatement(
            actions=["s3:ListBucket"],
            resources=[bucket.bucket_arn],
            conditions={"StringLike": {"s3:prefix": f"{BATCH}*"}},
        ),
        iam.PolicyStatement(
            actions=[
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            resources=[group],
        ),
    ]
