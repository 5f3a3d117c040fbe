"""One SageMaker endpoint: model, configuration, and the endpoint that keeps its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.environment import Compression, Endpoint

VARIANT = "AllTraffic"


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

    Model and configuration are replaced on nearly every change and so have no names; endpoint and
    variant keep theirs, and CloudFormation deletes the old configuration once the endpoint has
    moved to the new one.
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
    ) -> None:
        super().__init__(scope, id)
        self.sagemaker_model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=role_arn,
            enable_network_isolation=settings.network_isolation,
            vpc_config=_vpc_config(place),
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=image_uri,
                environment=dict(environment),
                model_data_source=_model_data_source(model_data),
            ),
        )
        self.sagemaker_config = sagemaker.CfnEndpointConfig(
            self,
            "Config",
            production_variants=[_variant(settings, self.sagemaker_model.attr_model_name)],
        )
        self.sagemaker_endpoint = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=name,
            endpoint_config_name=self.sagemaker_config.attr_endpoint_config_name,
            # Without it an update would reset the number of instances that scaling arrived at.
            retain_all_variant_properties=True if settings.scaling else None,
        )


def _vpc_config(place: Place | None) -> sagemaker.CfnModel.VpcConfigProperty | None:
    if place is None:
        return None
    return sagemaker.CfnModel.VpcConfigProperty(
        subnets=list(place.subnet_ids), security_group_ids=list(place.security_group_ids)
    )


def _model_data_source(
    data: ModelData | None,
) -> sagemaker.CfnModel.ModelDataSourceProperty | None:
    if data is None:
        return None
    is_archive = data.compression == "gzip"
    return sagemaker.CfnModel.ModelDataSourceProperty(
        s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
            s3_uri=data.uri,
            s3_data_type="S3Object" if is_archive else "S3Prefix",
            compression_type="Gzip" if is_archive else "None",
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
        routing_config=sagemaker.CfnEndpointConfig.RoutingConfigProperty(
            routing_strategy="LEAST_OUTSTANDING_REQUESTS"
        ),
        container_startup_health_check_timeout_in_seconds=settings.health_timeout_seconds,
        model_data_download_timeout_in_seconds=settings.download_timeout_seconds,
    )
