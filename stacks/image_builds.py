"""The repositories of images, and the projects that fill them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import aws_cdk as cdk
import yaml
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.acknowledgements import acknowledge_wildcards, objects_finding
from stacks.build_project import ROOT, BuildProject, BuildSettings, make_source
from stacks.catalog import BUILT_IMAGES, Image
from stacks.checked_build import BuildPlan, hash_inputs
from stacks.permissions import (
    SBOMS,
    may_pull_bases,
    may_push,
    may_read_source,
    may_write_sboms,
    may_write_with,
)

LINES = (*BUILT_IMAGES, "chat")
DOCKERFILES = {"cpu": "Dockerfile", "cuda": "Dockerfile.cuda"}

_KEPT_IMAGES = 30
_MIRROR = "mirror.buildspec.yml"


def line_of(image: Image) -> str:
    """Return which line of images one belongs to: cpu, cuda, or chat for both chat images."""
    return image.name if image.name in BUILT_IMAGES else "chat"


class ImageBuilds(Construct):
    """One line of images: the repository, and the project that builds or mirrors into it."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        line: str,
        images: Collection[Image],
        settings: BuildSettings,
        bucket: s3.IBucket,
    ) -> None:
        super().__init__(scope, id)
        self._bucket = bucket
        self.ecr_repository = ecr.Repository(
            self,
            "Repository",
            repository_name=f"{name}-{line}",
            encryption=ecr.RepositoryEncryption.KMS if settings.key else None,
            encryption_key=settings.key,
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
            lifecycle_rules=[
                ecr.LifecycleRule(description="Old builds", max_image_count=_KEPT_IMAGES)
            ],
        )
        self._source = (
            make_source(self, "Source", "container", _MIRROR) if line in BUILT_IMAGES else None
        )
        self.project = self._make_project(
            f"{name}-image-{line}",
            settings,
            [*may_push(self.ecr_repository), *may_pull_bases([image.base for image in images])],
        )
        acknowledge_wildcards(
            self.project,
            "Logging in to ECR and to its public gallery names no resource; the list of what is in "
            "an image lies under its digest, which changes with every build.",
            "Resource::*",
            *([objects_finding(bucket, f"{SBOMS}*")] if self._source else []),
        )

    @property
    def exported(self) -> list[str]:
        """What the stacks that use `plan` import."""
        return [
            self.project.codebuild_project.project_name,
            self.ecr_repository.repository_name,
            self.ecr_repository.repository_arn,
            self._bucket.bucket_name,
        ]

    def plan(self, image: Image) -> BuildPlan:
        """Return the build that makes or mirrors an image."""
        inputs = {"BASE_IMAGE": image.base}
        if image.bindings:
            inputs |= {"DOCKERFILE": DOCKERFILES[image.name], "BINDINGS": image.bindings}
        source = self._source
        inputs_hash = hash_inputs(source.asset_hash if source else _mirror_text(), inputs)
        return BuildPlan(
            project_name=self.project.codebuild_project.project_name,
            source_location=f"{source.s3_bucket_name}/{source.s3_object_key}" if source else "",
            inputs_hash=inputs_hash,
            inputs={**inputs, "IMAGE_TAG": inputs_hash},
            settled={
                "REPOSITORY_URI": self.ecr_repository.repository_uri,
                **({"ARTIFACT_BUCKET": self._bucket.bucket_name} if source else {}),
            },
            result={
                "Kind": "image",
                "RepositoryName": self.ecr_repository.repository_name,
                "ImageTag": inputs_hash,
            },
        )

    def _make_project(
        self, name: str, settings: BuildSettings, statements: Sequence[iam.PolicyStatement]
    ) -> BuildProject:
        source = self._source
        if source is None:
            return BuildProject(
                self,
                "Build",
                name=name,
                description="Mirrors a chat image by its digest",
                settings=settings,
                source=None,
                build_spec=codebuild.BuildSpec.from_object(yaml.safe_load(_mirror_text())),
                statements=statements,
                runs_docker=True,
            )
        return BuildProject(
            self,
            "Build",
            name=name,
            description="Builds a decision image on a base fixed by its digest",
            settings=settings,
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_source_filename("buildspec.yml"),
            statements=[
                *may_read_source(source),
                *statements,
                may_write_sboms(self._bucket),
                *may_write_with(settings.key),
            ],
            runs_docker=True,
        )


def _mirror_text() -> str:
    return (ROOT / "container" / _MIRROR).read_text("utf-8")
