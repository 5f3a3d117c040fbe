"""CodeBuild whose builds really run; projects and the rest of the API are ministack's."""

from __future__ import annotations

import contextvars
import copy
import json
import threading
import time
from typing import Any

from ministack.core.responses import error_response_json
from ministack.services import codebuild

from emulator.inside.builds import Build
from emulator.inside.services import Json, Response, check_requests

_TOKEN_SECONDS = 300
_OVERRIDES = {
    "buildspecOverride": ("source", "buildspec"),
    "sourceLocationOverride": ("source", "location"),
    "sourceTypeOverride": ("source", "type"),
    "imageOverride": ("environment", "image"),
    "computeTypeOverride": ("environment", "computeType"),
    "privilegedModeOverride": ("environment", "privilegedMode"),
    "serviceRoleOverride": (None, "serviceRole"),
    "timeoutInMinutesOverride": (None, "timeoutInMinutes"),
    "logsConfigOverride": (None, "logsConfig"),
}
_KNOWN = {"projectName", "environmentVariablesOverride", "idempotencyToken", "sourceVersion"}
_KEPT = ("logsConfig", "queuedTimeoutInMinutes", "concurrentBuildLimit", "cache", "vpcConfig")

_running: dict[str, Build] = {}
_tokens: dict[str, tuple[float, Json, str]] = {}
_lock = threading.Lock()


def _answer_build(record: Json) -> Response:
    from ministack.core.responses import json_response

    answer: Response = json_response({"build": copy.deepcopy(record)})
    return answer


def _refuse(code: str, message: str) -> Response:
    answer: Response = error_response_json(code, message, 400)
    return answer


def _start_build(data: Json) -> Response:
    name = str(data.get("projectName", "")).rpartition("/")[2]
    project = codebuild._projects.get(name)
    if project is None:
        return _refuse(
            "ResourceNotFoundException",
            f"Project cannot be found: {codebuild._project_arn(name)}",
        )
    if unknown := sorted(set(data) - _KNOWN - set(_OVERRIDES)):
        return _refuse("InvalidInputException", f"{', '.join(unknown)} is not emulated")
    token = data.get("idempotencyToken")
    with _lock:
        if token and (before := _tokens.get(f"{name} {token}")):
            started, request, build_id = before
            if time.time() - started < _TOKEN_SECONDS:
                if request != data:
                    return _refuse(
                        "InvalidInputException",
                        f"idempotencyToken {token} was used with other parameters",
                    )
                return _answer_build(codebuild._builds[build_id])
        record = _new_build(_overridden(copy.deepcopy(project), data), data)
        if token:
            _tokens[f"{name} {token}"] = (time.time(), data, record["id"])
    return _answer_build(record)


def _overridden(project: Json, data: Json) -> Json:
    for parameter, (section, key) in _OVERRIDES.items():
        if parameter in data:
            (project[section] if section else project)[key] = data[parameter]
    environment = project.setdefault("environment", {})
    variables = {item["name"]: item for item in environment.get("environmentVariables") or ()}
    variables.update({i["name"]: i for i in data.get("environmentVariablesOverride") or ()})
    environment["environmentVariables"] = list(variables.values())
    return project


def _new_build(project: Json, data: Json) -> Json:
    build_id = codebuild._build_id(project["name"])
    record: Json = codebuild._make_build_record(project, build_id, data.get("sourceVersion"))
    del record["endTime"]
    now = time.time()
    record.update(
        buildComplete=False,
        buildStatus="IN_PROGRESS",
        currentPhase="SUBMITTED",
        logs=_logs(project, build_id),
        phases=[
            {
                "phaseType": "SUBMITTED",
                "phaseStatus": "SUCCEEDED",
                "startTime": now,
                "endTime": now,
                "durationInSeconds": 0,
            }
        ],
        serviceRole=project["serviceRole"],
        startTime=now,
    )
    build = Build(record, project)
    codebuild._builds[build_id] = record
    _running[build_id] = build
    # The stores tell accounts apart by the request's context variables.
    context = contextvars.copy_context()

    def work() -> None:
        build.run()
        del _running[build_id]

    threading.Thread(
        target=context.run, args=(work,), name=f"build {build_id}", daemon=True
    ).start()
    return record


def _logs(project: Json, build_id: str) -> Json:
    chosen = (project.get("logsConfig") or {}).get("cloudWatchLogs") or {}
    stream = build_id.partition(":")[2]
    group = chosen.get("groupName") or f"/aws/codebuild/{project['name']}"
    if chosen.get("streamName"):
        stream = f"{chosen['streamName']}/{stream}"
    region = project["arn"].split(":")[3]
    link = (
        f"https://console.aws.amazon.com/cloudwatch/home?region={region}"
        f"#logsV2:log-groups/log-group/{group.replace('/', '$252F')}"
        f"/log-events/{stream.replace('/', '$252F')}"
    )
    return {"groupName": group, "streamName": stream, "deepLink": link}


def _stop_build(data: Json) -> Response:
    build_id = str(data.get("id", "")).rpartition("build/")[2]
    record = codebuild._builds.get(build_id)
    if record is None:
        return _refuse("ResourceNotFoundException", f"Build {build_id} does not exist")
    if build := _running.get(build_id):
        build.stop()
    return _answer_build(record)


def _keep(name: str, values: Json) -> None:
    """Keep the settings of a project that ministack drops."""
    project = codebuild._projects.get(name)
    if project is not None:
        project.update({key: values[key] for key in _KEPT if key in values})


def _keeping(inner: Any) -> Any:
    def call(data: Json) -> Response:
        answer: Response = inner(data)
        if answer[0] == 200:
            _keep(data["name"], data)
            shown = codebuild._project_shape(codebuild._projects[data["name"]])
            return answer[0], answer[1], json.dumps({"project": shown}).encode()
        return answer

    return call


def _shape_with_kept(inner: Any) -> Any:
    def shape(project: Json) -> Json:
        return {**inner(project), **{key: project[key] for key in _KEPT if key in project}}

    return shape


def keep_template_settings(name: str, properties: Json) -> None:
    """Keep what a template says about a project and ministack drops."""
    api = codebuild_names(properties)
    _keep(name, api)


def codebuild_names(properties: Json) -> Json:
    """Return a template's properties in the API's spelling."""
    return {
        key[0].lower() + key[1:]: _spelled(value)
        for key, value in properties.items()
        if key[0].lower() + key[1:] in _KEPT
    }


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[0].lower() + key[1:]: _spelled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    return value


def install() -> None:
    """Replace ministack's builds, which succeed at once and run nothing."""
    codebuild._project_shape = _shape_with_kept(codebuild._project_shape)
    codebuild._create_project = _keeping(codebuild._create_project)
    codebuild._update_project = _keeping(codebuild._update_project)
    codebuild._start_build = _start_build
    codebuild._stop_build = _stop_build
    check_requests("codebuild")
