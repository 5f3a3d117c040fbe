"""Runs one CodeBuild build: its source, its phases, its log, its time-out."""

from __future__ import annotations

import io
import logging
import shutil
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from ministack.core.responses import get_account_id, get_region

from emulator.inside import roles
from emulator.inside.buildspec import PHASES, Buildspec, BuildspecError, Phase, parse
from emulator.inside.config import CONFIG
from emulator.inside.environment import child_environment
from emulator.inside.logs import LogStream
from emulator.inside.shell import Shell
from emulator.processes import kill

Json = dict[str, Any]
SERVICE = "codebuild.amazonaws.com"
log = logging.getLogger("ballot.codebuild")


class PhaseFailed(Exception):
    """A phase failed; the code and the message become its context."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Build:
    """One run of a project. `record` is what BatchGetBuilds answers; this keeps it up to date."""

    def __init__(self, record: Json, project: Json) -> None:
        self.record, self._project = record, project
        self._marker = f"CODEBUILD_BUILD_ID={record['id']}"
        self._folder = CONFIG.workdir / "builds" / str(record["id"]).rpartition(":")[2]
        self._shell: Shell | None = None
        self._log: LogStream | None = None
        self._interruption: str | None = None
        self._lock = threading.Lock()
        self._exported: dict[str, str] = {}

    def run(self) -> None:
        """Run the build to its end."""
        minutes = int(self._project.get("timeoutInMinutes") or 60)
        timer = threading.Timer(CONFIG.scaled(minutes * 60), self._interrupt, ["TIMED_OUT"])
        timer.daemon = True
        timer.start()
        try:
            self._folder.mkdir(parents=True)
            status = self._phases()
        except Exception:
            log.exception("build %s", self.record["id"])
            status = "FAULT"
        timer.cancel()
        kill(self._marker)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._log is not None:
            self._log.close()
        now = time.time()
        phases = [
            {"phaseType": "FINALIZING", "phaseStatus": "SUCCEEDED"},
            {"phaseType": "COMPLETED"},
        ]
        self.record["phases"].extend({**phase, "startTime": now} for phase in phases)
        self.record["phases"][-2].update(endTime=now, durationInSeconds=0)
        # The status last: whoever polls for it finds all the rest in place.
        self.record.update(currentPhase="COMPLETED", endTime=now, buildComplete=True)
        self.record["buildStatus"] = self._interruption or status
        log.info("build %s: %s", self.record["id"], self.record["buildStatus"])

    def stop(self) -> None:
        """End the build from another thread, as StopBuild does."""
        self._interrupt("STOPPED")

    def _interrupt(self, status: str) -> None:
        with self._lock:
            if self._interruption is None and self.record["buildStatus"] == "IN_PROGRESS":
                self._interruption = status
            if self._shell is not None:
                self._shell.stop()

    def _phases(self) -> str:
        """Run the phases that CodeBuild runs in its order; return SUCCEEDED or FAILED."""
        self._phase("QUEUED", lambda: None)
        credentials: dict[str, str] = {}
        if not self._phase("PROVISIONING", lambda: credentials.update(self._provision())):
            return "FAILED"
        source = self._folder / "src"
        spec: list[Buildspec] = []
        if not self._phase(
            "DOWNLOAD_SOURCE", lambda: spec.append(self._download(source, credentials))
        ):
            return "FAILED"
        return self._buildspec_phases(spec[0], source, credentials)

    def _buildspec_phases(self, spec: Buildspec, source: Path, credentials: dict[str, str]) -> str:
        with self._lock:
            self._shell = Shell(
                folder=source,
                scratch=self._folder / "shell",
                environment=self._environment(spec, source, credentials),
                marker=self._marker,
                on_line=self._say,
                program=spec.shell,
            )
            if self._interruption:
                self._shell.stop()
        succeeded = True
        for name in PHASES:
            phase = spec.phases.get(name, Phase())
            flag = f"export CODEBUILD_BUILD_SUCCEEDING={int(succeeded)}"
            passed = self._phase(
                name.upper(), lambda phase=phase, flag=flag: self._run(phase, flag)
            )
            succeeded = succeeded and passed
            if self._interruption or (not passed and phase.on_failure == "ABORT"):
                break
        self._shell.close()
        self._export(spec.exported, self._shell.environment)
        if succeeded and not self._interruption:
            self._phase("UPLOAD_ARTIFACTS", lambda: None)
        return "SUCCEEDED" if succeeded else "FAILED"

    def _phase(self, name: str, work: Any) -> bool:
        """Record a phase around `work`; tell whether it passed."""
        phase: Json = {"phaseType": name, "startTime": time.time()}
        self.record["phases"].append(phase)
        self.record["currentPhase"] = name
        status, context = "SUCCEEDED", {"statusCode": "", "message": ""}
        self._say(f"[Container] Entering phase {name}")
        if not self._interruption:
            try:
                work()
            except PhaseFailed as failure:
                status = "FAILED"
                context = {"statusCode": failure.code, "message": failure.message}
        if self._interruption:
            status = self._interruption
            context = {
                "TIMED_OUT": {"statusCode": "BUILD_TIMED_OUT", "message": "Build has timed out. "},
                "STOPPED": {"statusCode": "", "message": ""},
            }[status]
        now = time.time()
        phase.update(
            phaseStatus=status,
            endTime=now,
            durationInSeconds=int(now - phase["startTime"]),
            contexts=[context],
        )
        self._say(f"[Container] Phase complete: {name} State: {status}")
        if context["message"]:
            reason = f"{context['statusCode']} Message: {context['message']}"
            self._say(f"[Container] Phase context status code: {reason}")
        return status == "SUCCEEDED"

    def _provision(self) -> dict[str, str]:
        role, name = self._project["serviceRole"], str(self.record["id"])
        try:
            credentials = roles.assume(
                role, service=SERVICE, session=f"AWSCodeBuild-{name.rpartition(':')[2]}"
            )
            where = self.record["logs"]
            self._log = LogStream(
                roles.client("logs", credentials),
                group=where["groupName"],
                stream=where["streamName"],
            )
        except roles.RoleError as error:
            raise PhaseFailed("CLIENT_ERROR", f"CodeBuild is not authorized: {error}") from error
        except ClientError as error:
            raise PhaseFailed(
                "ACCESS_DENIED",
                f"Service role {role} does not allow AWS CodeBuild to create Amazon CloudWatch "
                f"Logs log streams for build {self.record['arn']}. Error message: {error}",
            ) from error
        return credentials

    def _download(self, target: Path, credentials: dict[str, str]) -> Buildspec:
        source = self._project["source"]
        target.mkdir()
        if source["type"] == "S3":
            location = str(source["location"]).removeprefix("arn:aws:s3:::")
            bucket, _, key = location.partition("/")
            try:
                body = roles.client("s3", credentials).get_object(Bucket=bucket, Key=key)["Body"]
                zipfile.ZipFile(io.BytesIO(body.read())).extractall(target)
            except (ClientError, zipfile.BadZipFile) as error:
                raise PhaseFailed("CLIENT_ERROR", f"{error} for primary source") from error
        elif source["type"] != "NO_SOURCE":
            raise PhaseFailed("CLIENT_ERROR", f"source type {source['type']} is not emulated")
        text = source.get("buildspec") or "buildspec.yml"
        if "\n" not in text and "{" not in text:
            path = target / text
            if not path.is_file():
                raise PhaseFailed(
                    "YAML_FILE_ERROR", f"stat {path}: no such file or directory ({text})"
                )
            text = path.read_text()
        try:
            return parse(text)
        except BuildspecError as error:
            code, _, message = str(error).partition(": ")
            raise PhaseFailed(code, message) from error

    def _environment(
        self, spec: Buildspec, source: Path, credentials: dict[str, str]
    ) -> dict[str, str]:
        python = self._folder / "python"
        record, region = self.record, get_region()
        declared = {}
        for variable in self.record["environment"].get("environmentVariables") or ():
            if variable.get("type", "PLAINTEXT") != "PLAINTEXT":
                log.warning("variable %s: type is not emulated", variable["name"])
            declared[variable["name"]] = str(variable["value"])
        return {
            **child_environment(CONFIG.root / "emulator" / "bin", python / "bin"),
            "HOME": str(self._folder),
            "TMPDIR": str(self._folder),
            "AWS_ENDPOINT_URL": CONFIG.endpoint_url,
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            **credentials,
            "EMULATOR_ROOT": str(CONFIG.root),
            "EMULATOR_IMAGES": str(CONFIG.images),
            "EMULATOR_BUILD_PYTHON": str(python),
            "CI": "true",
            "CODEBUILD_BUILD_ARN": record["arn"],
            "CODEBUILD_BUILD_ID": record["id"],
            "CODEBUILD_BUILD_IMAGE": record["environment"].get("image", ""),
            "CODEBUILD_BUILD_NUMBER": str(record["buildNumber"]),
            "CODEBUILD_BUILD_SUCCEEDING": "1",
            "CODEBUILD_INITIATOR": record["initiator"],
            "CODEBUILD_LOG_PATH": record["logs"]["streamName"],
            "CODEBUILD_PROJECT_NAME": record["projectName"],
            "CODEBUILD_SRC_DIR": str(source),
            "CODEBUILD_START_TIME": str(int(record["startTime"] * 1000)),
            "AWS_ACCOUNT_ID": get_account_id(),
            **spec.variables,
            **declared,
        }

    def _run(self, phase: Phase, flag: str) -> None:
        assert self._shell is not None
        self._shell.run(flag)
        failed: PhaseFailed | None = None
        for commands in (phase.commands, phase.always):
            for command in commands:
                if self._interruption:
                    return
                self._say(f"[Container] Running command {command}")
                status = self._shell.run(command)
                if status:
                    shown = command if len(command) < 400 else f"{command[:400]}..."
                    failed = failed or PhaseFailed(
                        "COMMAND_EXECUTION_ERROR",
                        f"Error while executing command: {shown}. Reason: exit status {status}",
                    )
                    break
        if failed:
            raise failed

    def _export(self, names: tuple[str, ...], environment: dict[str, str]) -> None:
        self.record["exportedEnvironmentVariables"] = [
            {"name": name, "value": environment[name]} for name in names if name in environment
        ]

    def _say(self, line: str) -> None:
        if self._log is not None:
            self._log.write(line)
