"""The stacks of an environment, wired together."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from stacks.artifacts import ArtifactsStack
from stacks.endpoint import EndpointStack
from stacks.environment import Environment


def assemble(scope: Construct, environment: Environment, *, env: cdk.Environment) -> None:
    """Make `Ballot-<environment>-Artifacts`, then a stack for each endpoint."""
    prefix = f"Ballot-{environment.name}"
    artifacts = ArtifactsStack(scope, f"{prefix}-Artifacts", environment=environment, env=env)
    for endpoint in environment.endpoints:
        EndpointStack(
            scope, f"{prefix}-{endpoint.name}", endpoint=endpoint, artifacts=artifacts, env=env
        )
