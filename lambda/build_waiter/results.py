"""What builds leave behind, looked up where it lies and checked against what was wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from build_waiter.request import SHA256, ImageWanted, ModelWanted, Wanted

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class BadResult(Exception):
    """A result is malformed, or is not the pinned one."""


class Results:
    """Images in ECR, and packaged models in the artifact bucket."""

    def __init__(self, *, ecr: Any, s3: Any) -> None:
        self._ecr = ecr
        self._s3 = s3

    def find(self, wanted: Wanted) -> dict[str, str] | None:
        """Return the attributes of what is wanted, or None when it is not there.

        Raises:
            BadResult: it is there and malformed.
        """
        match wanted:
            case ImageWanted():
                return self._find_image(wanted)
            case ModelWanted():
                return self._find_model(wanted)

    def require(self, wanted: Wanted) -> dict[str, str]:
        """Return the attributes of what a build was to make.

        Raises:
            BadResult: it is not there, malformed, or not the pinned one.
        """
        attributes = self.find(wanted)
        if attributes is None:
            raise BadResult(f"the build succeeded, but {self._shortfall(wanted)}")
        return attributes

    def _find_image(self, wanted: ImageWanted) -> dict[str, str] | None:
        digest = self._digest(wanted)
        if digest is None or not self._is_listed(wanted, digest):
            return None
        return {"ImageDigest": digest, "ImageUri": f"{wanted.repository_uri}@{digest}"}

    def _digest(self, wanted: ImageWanted) -> str | None:
        try:
            answer = self._ecr.describe_images(
                repositoryName=wanted.repository, imageIds=[{"imageTag": wanted.tag}]
            )
        except self._ecr.exceptions.ImageNotFoundException:
            return None
        digest = str(answer["imageDetails"][0].get("imageDigest", ""))
        if not _DIGEST.fullmatch(digest):
            raise BadResult(
                f"the digest of {wanted.repository}:{wanted.tag} is {digest!r}, "
                "not sha256:<64 lower-case hexadecimal digits>"
            )
        return digest

    def _is_listed(self, wanted: ImageWanted, digest: str) -> bool:
        """Tell whether the list of what is in an image is there, or none is wanted."""
        if not wanted.bucket:
            return True
        key = f"sboms/{digest.removeprefix('sha256:')}.cdx.json"
        try:
            self._s3.head_object(Bucket=wanted.bucket, Key=key)
        except self._s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            return False
        return True

    def _find_model(self, wanted: ModelWanted) -> dict[str, str] | None:
        manifest = self._manifest(wanted)
        if manifest is None or _mismatch(manifest, wanted):
            return None
        return {"ModelDataUri": wanted.data_uri, "GgufSha256": wanted.sha256}

    def _shortfall(self, wanted: Wanted) -> str:
        """Return why `find` found nothing."""
        if isinstance(wanted, ImageWanted):
            image = f"{wanted.repository}:{wanted.tag}"
            return f"there is no image {image}{' that is listed' if wanted.bucket else ''}"
        manifest = self._manifest(wanted)
        where = f"s3://{wanted.bucket}/{wanted.manifest_key}"
        return (
            f"{where} is not there"
            if manifest is None
            else (f"{where} {_mismatch(manifest, wanted)}")
        )

    def _manifest(self, wanted: ModelWanted) -> Mapping[str, Any] | None:
        try:
            answer = self._s3.get_object(Bucket=wanted.bucket, Key=wanted.manifest_key)
        except self._s3.exceptions.NoSuchKey:
            return None
        where = f"s3://{wanted.bucket}/{wanted.manifest_key}"
        try:
            manifest = json.loads(answer["Body"].read())
        except (ValueError, RecursionError) as error:
            raise BadResult(f"{where} is not JSON: {error}") from None
        if not isinstance(manifest, dict):
            raise BadResult(f"{where} is not a JSON object")
        return manifest


def _mismatch(manifest: Mapping[str, Any], wanted: ModelWanted) -> str:
    """Return how the manifest differs from what is wanted; an empty text when it does not."""
    found = manifest.get("sha256")
    if not isinstance(found, str) or not SHA256.fullmatch(found):
        return f"says {found!r} for the SHA-256, not 64 lower-case hexadecimal digits"
    if found != wanted.sha256:
        return f"says SHA-256 {found}, but {wanted.sha256} is pinned"
    if manifest.get("tokenizer_source") != wanted.tokenizer:
        return "was made with another tokenizer"
    return ""
