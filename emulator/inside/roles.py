"""IAM as the emulated services need it: who assumes which role, and what a request is about."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

import botocore.session
import ministack.app as ministack_app
from botocore.config import Config as ClientConfig
from ministack.core import iam_actions
from ministack.core.responses import get_account_id, get_region
from ministack.services import iam, sts

from emulator.inside.config import CONFIG

_SESSION = botocore.session.Session()
_SESSION_LOCK = threading.Lock()
_DATA_PLANE = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
    "async-invocations": "InvokeEndpointAsync",
}
_SAGEMAKER_NAMES = {
    # Before the model that the job names beside it.
    "TransformJobName": "transform-job",
    "ModelName": "model",
    "EndpointConfigName": "endpoint-config",
    "EndpointName": "endpoint",
}


class RoleError(Exception):
    """A service cannot assume a role."""


def sagemaker_arn(kind: str, name: str) -> str:
    """Return the ARN of a SageMaker resource, in lower case as SageMaker writes it."""
    return f"arn:aws:sagemaker:{get_region()}:{get_account_id()}:{kind}/{name.lower()}"


def assume(role_arn: str, *, service: str, session: str) -> dict[str, str]:
    """Return the variables of a session of `role_arn` that `service` has assumed.

    Raises:
        RoleError: there is no such role, or it does not trust the service.
    """
    if not ministack_app.AUTH:
        return {"AWS_ACCESS_KEY_ID": get_account_id(), "AWS_SECRET_ACCESS_KEY": "test"}
    name = role_arn.rpartition("/")[2]
    role = iam._roles.get(name)
    if role is None:
        raise RoleError(f"the role {role_arn} does not exist")
    if not _trusts(role.get("AssumeRolePolicyDocument"), service):
        raise RoleError(f"the role {role_arn} does not trust {service}")
    digest = hashlib.sha256(f"{role_arn} {session}".encode()).hexdigest()
    key, secret, token = f"ASIA{digest[:16].upper()}", digest, digest[::-1]
    sts.register_session(
        key,
        {
            "Arn": f"arn:aws:sts::{get_account_id()}:assumed-role/{name}/{session}",
            "UserId": f"{name}:{session}",
            "SecretAccessKey": secret,
            "SessionToken": token,
        },
    )
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SESSION_TOKEN": token,
    }


def client(service: str, credentials: dict[str, str]) -> Any:
    """Return a client of this very emulator, so that what it asks is authorized like any call."""
    return _client(service, get_region(), tuple(sorted(credentials.items())))


@functools.lru_cache(maxsize=64)
def _client(service: str, region: str, credentials: tuple[tuple[str, str], ...]) -> Any:
    given = dict(credentials)
    with _SESSION_LOCK:
        return _SESSION.create_client(
            service,
            region_name=region,
            endpoint_url=CONFIG.endpoint_url,
            verify=str(CONFIG.ca_bundle),
            aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=given.get("AWS_SESSION_TOKEN"),
            config=ClientConfig(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )


def _trusts(document: Any, service: str) -> bool:
    policy = json.loads(document) if isinstance(document, str) else document or {}
    statements = policy.get("Statement", [])
    for statement in [statements] if isinstance(statements, dict) else statements:
        principals = statement.get("Principal", {})
        named = principals.get("Service", []) if isinstance(principals, dict) else []
        if statement.get("Effect") == "Allow" and service in (
            [named] if isinstance(named, str) else named
        ):
            return True
    return False


def _data_plane_action(path: str) -> str | None:
    parts = path.strip("/").split("/")
    return _DATA_PLANE.get(parts[2]) if len(parts) == 3 and parts[0] == "endpoints" else None


def _sagemaker_resource(path: str, parameters: dict[str, Any]) -> str:
    if _data_plane_action(path):
        return sagemaker_arn("endpoint", path.split("/")[2])
    if arn := parameters.get("ResourceArn"):
        return str(arn)
    for member, kind in _SAGEMAKER_NAMES.items():
        if member in parameters:
            return sagemaker_arn(kind, parameters[member])
    return "*"


def _codebuild_resource(parameters: dict[str, Any]) -> str | None:
    ids = parameters.get("ids") or [parameters.get("id")]
    names = parameters.get("names") or [str(ids[0]).partition(":")[0] if ids[0] else None]
    if not names[0]:
        return None
    return f"arn:aws:codebuild:{get_region()}:{get_account_id()}:project/{names[0]}"


def _wrapped_action(inner: Callable[..., str | None]) -> Callable[..., str | None]:
    def extract(
        service: str, method: str, path: str, headers: dict[str, str], body: bytes, query: Any
    ) -> str | None:
        if service == "sagemaker" and (action := _data_plane_action(path)):
            return f"sagemaker:{action}"
        return inner(service, method, path, headers, body, query)

    return extract


def _log_stream_resource(parameters: dict[str, Any]) -> str | None:
    # AWS authorizes what is about a stream on the stream, which `log-group:NAME:*` covers.
    group, stream = parameters.get("logGroupName"), parameters.get("logStreamName")
    if not group or not stream:
        return None
    account = f"arn:aws:logs:{get_region()}:{get_account_id()}"
    return f"{account}:log-group:{group}:log-stream:{stream}"


def _alarms_resource(operation: str) -> str | None:
    # AWS authorizes a look at several alarms on them all, which `alarm:*` covers.
    if not operation.endswith("DescribeAlarms"):
        return None
    return f"arn:aws:cloudwatch:{get_region()}:{get_account_id()}:alarm:*"


def _resource(service: str, path: str, headers: Any, body: bytes) -> str | None:
    if service == "monitoring":
        return _alarms_resource(headers.get("x-amz-target") or path)
    if service not in ("codebuild", "logs", "sagemaker"):
        return None
    try:
        parameters = json.loads(body or b"{}")
    except ValueError:
        parameters = {}
    if not isinstance(parameters, dict):
        parameters = {}
    if service == "sagemaker":
        return _sagemaker_resource(path, parameters)
    if service == "codebuild":
        return _codebuild_resource(parameters)
    return _log_stream_resource(parameters)


def _wrapped_resource(inner: Callable[..., str]) -> Callable[..., str]:
    def extract(
        service: str, method: str, path: str, headers: Any, body: bytes, *rest: Any, **named: Any
    ) -> str:
        return _resource(service, path, headers, body) or inner(
            service, method, path, headers, body, *rest, **named
        )

    return extract


def install() -> None:
    """Teach ministack's authorization the services and the resources that it does not know."""
    namespaces = iam_actions.SERVICE_TO_IAM_NAMESPACE
    namespaces["sagemaker"] = "sagemaker"
    namespaces["application-autoscaling"] = "application-autoscaling"
    iam_actions.extract_iam_action = _wrapped_action(iam_actions.extract_iam_action)
    iam_actions.extract_resource_arn = _wrapped_resource(iam_actions.extract_resource_arn)
