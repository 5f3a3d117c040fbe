"""Findings of cdk-nag that are right as they are, each with its reason, beside what they are on."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
from constructs import IConstruct

WILDCARDS = "AwsSolutions-IAM5"


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Accept one finding on a construct and what is in it."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def acknowledge_wildcards(construct: IConstruct, reason: str, *findings: str) -> None:
    """Accept wildcards in policies, each named as in cdk-nag's finding."""
    for finding in findings:
        acknowledge(construct, f"{WILDCARDS}[{finding}]", reason)


def logical_id(construct: IConstruct) -> str:
    """Return the logical id of a construct's resource, by which findings name it."""
    resource = construct.node.default_child
    assert isinstance(resource, cdk.CfnElement), "this is a bug: the construct has no resource"
    stack = cdk.Stack.of(construct)
    return str(stack.resolve(stack.get_logical_id(resource)))


def alarms_finding(construct: IConstruct) -> str:
    """Return how cdk-nag names a policy on all alarms of the account and Region."""
    return _arn_finding(construct, "cloudwatch", "alarm:*")


def log_finding(construct: IConstruct, name: str) -> str:
    """Return how cdk-nag names a policy on the streams of a log group that SageMaker makes."""
    return _arn_finding(construct, "logs", f"log-group:{name}:*")


def _arn_finding(construct: IConstruct, service: str, resource: str) -> str:
    stack = cdk.Stack.of(construct)
    owner = {"Partition": stack.partition, "Region": stack.region, "AccountId": stack.account}
    partition, region, account = (
        f"<AWS::{name}>" if cdk.Token.is_unresolved(value) else value
        for name, value in owner.items()
    )
    return f"Resource::arn:{partition}:{service}:{region}:{account}:{resource}"


def objects_finding(bucket: s3.IBucket, keys: str) -> str:
    """Return how cdk-nag names a policy on some of a bucket's objects."""
    if bucket.node.default_child:
        return f"Resource::<{logical_id(bucket)}.Arn>/{keys}"
    partition = cdk.Stack.of(bucket).partition
    known = "<AWS::Partition>" if cdk.Token.is_unresolved(partition) else partition
    return f"Resource::arn:{known}:s3:::{bucket.bucket_name}/{keys}"
