"""A CodeBuild project whose inputs come with each build, and its role and log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from stacks.acknowledgements import acknowledge
from stacks.log_groups import make_log_group
from stacks.permissions import may_write_logs

ROOT = Path(__file__).resolve().parent.parent
# Nothing that tools leave beside sources takes part in an asset, nor in its hash.
EXCLUDED = ("__pycache__", "*.pyc", ".*_cache", ".DS_Store")
QUEUED_MINUTES = 5


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What all projects of an environment share; an existing role takes the place of a new one.

    `key` is the environment's own, if it has one.
    """

    timeout_minutes: int
    log_retention_days: int
    role_arn: str | None
    key: kms.IKey | None


def make_source(scope: Construct, id: str, folder: str, *excluded: str) -> s3_assets.Asset:
    """Make a folder of this repository, less some of its files, the source of builds."""
    return s3_assets.Asset(
        scope,
        id,
        path=str(ROOT / folder),
        exclude=[*EXCLUDED, *excluded],
        ignore_mode=cdk.IgnoreMode.GIT,
    )


class BuildProject(Construct):
    """A CodeBuild project, the role of its builds, and the log that they write."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        description: str,
        settings: BuildSettings,
        source: codebuild.ISource | None,
        build_spec: codebuild.BuildSpec,
        statements: Sequence[iam.PolicyStatement],
        runs_docker: bool,
    ) -> None:
        super().__init__(scope, id)
        self.log_group = make_log_group(
            self,
            "Log",
            name=f"/aws/codebuild/{name}",
            retention_days=settings.log_retention_days,
            key=settings.key,
        )
        compute = codebuild.ComputeType.LARGE if runs_docker else codebuild.ComputeType.MEDIUM
        self.codebuild_project = codebuild.Project(
            self,
            "Project",
            project_name=name,
            description=description,
            role=self._role(settings.role_arn, statements),
            source=source,
            build_spec=build_spec,
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.AMAZON_LINUX_2023_5,
                compute_type=compute,
                privileged=runs_docker,
            ),
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=self.log_group)
            ),
            timeout=cdk.Duration.minutes(settings.timeout_minutes),
            queued_timeout=cdk.Duration.minutes(QUEUED_MINUTES),
            grant_report_group_permissions=False,
            encryption_key=settings.key,
        )
        if settings.key is None:
            acknowledge(
                self.codebuild_project,
                "AwsSolutions-CB4",
                "The builds have no output artifacts that a key of one's own could encrypt.",
            )

    def _role(self, role_arn: str | None, statements: Sequence[iam.PolicyStatement]) -> iam.IRole:
        if role_arn:
            return iam.Role.from_role_arn(self, "Role", role_arn, mutable=False)
        # The policy is part of the role, so that whatever names the role waits for both.
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"),
            inline_policies={
                "Build": iam.PolicyDocument(
                    statements=[may_write_logs(self.log_group), *statements]
                )
            },
        )
        # CodeBuild's own grants are wider than what the builds do.
        return role.without_policy_updates()
