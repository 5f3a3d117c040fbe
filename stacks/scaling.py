"""How an endpoint follows its load."""

from __future__ import annotations

from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

METRIC = "SageMakerVariantInvocationsPerInstance"


class TargetTracking(Construct):
    """Keeps the invocations per instance and minute near a target.

    The service-linked role of Application Auto Scaling does the work.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        endpoint: sagemaker.CfnEndpoint,
        endpoint_name: str,
        variant_name: str,
        minimum: int,
        maximum: int,
        invocations_per_instance: int,
        scale_in_cooldown_seconds: int,
        scale_out_cooldown_seconds: int,
    ) -> None:
        super().__init__(scope, id)
        self.scalable_target = autoscaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{endpoint_name}/variant/{variant_name}",
            min_capacity=minimum,
            max_capacity=maximum,
        )
        # The target names the variant in a text, which CloudFormation cannot see through.
        self.scalable_target.node.add_dependency(endpoint)
        self.scaling_policy = autoscaling.CfnScalingPolicy(
            self,
            "Policy",
            policy_name=f"{endpoint_name}-invocations",
            policy_type="TargetTrackingScaling",
            scaling_target_id=self.scalable_target.ref,
            target_tracking_scaling_policy_configuration=autoscaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=invocations_per_instance,
                scale_in_cooldown=scale_in_cooldown_seconds,
                scale_out_cooldown=scale_out_cooldown_seconds,
                predefined_metric_specification=autoscaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type=METRIC
                ),
            ),
        )
