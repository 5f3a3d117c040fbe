"""How SageMaker moves an endpoint to a new configuration, in the words of its API."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker

from stacks.rollout_settings import PLAIN_DEPLOYMENT, Deployment

_TRAFFIC = {"all_at_once": "ALL_AT_ONCE", "canary": "CANARY", "linear": "LINEAR"}


def deployment_config(
    deployment: Deployment | None, alarms: Sequence[cloudwatch.CfnAlarm]
) -> sagemaker.CfnEndpoint.DeploymentConfigProperty | None:
    """Return what turns to the new instances when, and which alarms turn it back.

    An endpoint that says nothing of it is updated as SageMaker does by itself, except that the old
    instances stay for as long as its alarms, if it has any, need to ring.
    """
    if deployment is None and not alarms:
        return None
    chosen = deployment or PLAIN_DEPLOYMENT
    is_rolling = chosen.strategy == "rolling"
    return sagemaker.CfnEndpoint.DeploymentConfigProperty(
        blue_green_update_policy=None if is_rolling else _blue_green(chosen),
        rolling_update_policy=_rolling(chosen) if is_rolling else None,
        auto_rollback_configuration=_rollback(alarms) if alarms else None,
    )


def _rollback(
    alarms: Sequence[cloudwatch.CfnAlarm],
) -> sagemaker.CfnEndpoint.AutoRollbackConfigProperty:
    return sagemaker.CfnEndpoint.AutoRollbackConfigProperty(
        alarms=[sagemaker.CfnEndpoint.AlarmProperty(alarm_name=alarm.ref) for alarm in alarms]
    )


def _blue_green(chosen: Deployment) -> sagemaker.CfnEndpoint.BlueGreenUpdatePolicyProperty:
    return sagemaker.CfnEndpoint.BlueGreenUpdatePolicyProperty(
        traffic_routing_configuration=sagemaker.CfnEndpoint.TrafficRoutingConfigProperty(
            type=_TRAFFIC[chosen.strategy],
            wait_interval_in_seconds=chosen.wait_seconds,
            canary_size=_size(chosen) if chosen.strategy == "canary" else None,
            linear_step_size=_size(chosen) if chosen.strategy == "linear" else None,
        ),
        termination_wait_in_seconds=chosen.bake_seconds,
        maximum_execution_timeout_in_seconds=chosen.max_seconds,
    )


def _rolling(chosen: Deployment) -> sagemaker.CfnEndpoint.RollingUpdatePolicyProperty:
    return sagemaker.CfnEndpoint.RollingUpdatePolicyProperty(
        maximum_batch_size=_size(chosen),
        wait_interval_in_seconds=chosen.wait_seconds,
        maximum_execution_timeout_in_seconds=chosen.max_seconds,
    )


def _size(chosen: Deployment) -> sagemaker.CfnEndpoint.CapacitySizeProperty:
    assert chosen.percent is not None, "this is a bug: what moves in steps has a size"
    return sagemaker.CfnEndpoint.CapacitySizeProperty(type="CAPACITY_PERCENT", value=chosen.percent)
