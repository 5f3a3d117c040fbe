"""What CloudFormation asks for, read out of its event and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHA256 = re.compile(r"[0-9a-f]{64}")


class BadRequest(Exception):
    """The custom resource's properties are not what the stacks write."""


@dataclass(frozen=True, kw_only=True)
class ImageWanted:
    """An image under a tag that names its inputs.

    `bucket` has the list of what is in it, and is empty for an image that is only mirrored.
    """

    repository: str
    repository_uri: str
    tag: str
    bucket: str


@dataclass(frozen=True, kw_only=True)
class ModelWanted:
    """A packaged GGUF with a pinned SHA-256; its manifest is the last object that is written."""

    bucket: str
    manifest_key: str
    sha256: str
    compression: str
    tokenizer: Mapping[str, Any] | None

    @property
    def data_uri(self) -> str:
        """What SageMaker is given: the prefix, ending in a slash, or the archive."""
        prefix = f"s3://{self.bucket}/{self.manifest_key.rpartition('/')[0]}/"
        return f"{prefix}model.tar.gz" if self.compression == "gzip" else prefix


Wanted = ImageWanted | ModelWanted


@dataclass(frozen=True, kw_only=True)
class BuildInputs:
    """A build that makes what is wanted; `inputs_hash` covers all that it depends on."""

    project: str
    source_location: str
    inputs_hash: str
    environment: Mapping[str, str]


def owner(event: Mapping[str, Any]) -> str:
    """Return the mark that builds of this custom resource carry."""
    return f"{event['StackId']}/{event['LogicalResourceId']}"


def physical_id(event: Mapping[str, Any]) -> str:
    """Return the resource's id: chosen at its creation, and the same from then on."""
    project = event["ResourceProperties"].get("ProjectName", "")
    return str(event.get("PhysicalResourceId") or f"{project}/{event['LogicalResourceId']}")


def projects(event: Mapping[str, Any]) -> list[str]:
    """Return the projects in which builds of this resource may run; two when it changes."""
    sides = (event["ResourceProperties"], event.get("OldResourceProperties") or {})
    return list(dict.fromkeys(side["ProjectName"] for side in sides if side.get("ProjectName")))


def build_inputs(event: Mapping[str, Any]) -> BuildInputs:
    """Return the build that the properties describe.

    Raises:
        BadRequest: a property is missing or malformed.
    """
    properties = event["ResourceProperties"]
    inputs_hash = _text(properties, "InputsHash")
    if not SHA256.fullmatch(inputs_hash):
        raise BadRequest(f"InputsHash is {inputs_hash!r}, not 64 lower-case hexadecimal digits")
    return BuildInputs(
        project=_text(properties, "ProjectName"),
        source_location=_text(properties, "SourceLocation", empty=True),
        inputs_hash=inputs_hash,
        environment=_environment(properties),
    )


def wanted(event: Mapping[str, Any]) -> Wanted:
    """Return what the properties ask for.

    Raises:
        BadRequest: a property is missing or malformed.
    """
    properties = event["ResourceProperties"]
    match kind := _text(properties, "Kind"):
        case "image":
            return _image(properties)
        case "model":
            return _model(properties)
    raise BadRequest(f"Kind is {kind!r}; allowed: image, model")


def _image(properties: Mapping[str, Any]) -> ImageWanted:
    environment = _environment(properties)
    return ImageWanted(
        repository=_text(properties, "RepositoryName"),
        repository_uri=_text(environment, "REPOSITORY_URI"),
        tag=_text(properties, "ImageTag"),
        bucket=environment.get("ARTIFACT_BUCKET", ""),
    )


def _model(properties: Mapping[str, Any]) -> ModelWanted:
    environment = _environment(properties)
    sha256 = _text(properties, "ExpectedSha256")
    if not SHA256.fullmatch(sha256):
        raise BadRequest(f"ExpectedSha256 is {sha256!r}, not 64 lower-case hexadecimal digits")
    tokenizer = environment.get("MODEL_TOKENIZER")
    return ModelWanted(
        bucket=_text(properties, "ArtifactBucket"),
        manifest_key=_text(properties, "ManifestKey"),
        sha256=sha256,
        compression=environment.get("MODEL_COMPRESSION", "none"),
        tokenizer=_json_object(tokenizer, "MODEL_TOKENIZER") if tokenizer else None,
    )


def _environment(properties: Mapping[str, Any]) -> dict[str, str]:
    environment = _json_object(_text(properties, "Environment"), "Environment")
    if not all(isinstance(value, str) for value in environment.values()):
        raise BadRequest("Environment is not a JSON object of texts")
    return environment


def _json_object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest(f"{what} is not a JSON object")
    return found


def _text(properties: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    value = properties.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise BadRequest(f"the property {name} is missing")
    return value
