"""One SageMaker endpoint: model, configuration, and the endpoint that keeps its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.deployment_config import deployment_config
from stacks.environment import Compression, Endpoint
from stacks.rollout_settings import Routing
from stacks.tags import tag

VARIANT = "AllTraffic"
# How often instances report, and the adapter's `/metrics` are read.
METRIC_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class ModelData:
    """Where the packaged model lies: a prefix that ends in a slash, or an archive."""

    uri: str
    compression: Compression


@dataclass(frozen=True, kw_only=True)
class Place:
    """The subnets and security groups of an endpoint in a VPC."""

    subnet_ids: Sequence[str]
    security_group_ids: Sequence[str]


class SageMakerEndpoint(Construct):
    """An endpoint of one variant.

    Model and configuration are replaced on nearly every change and so have no names, the
    configuration also when only the way changes in which the endpoint is updated; endpoint and
    variant keep theirs, and CloudFormation deletes the old configuration once the endpoint has
    moved to the new one. `rollback_alarms` turn an update back that makes them ring, `tags` are
    those of the endpoint alone, and `key` encrypts its volumes.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        settings: Endpoint,
        image_uri: str,
        model_data: ModelData | None,
        environment: Mapping[str, str],
        role_arn: str,
        place: Place | None,
        rollback_alarms: Sequence[cloudwatch.CfnAlarm],
        key: kms.IKey | None,
        tags: Mapping[str, str],
    ) -> None:
        super().__init__(scope, id)
        self.sagemaker_model = make_model(
            self,
            "Model",
            settings=settings,
            image_uri=image_uri,
            model_data=model_data,
            environment=environment,
            role_arn=role_arn,
            place=place,
        )
        deployment = deployment_config(settings.deployment, rollback_alarms)
        # Without it an update would reset the number of instances that scaling arrived at.
        retains_variants = True if settings.scaling else None
        self.sagemaker_config = sagemaker.CfnEndpointConfig(
            self,
            "Config",
            kms_key_id=key.key_arn if key and settings.takes_volume_key else None,
            production_variants=[_variant(settings, self.sagemaker_model.attr_model_name)],
            # The defaults of today, said, for alarms and dashboard count on a sample a minute.
            metrics_config=sagemaker.CfnEndpointConfig.MetricsConfigProperty(
                enable_detailed_observability=True,
                metric_publish_frequency_in_seconds=METRIC_SECONDS,
            ),
        )
        _replace_with_each_change_of(self.sagemaker_config, [deployment, retains_variants])
        self.sagemaker_endpoint = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=name,
            endpoint_config_name=self.sagemaker_config.attr_endpoint_config_name,
            deployment_config=deployment,
            retain_all_variant_properties=retains_variants,
        )
        tag(self.sagemaker_endpoint, tags)


def make_model(
    scope: Construct,
    id: str,
    *,
    settings: Endpoint,
    image_uri: str,
    model_data: ModelData | None,
    environment: Mapping[str, str],
    role_arn: str,
    place: Place | None,
) -> sagemaker.CfnModel:
    """Make a model that nobody names: whatever changes in it makes another one."""
    is_archive = model_data is not None and model_data.compression == "gzip"
    return sagemaker.CfnModel(
        scope,
        id,
        execution_role_arn=role_arn,
        enable_network_isolation=settings.network_isolation,
        vpc_config=_vpc_config(place),
        primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
            image=image_uri,
            environment=dict(environment),
            # Batch transform takes an archive in this way only.
            model_data_url=model_data.uri if model_data and is_archive else None,
            model_data_source=_prefix_source(model_data) if not is_archive else None,
        ),
    )


def _replace_with_each_change_of(config: sagemaker.CfnEndpointConfig, settings: object) -> None:
    """Have CloudFormation make another configuration whenever `settings` of its endpoint change.

    It calls UpdateEndpoint for any change of them, and SageMaker refuses an update to the
    configuration in use. What has another logical id is another resource, with another name.
    """
    stack = cdk.Stack.of(config)
    resolved = json.dumps(stack.resolve(settings), sort_keys=True)
    digest = hashlib.sha256(resolved.encode()).hexdigest()[:8]
    config.override_logical_id(f"{stack.get_logical_id(config)}{digest}")


def _vpc_config(place: Place | None) -> sagemaker.CfnModel.VpcConfigProperty | None:
    if place is None:
        return None
    return sagemaker.CfnModel.VpcConfigProperty(
        subnets=list(place.subnet_ids), security_group_ids=list(place.security_group_ids)
    )


def _prefix_source(
    data: ModelData | None,
) -> sagemaker.CfnModel.ModelDataSourceProperty | None:
    if data is None:
        return None
    return sagemaker.CfnModel.ModelDataSourceProperty(
        s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
            s3_uri=data.uri, s3_data_type="S3Prefix", compression_type="None"
        )
    )


def _variant(
    settings: Endpoint, model_name: str
) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
    types = settings.instance_types
    pools = [
        sagemaker.CfnEndpointConfig.InstancePoolProperty(instance_type=item, priority=priority)
        for priority, item in enumerate(types, start=1)
    ]
    return sagemaker.CfnEndpointConfig.ProductionVariantProperty(
        variant_name=VARIANT,
        model_name=model_name,
        initial_instance_count=settings.instance_count,
        initial_variant_weight=1,
        instance_type=None if settings.pooled else types[0],
        instance_pools=pools if settings.pooled else None,
        variant_instance_provision_timeout_in_seconds=settings.provision_timeout_seconds
        if settings.pooled
        else None,
        inference_ami_version=settings.image.inference_ami_version,
        routing_config=_routing_config(settings.routing),
        container_startup_health_check_timeout_in_seconds=settings.health_timeout_seconds,
        model_data_download_timeout_in_seconds=settings.download_timeout_seconds,
    )


def _routing_config(routing: Routing) -> sagemaker.CfnEndpointConfig.RoutingConfigProperty:
    if routing.strategy == "least_outstanding":
        return sagemaker.CfnEndpointConfig.RoutingConfigProperty(
            routing_strategy="LEAST_OUTSTANDING_REQUESTS"
        )
    return sagemaker.CfnEndpointConfig.RoutingConfigProperty(
        routing_strategy="PREFIX_AWARE",
        prefix_aware_routing_config=sagemaker.CfnEndpointConfig.PrefixAwareRoutingConfigProperty(
            prefix_length=routing.prefix_bytes,
            concurrency_threshold=routing.concurrency_threshold,
        ),
    )
