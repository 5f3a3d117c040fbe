"""Builds of CodeBuild: find, start, stop, and say why one failed.

Each build carries two marks among its environment variables: the custom resource that started it
and the hash of its inputs. They are all the state there is, so a handler that is called twice, or
whose caller has gone away, finds its build again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from build_waiter.request import BuildInputs

OWNER = "BALLOT_BUILD_OWNER"
INPUTS_HASH = "BALLOT_BUILD_INPUTS"
RUNNING = "IN_PROGRESS"
SUCCEEDED = "SUCCEEDED"

_LOG_LINES = 3
_REASON_CHARACTERS = 600


class BuildFailed(Exception):
    """A build did not succeed; the text says where, why, and where its log is."""


@dataclass(frozen=True)
class Running:
    """A build that is still running, and its marks."""

    build_id: str
    owner: str
    inputs_hash: str


class Builds:
    """The builds of the environment's projects."""

    def __init__(self, *, codebuild: Any, logs: Any) -> None:
        self._codebuild = codebuild
        self._logs = logs

    def running(self, project: str) -> list[Running]:
        """Return the project's running builds; none when the project has gone."""
        try:
            # Newest first, so those that run are among the first hundred.
            listed = self._codebuild.list_builds_for_project(projectName=project).get("ids", [])
        except self._codebuild.exceptions.ResourceNotFoundException:
            return []
        builds = self._describe(listed[:100]) if listed else []
        return [_running(build) for build in builds if build["buildStatus"] == RUNNING]

    def start(self, inputs: BuildInputs, *, owner: str, request_id: str) -> str:
        """Start a build and return its id; the same request gets the same build."""
        variables = {**inputs.environment, OWNER: owner, INPUTS_HASH: inputs.inputs_hash}
        source = {"sourceLocationOverride": inputs.source_location}
        started = self._codebuild.start_build(
            projectName=inputs.project,
            environmentVariablesOverride=[
                {"name": name, "value": value, "type": "PLAINTEXT"}
                for name, value in variables.items()
            ],
            idempotencyToken=hashlib.sha256(request_id.encode()).hexdigest(),
            **(source if inputs.source_location else {}),
        )
        return str(started["build"]["id"])

    def stop(self, build_id: str) -> None:
        """Stop a build that may be running."""
        self._codebuild.stop_build(id=build_id)

    def has_succeeded(self, build_id: str) -> bool:
        """Tell whether a build has succeeded, or is still running.

        Raises:
            BuildFailed: it has ended otherwise, or is not there.
        """
        builds = self._describe([build_id])
        if not builds:
            raise BuildFailed(f"build {build_id} is not there any more")
        status = builds[0]["buildStatus"]
        if status not in (RUNNING, SUCCEEDED):
            raise BuildFailed(self._failure(builds[0]))
        return bool(status == SUCCEEDED)

    def _describe(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        return list(self._codebuild.batch_get_builds(ids=list(ids))["builds"])

    def _failure(self, build: Mapping[str, Any]) -> str:
        phase, reason = failed_phase(build)
        link = build.get("logs", {}).get("deepLink", "none")
        last = self._last_lines(build)
        said = f" The log ends with: {last}." if last else ""
        return (
            f"build {build['id']} ended {build['buildStatus']} in phase {phase}: {reason}."
            f"{said} Log: {link}"
        )

    def _last_lines(self, build: Mapping[str, Any]) -> str:
        """Return the end of the build's output, which names the cause; a phase only says `1`."""
        log = build.get("logs", {})
        if not (log.get("groupName") and log.get("streamName")):
            return ""
        try:
            events = self._logs.get_log_events(
                logGroupName=log["groupName"], logStreamName=log["streamName"], limit=50
            )["events"]
        except self._logs.exceptions.ClientError:
            return ""  # the failure itself matters more than its log, which may not be there yet
        lines = [event["message"].strip() for event in events]
        said = [line for line in lines if line and not line.startswith("[Container]")]
        return " | ".join(said[-_LOG_LINES:])[-_REASON_CHARACTERS:]


def failed_phase(build: Mapping[str, Any]) -> tuple[str, str]:
    """Return the phase in which a build ended, and the last reason that it gives."""
    failed = [
        phase
        for phase in build.get("phases", [])
        if phase.get("phaseStatus", SUCCEEDED) not in (SUCCEEDED, RUNNING)
    ]
    if not failed:
        return str(build.get("currentPhase", "unknown")), "no reason given"
    messages = [context.get("message", "") for context in failed[0].get("contexts", [])]
    said = [message.strip().rstrip(".") for message in messages if message.strip()]
    return str(failed[0]["phaseType"]), (said[-1] if said else "no reason given")[
        :_REASON_CHARACTERS
    ]


def _running(build: Mapping[str, Any]) -> Running:
    variables = {
        variable["name"]: variable["value"]
        for variable in build.get("environment", {}).get("environmentVariables", [])
    }
    return Running(build["id"], variables.get(OWNER, ""), variables.get(INPUTS_HASH, ""))
