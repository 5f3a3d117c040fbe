"""What is deployed: endpoints as SageMaker describes them, and the models in S3 for them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError

from ballot.commands.aws import CONFIG, aws_errors, make_session
from ballot.errors import AccessDenied, BallotError, EndpointNotFound

MANIFEST = "model-manifest.json"
_MANIFEST_BYTES = 1 << 20
_OUR_TAGS = "ballot:"
_PREFIX_DIGITS = re.compile(r"/models/([0-9a-f]{16})(?:-gzip)?/")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# The statuses in which an endpoint answers, some of them on its old configuration.
ANSWERING = frozenset({"InService", "Updating", "SystemUpdating", "RollingBack"})
_GONE = re.compile(r"could not find", re.IGNORECASE)


@dataclass(frozen=True)
class Instances:
    """How many instances of a type are running."""

    type: str
    count: int


@dataclass(frozen=True)
class DeployedModel:
    """The model data of an endpoint: its S3 URI, and the SHA-256 of the GGUF in it.

    `sha256` is the manifest's; where that cannot be read, it is None and `sha256_start`, which the
    URI of an artifact of ours holds, has the first 16 digits.
    """

    uri: str
    sha256: str | None

    @property
    def sha256_start(self) -> str | None:
        """The first digits that the artifact's URI promises."""
        found = _PREFIX_DIGITS.search(self.uri)
        return found[1] if found else None

    def is_of(self, sha256: str) -> bool | None:
        """Return whether a GGUF of this SHA-256 is the deployed one; None: it cannot be told."""
        known = [digits for digits in (self.sha256, self.sha256_start) if digits]
        return all(sha256.startswith(digits) for digits in known) if known else None


@dataclass(frozen=True)
class Provenance:
    """What an endpoint's tags say that it was made of: those of `ballot:`, without that."""

    tags: Mapping[str, str]

    @property
    def image_digest(self) -> str | None:
        """The digest of the image that was checked and deployed."""
        return self.tags.get("image-digest")

    @property
    def model_sha256(self) -> str | None:
        """The SHA-256 of the GGUF that was checked and deployed."""
        return self.tags.get("model-sha256")

    @property
    def batch_model(self) -> str | None:
        """The name of the SageMaker model for batch transform."""
        return self.tags.get("batch-model")

    @property
    def kms_key(self) -> str | None:
        """The ARN of the environment's key, which is to encrypt bulk work, too."""
        return self.tags.get("kms-key")


@dataclass(frozen=True, kw_only=True)
class DeployedEndpoint:
    """One endpoint, as it is now. What SageMaker does not say, or no longer has, is None.

    `instances` are those that were really placed, by type; `instance_types` are those that the
    configuration allows, in order of preference. `provenance` is None where the caller may not
    read tags; `model_name` is the SageMaker model's.
    """

    name: str
    status: str
    kind: str | None
    instances: tuple[Instances, ...]
    wanted_instances: int | None
    instance_types: tuple[str, ...]
    image: str | None
    model_name: str | None
    model: DeployedModel | None
    provenance: Provenance | None
    changed: datetime | None
    failure_reason: str | None

    @property
    def image_digest(self) -> str | None:
        """The digest of the image that runs."""
        _, _, digest = (self.image or "").partition("@")
        return digest or None

    @property
    def differences(self) -> tuple[str, ...]:
        """What runs otherwise than the tags say: `image`, `model`."""
        tagged = self.provenance or Provenance({})
        digest, sha256 = tagged.image_digest, tagged.model_sha256
        return tuple(
            what
            for what, differs in (
                ("image", digest and self.image_digest and digest != self.image_digest),
                ("model", sha256 and self.model and self.model.is_of(sha256) is False),
            )
            if differs
        )

    def as_json(self) -> dict[str, Any]:
        """Return the endpoint for `--json`."""
        return {
            "name": self.name,
            "status": self.status,
            "kind": self.kind,
            "instances": [vars(some) for some in self.instances],
            "wanted_instances": self.wanted_instances,
            "instance_types": list(self.instance_types),
            "image": self.image,
            "image_digest": self.image_digest,
            "model_uri": self.model.uri if self.model else None,
            "model_sha256": self.model.sha256 if self.model else None,
            "provenance": dict(self.provenance.tags) if self.provenance else None,
            "differences": list(self.differences),
            "changed": self.changed.isoformat() if self.changed else None,
            "failure_reason": self.failure_reason,
        }


class Inventory:
    """Looks endpoints up, with the caller's AWS credentials.

    Every method raises BallotError where AWS refuses or cannot be reached.
    """

    def __init__(self, region: str | None) -> None:
        self._session = make_session(region)
        self._sha256s: dict[str, str | None] = {}

    @property
    def region(self) -> str | None:
        """The Region: as given, of the environment, or of the AWS profile."""
        found: str | None = self._session.region_name
        return found

    def caller(self) -> dict[str, str]:
        """Return `Account` and `Arn` of whose credentials these are."""
        with aws_errors():
            # STS answers in every Region, so a missing one does not hide whose credentials it is.
            sts = self._session.client("sts", region_name=self.region or "us-east-1", config=CONFIG)
            found = sts.get_caller_identity()
        return {key: found[key] for key in ("Account", "Arn")}

    def of_environment(self, environment: str) -> list[DeployedEndpoint]:
        """Return the endpoints of an environment, by name."""
        found = []
        for name in self.names(f"ballot-{environment}-"):
            try:
                found.append(self.endpoint(name))
            except EndpointNotFound:
                continue  # deleted since it was listed
        return found

    def names(self, prefix: str) -> list[str]:
        """Return the names of all endpoints that begin with `prefix`."""
        with aws_errors():
            pages = self._sagemaker.get_paginator("list_endpoints").paginate(NameContains=prefix)
            names = [item["EndpointName"] for page in pages for item in page["Endpoints"]]
        return sorted(name for name in names if name.startswith(prefix))

    def endpoint(self, name: str) -> DeployedEndpoint:
        """Return one endpoint.

        Raises:
            EndpointNotFound: there is none of that name in this account and Region.
        """
        found = self._describe("endpoint", name)
        if found is None:
            raise EndpointNotFound(
                f"there is no endpoint {name} in {self.region}", code="endpoint_not_found"
            )
        summary: dict[str, Any] = next(iter(found.get("ProductionVariants", ())), {})
        variant = self._variant(found.get("EndpointConfigName"))
        model = self._describe("model", variant.get("ModelName")) or {}
        container = model.get("PrimaryContainer", {})
        images = summary.get("DeployedImages", ())
        return DeployedEndpoint(
            name=name,
            status=found["EndpointStatus"],
            kind=_kind(container.get("Environment", {})),
            instances=_instances(summary, variant),
            wanted_instances=summary.get("DesiredInstanceCount"),
            instance_types=_instance_types(variant),
            image=images[0].get("ResolvedImage") if images else container.get("Image"),
            model_name=variant.get("ModelName"),
            model=self._model(container),
            provenance=self._provenance(found["EndpointArn"]),
            changed=_in_utc(found.get("LastModifiedTime")),
            failure_reason=found.get("FailureReason"),
        )

    @cached_property
    def _sagemaker(self) -> Any:
        return self._session.client("sagemaker", config=CONFIG)

    @cached_property
    def _s3(self) -> Any:
        return self._session.client("s3", config=CONFIG)

    def _variant(self, config_name: str | None) -> dict[str, Any]:
        """Return the first variant that a configuration asks for; a stack of ours has just one."""
        found = self._describe("endpoint_config", config_name) or {}
        variant: dict[str, Any] = next(iter(found.get("ProductionVariants", ())), {})
        return variant

    def _describe(self, kind: str, name: str | None) -> dict[str, Any] | None:
        """Return a description, or None where there is nothing of that name."""
        if name is None:
            return None
        parameter = "".join(word.title() for word in kind.split("_")) + "Name"
        with aws_errors():
            try:
                found: dict[str, Any] = getattr(self._sagemaker, f"describe_{kind}")(
                    **{parameter: name}
                )
            except ClientError as error:
                if _GONE.search(error.response.get("Error", {}).get("Message", "")):
                    return None
                raise
        return found

    def _provenance(self, arn: str) -> Provenance | None:
        try:
            with aws_errors():
                pages = list(self._sagemaker.get_paginator("list_tags").paginate(ResourceArn=arn))
        except AccessDenied:
            return None
        tags = {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
        return Provenance(
            {
                key.removeprefix(_OUR_TAGS): value
                for key, value in sorted(tags.items())
                if key.startswith(_OUR_TAGS)
            }
        )

    def _model(self, container: dict[str, Any]) -> DeployedModel | None:
        source = container.get("ModelDataSource", {}).get("S3DataSource", {})
        uri = source.get("S3Uri") or container.get("ModelDataUrl")
        if not uri:
            return None
        return DeployedModel(uri, self._sha256(uri))

    def _sha256(self, uri: str) -> str | None:
        if uri not in self._sha256s:
            self._sha256s[uri] = self._read_sha256(uri)
        return self._sha256s[uri]

    def _read_sha256(self, uri: str) -> str | None:
        """Return the SHA-256 of the manifest beside the model, or None where it cannot be read."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        folder = key.rpartition("/")[0]
        try:
            with aws_errors():
                found = self._s3.get_object(Bucket=bucket, Key=f"{folder}/{MANIFEST}")
                manifest = json.loads(found["Body"].read(_MANIFEST_BYTES))
            sha256 = manifest["sha256"]
        except (BallotError, ValueError, RecursionError, KeyError, TypeError):
            return None
        return sha256 if isinstance(sha256, str) and _SHA256.fullmatch(sha256) else None


def _kind(environment: dict[str, str]) -> str | None:
    """Return which of the two containers reads these variables."""
    if any(name.startswith("SM_LLAMA_CPP_") for name in environment):
        return "chat"
    if any(name.startswith("BALLOT_") for name in environment):
        return "decision"
    return None


def _instances(summary: dict[str, Any], variant: dict[str, Any]) -> tuple[Instances, ...]:
    pools = summary.get("InstancePools")
    if pools is None:
        counts = [(variant.get("InstanceType"), summary.get("CurrentInstanceCount", 0))]
    else:
        counts = [(pool["InstanceType"], pool.get("CurrentInstanceCount", 0)) for pool in pools]
    return tuple(Instances(type, count) for type, count in counts if type and count)


def _instance_types(variant: dict[str, Any]) -> tuple[str, ...]:
    pools = sorted(variant.get("InstancePools", ()), key=lambda pool: pool["Priority"])
    types = [pool["InstanceType"] for pool in pools] or [variant.get("InstanceType")]
    return tuple(type for type in types if type)


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment.astimezone(timezone.utc) if moment else None
