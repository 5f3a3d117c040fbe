"""The stack of what an environment's endpoints share: bucket, images, builds, network."""

from __future__ import annotations

import aws_cdk as cdk
import jsii
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.acknowledgements import acknowledge_wildcards, objects_finding
from stacks.artifact_bucket import ArtifactBucket
from stacks.build_project import BuildSettings
from stacks.checked_build import BuildWaiter
from stacks.checked_rollout import RolloutCheck
from stacks.environment import NEW_KEY, Endpoint, Environment, NewVpc
from stacks.environment_key import EnvironmentKey
from stacks.image_builds import LINES, ImageBuilds, line_of
from stacks.lasting_parts import LastingParts
from stacks.model_builds import ModelBuilds
from stacks.monitoring import EnvironmentMonitoring
from stacks.network import Network
from stacks.permissions import (
    MANIFEST,
    MODELS,
    SBOMS,
    may_build,
    may_find_images,
    may_find_models,
    may_find_sboms,
    may_read_logs,
    may_read_with,
)
from stacks.tags import tag_stack


class ArtifactsStack(cdk.Stack):
    """The stack that comes first and changes least: no pin of a model or an image is in it.

    Endpoint stacks hold the builds that wait for results, so that a build that fails takes down
    one endpoint's deployment only. What this stack exports changes neither with a build nor with
    what endpoints use: CloudFormation refuses to take back what a stack that is not updated yet
    imports. Only the role of an endpoint comes and goes, with the endpoint's entry.
    """

    def __init__(
        self, scope: Construct, id: str, *, environment: Environment, env: cdk.Environment
    ) -> None:
        super().__init__(
            scope,
            id,
            env=env,
            termination_protection=environment.termination_protection,
            description=f"Ballot: artifacts and builds of environment {environment.name}",
        )
        self.settings = environment
        self.key = self._key()
        self.s3_bucket = self._bucket()
        self.images = {line: self._image_builds(line) for line in LINES}
        self.models = self._model_builds()
        self.build_waiter = self._build_waiter()
        self.rollout_check = self._rollout_check()
        self.lasting_parts = {
            endpoint.name: self._lasting_parts(endpoint) for endpoint in environment.endpoints
        }
        self.network = (
            self._network(environment.vpc) if isinstance(environment.vpc, NewVpc) else None
        )
        self.monitoring = self._monitoring()
        self._export()
        tag_stack(self, environment.name, environment.tags)

    @property
    @jsii.member(jsii_name="availabilityZones")
    def availability_zones(self) -> list[str]:
        """The Region's zones as CloudFormation finds them: synthesizing looks nothing up."""
        return [cdk.Fn.select(index, cdk.Fn.get_azs()) for index in range(6)]

    def _key(self) -> kms.IKey | None:
        chosen = self.settings.kms_key
        if chosen == NEW_KEY:
            return EnvironmentKey(self, "Key", environment=self.settings.name).kms_key
        return kms.Key.from_key_arn(self, "Key", chosen) if chosen else None

    def _bucket(self) -> s3.IBucket:
        existing = self.settings.artifacts.bucket_name
        if existing:
            return s3.Bucket.from_bucket_name(self, "Bucket", existing)
        made = ArtifactBucket(
            self,
            "Bucket",
            log_name=self._name("auto-delete"),
            log_retention_days=self.settings.log_retention_days,
            key=self.key,
        )
        return made.s3_bucket

    def _image_builds(self, line: str) -> ImageBuilds:
        return ImageBuilds(
            self,
            f"Image-{line}",
            name=f"ballot-{self.settings.name}",
            line=line,
            images=[image for image in self.settings.images if line_of(image) == line],
            settings=self._build_settings(self.settings.artifacts.image_build_role_arn),
            bucket=self.s3_bucket,
        )

    def _model_builds(self) -> ModelBuilds:
        return ModelBuilds(
            self,
            "Model",
            name=self._name("model"),
            settings=self._build_settings(self.settings.artifacts.model_build_role_arn),
            bucket=self.s3_bucket,
            models=self.settings.models,
        )

    def _build_settings(self, role_arn: str | None) -> BuildSettings:
        return BuildSettings(
            timeout_minutes=self.settings.build_timeout_minutes,
            log_retention_days=self.settings.log_retention_days,
            role_arn=role_arn,
            key=self.key,
        )

    def _build_waiter(self) -> BuildWaiter:
        projects = [*(images.project for images in self.images.values()), self.models.project]
        waiter = BuildWaiter(
            self,
            "BuildWaiter",
            name=self._name("build-waiter"),
            statements=[
                may_build([project.codebuild_project for project in projects]),
                may_read_logs([project.log_group for project in projects]),
                may_find_images([item.ecr_repository for item in self.images.values()]),
                *may_find_models(self.s3_bucket),
                *may_find_sboms(self.s3_bucket),
                *may_read_with(self.key),
            ],
            build_timeout_minutes=self.settings.build_timeout_minutes,
            log_retention_days=self.settings.log_retention_days,
            key=self.key,
        )
        acknowledge_wildcards(
            waiter,
            "Manifests lie beside the models, and lists of what is in images under their digests: "
            "checksums that change with every pin.",
            objects_finding(self.s3_bucket, f"{MODELS}*/{MANIFEST}"),
            objects_finding(self.s3_bucket, f"{SBOMS}*"),
        )
        return waiter

    def _rollout_check(self) -> RolloutCheck:
        return RolloutCheck(
            self,
            "RolloutCheck",
            name=self._name("rollout-check"),
            endpoint_names=[self._name(endpoint.name) for endpoint in self.settings.endpoints],
            log_retention_days=self.settings.log_retention_days,
            key=self.key,
        )

    def _network(self, vpc: NewVpc) -> Network:
        network = Network(
            self,
            "Network",
            cidr=vpc.cidr,
            availability_zones=vpc.availability_zones,
            log_name=self._name("flows"),
            log_retention_days=self.settings.log_retention_days,
            key=self.key,
        )
        # What comes later goes earlier: the group waits for the last network interface to go,
        # and so the roles, which SageMaker removes interfaces with, are still there.
        roles = [parts.role for parts in self.lasting_parts.values() if parts.role]
        network.ec2_security_group.node.add_dependency(*roles)
        return network

    def _lasting_parts(self, endpoint: Endpoint) -> LastingParts:
        return LastingParts(
            self,
            f"Endpoint-{endpoint.name}",
            name=self._name(endpoint.name),
            settings=endpoint,
            repositories=[images.ecr_repository for images in self.images.values()],
            bucket=self.s3_bucket,
            in_vpc=bool(self.settings.vpc or endpoint.vpc),
            log_retention_days=self.settings.log_retention_days,
            key=self.key,
        )

    def _monitoring(self) -> EnvironmentMonitoring:
        return EnvironmentMonitoring(
            self,
            "Monitoring",
            settings=self.settings,
            log_groups={name: parts.log_group for name, parts in self.lasting_parts.items()},
            key=self.key,
        )

    def _export(self) -> None:
        """Export all that an endpoint's stack may import, whether or not one does by now."""
        exported = [
            self.build_waiter.service_token,
            self.rollout_check.service_token,
            *self.models.exported,
            *(value for images in self.images.values() for value in images.exported),
            *(parts.role_arn for parts in self.lasting_parts.values()),
            *self.monitoring.exported,
            *(self.network.exported if self.network else []),
            *([self.key.key_arn] if self.key else []),
        ]
        for value in exported:
            # What exists already goes by its own name.
            if cdk.Token.is_unresolved(value):
                self.export_value(value)

    def _name(self, what: str) -> str:
        return f"ballot-{self.settings.name}-{what}"
