"""ECR where ministack differs: images that are asked for and missing, and the public registry."""

from __future__ import annotations

import base64
import time

from ministack.core import iam_actions
from ministack.core.responses import error_response_json, get_account_id
from ministack.services import ecr

from emulator.inside.services import Json, JsonService, Response, check_requests

_TOKEN_SECONDS = 12 * 3600
_describe_images = ecr._describe_images


def _describe_existing_images(data: Json) -> Response:
    """Refuse images that are not there, which ministack leaves out of its answer."""
    name = data.get("repositoryName", "")
    for image_id in data.get("imageIds") or () if name in ecr._repositories else ():
        if ecr._find_image(name, image_id) is None:
            shown = ", ".join(
                f"{key}:'{image_id.get(key, 'null')}'" for key in ("imageDigest", "imageTag")
            )
            refusal: Response = error_response_json(
                "ImageNotFoundException",
                f"The image with imageId {{{shown}}} does not exist within the repository with "
                f"name '{name}' in the registry with id '{get_account_id()}'",
                400,
            )
            return refusal
    answer: Response = _describe_images(data)
    return answer


def _public_token(_: Json) -> Json:
    token = base64.b64encode(b"AWS:emulated").decode()
    expires = time.time() + _TOKEN_SECONDS
    return {"authorizationData": {"authorizationToken": token, "expiresAt": expires}}


PUBLIC_API = JsonService("ecr-public", {"GetAuthorizationToken": _public_token})


def install() -> None:
    """Mend the private registry and register the public one."""
    ecr._describe_images = _describe_existing_images
    check_requests("ecr")
    iam_actions.SERVICE_TO_IAM_NAMESPACE["ecr-public"] = "ecr-public"
    PUBLIC_API.register()
