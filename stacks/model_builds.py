"""The project that packages models."""

from __future__ import annotations

from collections.abc import Collection

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.acknowledgements import acknowledge_wildcards, objects_finding
from stacks.build_project import BuildProject, BuildSettings, make_source
from stacks.catalog import Model
from stacks.checked_build import BuildPlan, compact_json, hash_inputs
from stacks.environment import Compression
from stacks.permissions import (
    MANIFEST,
    MODELS,
    may_read_source,
    may_write_models,
    may_write_with,
)


class ModelBuilds(Construct):
    """Packages pinned models into a bucket, each under its checksum."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        settings: BuildSettings,
        bucket: s3.IBucket,
        models: Collection[Model],
    ) -> None:
        super().__init__(scope, id)
        self._bucket = bucket
        self._source = make_source(self, "Source", "model")
        self.project = BuildProject(
            self,
            "Build",
            name=name,
            description="Fetches, checks and uploads a pinned model",
            settings=settings,
            source=codebuild.Source.s3(bucket=self._source.bucket, path=self._source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_source_filename("buildspec.yml"),
            statements=[
                *may_read_source(self._source),
                *may_write_models(bucket),
                *may_write_with(settings.key),
                *_may_read_origins(models),
            ],
            runs_docker=False,
        )
        acknowledge_wildcards(
            self.project,
            "The build puts models under their checksums, which change with every pin.",
            objects_finding(bucket, f"{MODELS}*"),
        )

    @property
    def exported(self) -> list[str]:
        """What the stacks that use `plan` import."""
        return [self.project.codebuild_project.project_name, self._bucket.bucket_name]

    def plan(self, model: Model, compression: Compression) -> BuildPlan:
        """Return the build that packages a model."""
        inputs = {
            "MODEL_SOURCE": compact_json(model.source),
            "MODEL_SHA256": model.sha256,
            "MODEL_TOKENIZER": compact_json(model.tokenizer) if model.tokenizer else "",
            "MODEL_COMPRESSION": compression,
        }
        return BuildPlan(
            project_name=self.project.codebuild_project.project_name,
            source_location=f"{self._source.s3_bucket_name}/{self._source.s3_object_key}",
            inputs_hash=hash_inputs(self._source.asset_hash, inputs),
            inputs=inputs,
            settled={"ARTIFACT_BUCKET": self._bucket.bucket_name},
            result={
                "Kind": "model",
                "ArtifactBucket": self._bucket.bucket_name,
                "ManifestKey": f"{_prefix(model, compression)}{MANIFEST}",
                "ExpectedSha256": model.sha256,
            },
        )


def _prefix(model: Model, compression: Compression) -> str:
    suffix = "-gzip" if compression == "gzip" else ""
    return f"{MODELS}{model.sha256[:16]}{suffix}/"


def _may_read_origins(models: Collection[Model]) -> list[iam.PolicyStatement]:
    """Allow reading the S3 objects that models come from, each shard of a split one by name."""
    uris = sorted({uri for model in models for uri in model.s3_uris})
    if not uris:
        return []
    objects = [f"arn:{cdk.Aws.PARTITION}:s3:::{uri.removeprefix('s3://')}" for uri in uris]
    return [iam.PolicyStatement(actions=["s3:GetObject", "s3:GetObjectVersion"], resources=objects)]
