"""Statements of IAM policies: what builds, their waiter and endpoints may do, and nothing more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets

MODELS = "models/"
SBOMS = "sboms/"
MANIFEST = "model-manifest.json"

_PRIVATE_IMAGE = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com/([^@]+)@")


def may_write_logs(group: logs.ILogGroup) -> iam.PolicyStatement:
    """Allow writing to a log group, but not making it again once it is deleted."""
    return iam.PolicyStatement(
        actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[group.log_group_arn]
    )


def may_read_logs(groups: Sequence[logs.ILogGroup]) -> iam.PolicyStatement:
    """Allow reading log streams."""
    return iam.PolicyStatement(
        actions=["logs:GetLogEvents"], resources=[group.log_group_arn for group in groups]
    )


def may_find_log_streams(group: logs.ILogGroup) -> iam.PolicyStatement:
    """Allow looking up the streams of a log group, as SageMaker does before it writes."""
    return iam.PolicyStatement(actions=["logs:DescribeLogStreams"], resources=[group.log_group_arn])


def may_see_alarms(stack: cdk.Stack) -> iam.PolicyStatement:
    """Allow reading alarms, as SageMaker does while it rolls out; CloudWatch asks for all."""
    alarms = stack.format_arn(
        service="cloudwatch",
        resource="alarm",
        resource_name="*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    return iam.PolicyStatement(actions=["cloudwatch:DescribeAlarms"], resources=[alarms])


def may_read_source(asset: s3_assets.Asset) -> list[iam.PolicyStatement]:
    """Allow fetching one asset, as CodeBuild fetches a source."""
    return [
        iam.PolicyStatement(
            actions=["s3:GetObject", "s3:GetObjectVersion"],
            resources=[asset.bucket.arn_for_objects(asset.s3_object_key)],
        ),
        iam.PolicyStatement(
            actions=["s3:GetBucketAcl", "s3:GetBucketLocation"],
            resources=[asset.bucket.bucket_arn],
        ),
    ]


def may_read_models(bucket: s3.IBucket) -> list[iam.PolicyStatement]:
    """Allow reading every model of the environment.

    Not only the endpoint's own: while an endpoint moves to another model, its old instances may
    still be replaced or added to.
    """
    return [
        iam.PolicyStatement(
            actions=["s3:GetObject"], resources=[bucket.arn_for_objects(f"{MODELS}*")]
        ),
        may_list_models(bucket),
    ]


def may_write_models(bucket: s3.IBucket) -> list[iam.PolicyStatement]:
    """Allow uploading models, and reading what is there already."""
    return [
        iam.PolicyStatement(
            actions=["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            resources=[bucket.arn_for_objects(f"{MODELS}*")],
        ),
        may_list_models(bucket),
    ]


def may_list_models(bucket: s3.IBucket) -> iam.PolicyStatement:
    """Allow listing models; without it a missing object is answered with 403 instead of 404."""
    return _may_list(bucket, MODELS)


def _may_list(bucket: s3.IBucket, prefix: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        actions=["s3:ListBucket"],
        resources=[bucket.bucket_arn],
        conditions={"StringLike": {"s3:prefix": f"{prefix}*"}},
    )


def may_find_models(bucket: s3.IBucket) -> list[iam.PolicyStatement]:
    """Allow reading the manifests of models."""
    return [
        iam.PolicyStatement(
            actions=["s3:GetObject"],
            resources=[bucket.arn_for_objects(f"{MODELS}*/{MANIFEST}")],
        ),
        may_list_models(bucket),
    ]


def may_find_sboms(bucket: s3.IBucket) -> list[iam.PolicyStatement]:
    """Allow seeing whether it is listed what images are made of."""
    return [
        iam.PolicyStatement(
            actions=["s3:GetObject"], resources=[bucket.arn_for_objects(f"{SBOMS}*")]
        ),
        _may_list(bucket, SBOMS),
    ]


def may_find_images(repositories: Sequence[ecr.IRepository]) -> iam.PolicyStatement:
    """Allow looking images up."""
    return iam.PolicyStatement(
        actions=["ecr:DescribeImages"],
        resources=[repository.repository_arn for repository in repositories],
    )


def may_push(repository: ecr.IRepository) -> list[iam.PolicyStatement]:
    """Allow pulling from the public gallery, and pushing to one repository."""
    return [
        iam.PolicyStatement(
            actions=[
                "ecr:BatchCheckLayerAvailability",
                "ecr:BatchGetImage",
                "ecr:CompleteLayerUpload",
                "ecr:DescribeImages",
                "ecr:GetDownloadUrlForLayer",
                "ecr:InitiateLayerUpload",
                "ecr:PutImage",
                "ecr:UploadLayerPart",
            ],
            resources=[repository.repository_arn],
        ),
        iam.PolicyStatement(
            actions=[
                "ecr:GetAuthorizationToken",
                "ecr-public:GetAuthorizationToken",
                "sts:GetServiceBearerToken",
            ],
            resources=["*"],
        ),
    ]


def may_write_sboms(bucket: s3.IBucket) -> iam.PolicyStatement:
    """Allow uploading what images are made of, and seeing whether it is there already."""
    return iam.PolicyStatement(
        actions=["s3:GetObject", "s3:PutObject"],
        resources=[bucket.arn_for_objects(f"{SBOMS}*")],
    )


def may_pull_bases(images: Iterable[str]) -> list[iam.PolicyStatement]:
    """Allow pulling images from private repositories, such as AWS's own in each Region."""
    matches = [_PRIVATE_IMAGE.match(image) for image in images]
    repositories = sorted({match.groups() for match in matches if match})
    if not repositories:
        return []
    return [
        iam.PolicyStatement(
            actions=["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            resources=[
                f"arn:{cdk.Aws.PARTITION}:ecr:{region}:{account}:repository/{repository}"
                for account, region, repository in repositories
            ],
        )
    ]


def may_pull(repositories: Sequence[ecr.IRepository]) -> list[iam.PolicyStatement]:
    """Allow pulling from some repositories."""
    return [
        iam.PolicyStatement(
            actions=[
                "ecr:BatchCheckLayerAvailability",
                "ecr:BatchGetImage",
                "ecr:GetDownloadUrlForLayer",
            ],
            resources=[repository.repository_arn for repository in repositories],
        ),
        iam.PolicyStatement(actions=["ecr:GetAuthorizationToken"], resources=["*"]),
    ]


def may_build(projects: Sequence[codebuild.IProject]) -> iam.PolicyStatement:
    """Allow starting, stopping and watching builds of some projects."""
    return iam.PolicyStatement(
        actions=[
            "codebuild:BatchGetBuilds",
            "codebuild:ListBuildsForProject",
            "codebuild:StartBuild",
            "codebuild:StopBuild",
        ],
        resources=[project.project_arn for project in projects],
    )


def may_put_endpoint_metrics() -> iam.PolicyStatement:
    """Allow SageMaker to publish what it measures on the endpoint's behalf."""
    return iam.PolicyStatement(
        actions=["cloudwatch:PutMetricData"],
        resources=["*"],
        conditions={"StringLike": {"cloudwatch:namespace": ["*SageMaker*", "*sagemaker*"]}},
    )


def may_read_with(key: kms.IKey | None) -> list[iam.PolicyStatement]:
    """Allow reading what an environment's key encrypts, if it has one."""
    if key is None:
        return []
    return [iam.PolicyStatement(actions=["kms:Decrypt"], resources=[key.key_arn])]


def may_write_with(key: kms.IKey | None) -> list[iam.PolicyStatement]:
    """Allow writing under an environment's key, if it has one, the parts of an upload included."""
    if key is None:
        return []
    return [
        iam.PolicyStatement(actions=["kms:Decrypt", "kms:GenerateDataKey"], resources=[key.key_arn])
    ]


def may_encrypt_volumes(key: kms.IKey) -> list[iam.PolicyStatement]:
    """Allow SageMaker to pass a key on to what encrypts an instance's volume, and nothing else."""
    return [
        iam.PolicyStatement(actions=["kms:DescribeKey"], resources=[key.key_arn]),
        iam.PolicyStatement(
            actions=["kms:CreateGrant"],
            resources=[key.key_arn],
            conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    ]


def may_describe_endpoints(names: Sequence[str], stack: cdk.Stack) -> iam.PolicyStatement:
    """Allow looking up some endpoints of the account."""
    return iam.PolicyStatement(
        actions=["sagemaker:DescribeEndpoint"],
        resources=[
            stack.format_arn(service="sagemaker", resource="endpoint", resource_name=name)
            for name in names
        ],
    )


def may_join_vpc() -> iam.PolicyStatement:
    """Allow SageMaker to place an endpoint's network interfaces, which have no names yet."""
    return iam.PolicyStatement(
        actions=[
            "ec2:CreateNetworkInterface",
            "ec2:CreateNetworkInterfacePermission",
            "ec2:DeleteNetworkInterface",
            "ec2:DeleteNetworkInterfacePermission",
            "ec2:DescribeDhcpOptions",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVpcs",
        ],
        resources=["*"],
    )
