"""How an endpoint follows its load."""

from __future__ import annotations

from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.scaling_settings import Scaling, ScheduledCapacity

# CloudWatch's ConcurrentRequestsPerModel, every ten seconds: the requests that a container has at
# a time, those that wait inside it included.
METRIC = "SageMakerVariantConcurrentRequestsPerModelHighResolution"


class TargetTracking(Construct):
    """Keeps the concurrent requests of an instance near a target, and a minimum by the clock.

    The service-linked role of Application Auto Scaling does the work. It counts the instances of a
    variant, from whichever of its pools they are.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        endpoint: sagemaker.CfnEndpoint,
        endpoint_name: str,
        variant_name: str,
        settings: Scaling,
    ) -> None:
        super().__init__(scope, id)
        self.scalable_target = autoscaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{endpoint_name}/variant/{variant_name}",
            min_capacity=settings.minimum,
            max_capacity=settings.maximum,
            scheduled_actions=[_action(item) for item in settings.scheduled] or None,
        )
        # The target names the variant in a text, which CloudFormation cannot see through.
        self.scalable_target.node.add_dependency(endpoint)
        self.scaling_policy = autoscaling.CfnScalingPolicy(
            self,
            "Policy",
            policy_name=f"{endpoint_name}-concurrent-requests",
            policy_type="TargetTrackingScaling",
            scaling_target_id=self.scalable_target.ref,
            target_tracking_scaling_policy_configuration=autoscaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=settings.concurrent_requests_per_instance,
                scale_in_cooldown=settings.scale_in_cooldown_seconds,
                scale_out_cooldown=settings.scale_out_cooldown_seconds,
                predefined_metric_specification=autoscaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type=METRIC
                ),
            ),
        )


def _action(scheduled: ScheduledCapacity) -> autoscaling.CfnScalableTarget.ScheduledActionProperty:
    return autoscaling.CfnScalableTarget.ScheduledActionProperty(
        scheduled_action_name=scheduled.name,
        schedule=scheduled.schedule,
        timezone=scheduled.time_zone,
        scalable_target_action=autoscaling.CfnScalableTarget.ScalableTargetActionProperty(
            min_capacity=scheduled.minimum, max_capacity=scheduled.maximum
        ),
    )
