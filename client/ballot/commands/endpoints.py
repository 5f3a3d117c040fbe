"""`ballot endpoints`: what an environment has deployed, and what really runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ballot.commands.explain import Unusable
from ballot.commands.inventory import (
    DeployedEndpoint,
    DeployedModel,
    Inventory,
    Provenance,
)
from ballot.commands.options import AsJson, Region
from ballot.commands.screen import make_console, print_hanging, printable

_STATUS_STYLES = {"InService": "green", "Failed": "bold red", "UpdateRollbackFailed": "bold red"}
_CDK_PREFIX = "environment="
_ENVIRONMENT_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")

EnvironmentName = Annotated[
    str,
    typer.Option(
        "-c", "--environment", metavar="NAME", help="The environment, as in cdk.json: dev."
    ),
]


def endpoints(
    environment: EnvironmentName,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Show what an environment has deployed, and what of it runs.

    \b
    ballot endpoints -c dev

    Of every endpoint: status, the instances that were really placed, the image
    that runs, the model it was given, and why it failed if it did.

    Needs sagemaker:ListEndpoints, DescribeEndpoint, DescribeEndpointConfig and
    DescribeModel; with ListTags, what they were made of; with s3:GetObject on the
    artifacts, the models' whole SHA-256.
    """
    name = environment_name(environment)
    inventory = Inventory(region)
    found = inventory.of_environment(name)
    if as_json:
        print(json.dumps([some.as_json() for some in found], indent=2))
        return
    console = make_console(sys.stdout)
    for endpoint in found:
        _show(console, endpoint)
    if not found:
        told = f"there is no endpoint of {name} in {inventory.region}"
        typer.echo(f"ballot: {told}; try another --region or AWS_PROFILE", err=True)


def environment_name(text: str) -> str:
    """Return the environment that is meant; `environment=dev`, the CDK's way, means dev.

    Raises:
        Unusable: no environment can have that name.
    """
    name = text.removeprefix(_CDK_PREFIX)
    if not _ENVIRONMENT_NAME.fullmatch(name):
        raise Unusable(f"{name!r} is no environment's name", advice="take one of cdk.json")
    return name


def _show(console: Console, endpoint: DeployedEndpoint) -> None:
    line = Text(printable(endpoint.name), style="bold")
    line.append(f"  {endpoint.status}", style=_STATUS_STYLES.get(endpoint.status, "yellow"))
    line.append(f"  {endpoint.kind or 'not a container of ours'}", style="not bold")
    console.print(line)
    for label, value in _facts(endpoint):
        # Not wrapped: digests and addresses are there to be copied.
        console.print(Text(f"  {label:<10}{printable(value)}"), soft_wrap=True)
    for warning in _warnings(endpoint):
        print_hanging(console, Text("  differs   "), Text(printable(warning), style="bold red"))
    if endpoint.failure_reason:
        reason = Text(printable(endpoint.failure_reason), style="red")
        print_hanging(console, Text("  failure   "), reason)
    console.print()


def _facts(endpoint: DeployedEndpoint) -> Iterator[tuple[str, str]]:
    yield "instances", _instances(endpoint)
    yield "image", endpoint.image_digest or endpoint.image or "none"
    if endpoint.model:
        yield "model", endpoint.model.uri
        yield "SHA-256", _sha256(endpoint.model)
    if endpoint.provenance:
        yield from _provenance(endpoint.provenance)
    if endpoint.changed:
        yield "changed", f"{endpoint.changed:%Y-%m-%d %H:%M} UTC"


def _provenance(provenance: Provenance) -> Iterator[tuple[str, str]]:
    tags = provenance.tags
    made_of = [tags.get("model"), tags.get("model-source")]
    if any(made_of):
        yield "source", ", ".join(filter(None, made_of))
    if "version" in tags:
        yield "version", tags["version"]
    if provenance.batch_model:
        yield "batch", provenance.batch_model


def _warnings(endpoint: DeployedEndpoint) -> Iterator[str]:
    """Say what runs otherwise than it was deployed."""
    tagged = endpoint.provenance
    if tagged is None:
        return
    wanted = {"image": tagged.image_digest, "model": tagged.model_sha256}
    for what in endpoint.differences:
        yield f"this {what} is not the one that was deployed, {wanted[what]}"


def _instances(endpoint: DeployedEndpoint) -> str:
    placed = sum(some.count for some in endpoint.instances)
    told = ", ".join(f"{some.count} x {some.type}" for some in endpoint.instances)
    if not placed:
        told = f"none, of {', '.join(endpoint.instance_types) or 'no known type'}"
    wanted = endpoint.wanted_instances
    return told if wanted in (None, placed) else f"{told} ({wanted} wanted)"


def _sha256(model: DeployedModel) -> str:
    if model.sha256:
        return model.sha256
    if model.sha256_start:
        return f"{model.sha256_start}... (its manifest cannot be read)"
    return "unknown: not an artifact of ours"
