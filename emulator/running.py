"""Starts and stops an emulator: a process of its own, on a loopback port of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from ssl import create_default_context
from types import TracebackType

from emulator.leftovers import leftovers
from emulator.processes import MARKER_VARIABLE, kill
from emulator.tls import BUNDLE_VARIABLES, make_certificate

ROOT = Path(__file__).resolve().parent.parent
ACCOUNT = "123456789012"
REGION = "us-east-1"
_START_SECONDS = 60
_STOP_SECONDS = 30
_FOLDERS = ("builds", "containers", "images", "tls", "tmp")
_PREFIX = "EMULATOR_"
SILENT_ROLLBACKS = "silent-rollbacks"
"""A file whose presence in the work folder is `Emulator.rolls_back_silently`."""


class EmulatorError(Exception):
    """The emulator cannot be started."""


class Emulator:
    """AWS on this machine, for as long as the `with` block runs."""

    account = ACCOUNT
    region = REGION

    def __init__(
        self,
        workdir: Path | None = None,
        *,
        iam: bool = True,
        seconds_per_minute: float = 60.0,
        rollout_seconds_per_minute: float | None = None,
    ) -> None:
        """Prepare an emulator.

        `workdir` gets its files and its log; without one a temporary folder is used. `iam=False`
        allows everything to everybody. `seconds_per_minute` is how long a minute of a build's
        time-out and of an endpoint's health time-out lasts; `rollout_seconds_per_minute`, if not as
        long, a minute of what watches: a rollout's waits, an alarm's periods, pings.
        """
        self._given, self._iam = workdir, iam
        self._seconds_per_minute = seconds_per_minute
        self._rollout_seconds_per_minute = rollout_seconds_per_minute or seconds_per_minute
        self._marker = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Emulator:
        python = ROOT / ".build/emulator/bin/python"
        if not python.exists():
            raise EmulatorError("the emulator is not set up; run: make setup")
        folder = self._given
        if folder is None:
            self._own_folder = tempfile.TemporaryDirectory(prefix="ballot-emulator-")
            folder = Path(self._own_folder.name)
        self.workdir = folder.resolve()
        for name in _FOLDERS:
            (self.workdir / name).mkdir(parents=True, exist_ok=True)
        self._certificate = make_certificate(self.workdir / "tls")
        self._port = _free_port()
        self.endpoint_url = f"https://127.0.0.1:{self._port}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "emulator.inside"],
                cwd=self.workdir,
                env=self._server_environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def log(self) -> Path:
        """The emulator's own log."""
        return self.workdir / "emulator.log"

    @property
    def exports(self) -> dict[str, str]:
        """The variables by which a program works with the emulator instead of AWS."""
        bundle = str(self._certificate.bundle)
        return {
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": REGION,
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": _node_major(),
            "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1",
            "NODE_NO_WARNINGS": "1",
            **dict.fromkeys(BUNDLE_VARIABLES, bundle),
            "NO_PROXY": _with_loopback(os.environ.get("NO_PROXY", "")),
            "no_proxy": _with_loopback(os.environ.get("no_proxy", "")),
        }

    @property
    def environment(self) -> dict[str, str]:
        """A whole environment for a subprocess: this one's without its AWS settings."""
        tools = (ROOT / "node_modules/.bin", ROOT / ".build/awscli/bin")
        path = os.pathsep.join((*map(str, tools), os.environ.get("PATH", os.defpath)))
        return {**_without_aws(), "PATH": path, **self.exports}

    @property
    def rolls_back_silently(self) -> bool:
        """Whether CloudFormation takes an endpoint that went back to its old configuration for one
        that was updated, as it does on AWS when SageMaker's rollback ends before it looks.
        """
        return (self.workdir / SILENT_ROLLBACKS).exists()

    @rolls_back_silently.setter
    def rolls_back_silently(self, silently: bool) -> None:
        switch = self.workdir / SILENT_ROLLBACKS
        if silently:
            switch.touch()
        else:
            switch.unlink(missing_ok=True)

    def leftovers(self) -> dict[str, list[str]]:
        """Return what is there, by kind; empty lists when nothing is.

        What `cdk bootstrap` makes, the stack CDKToolkit, is not counted.
        """
        return leftovers(self.exports, marker=f"{MARKER_VARIABLE}={self._marker}")

    def close(self) -> None:
        """Stop the emulator and all that it started, and remove its files except the log."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_STOP_SECONDS)
            process.kill()
            process.wait()
            self._process = None
        for variable in (MARKER_VARIABLE, f"{_PREFIX}MARKER"):
            kill(f"{variable}={self._marker}")
        for name in _FOLDERS:
            shutil.rmtree(self.workdir / name, ignore_errors=True)
        self.rolls_back_silently = False
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def _server_environment(self) -> dict[str, str]:
        return {
            **_without_aws(),
            **self.exports,
            "AUTH": str(self._iam).lower(),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self._port),
            "IOT_MTLS_ENABLED": "0",
            "LAMBDA_EXECUTOR": "local",
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            "MINISTACK_HOST": "127.0.0.1",
            "MINISTACK_REGION": REGION,
            "MINISTACK_SSL_CERT": str(self._certificate.certificate),
            "MINISTACK_SSL_KEY": str(self._certificate.key),
            "NODE_PATH": str(ROOT / "node_modules"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
            "SFN_WAIT_SCALE": "0.1",
            "SFTP_ENABLED": "0",
            "TMPDIR": str(self.workdir / "tmp"),
            "USE_SSL": "1",
            f"{_PREFIX}MARKER": self._marker,
            f"{_PREFIX}ROLLOUT_SECONDS_PER_MINUTE": str(self._rollout_seconds_per_minute),
            f"{_PREFIX}ROOT": str(ROOT),
            f"{_PREFIX}SECONDS_PER_MINUTE": str(self._seconds_per_minute),
            f"{_PREFIX}WORKDIR": str(self.workdir),
        }

    def _wait_ready(self) -> None:
        assert self._process is not None
        context = create_default_context(cafile=str(self._certificate.bundle))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                opener.open(f"{self.endpoint_url}/_ministack/health", timeout=2).close()
                return
            time.sleep(0.05)
        raise EmulatorError(f"the emulator did not start:\n{self.log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _without_aws() -> dict[str, str]:
    dropped = ("AWS_", "BALLOT_", "CDK_", "EMULAT", "SM_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped) and k != "PYTHONPATH"}


def _with_loopback(hosts: str) -> str:
    return ",".join(filter(None, (hosts, "127.0.0.1")))


def _node_major() -> str:
    node = shutil.which("node")
    if node is None:
        return ""
    result = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    return result.stdout.strip().removeprefix("v").partition(".")[0]
