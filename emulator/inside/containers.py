"""Runs a model container as a process: its image, its environment, its model, `/ping`."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from emulator.image_store import Image, ImageStore, NoSuchImage
from emulator.inside import roles
from emulator.inside.config import CONFIG
from emulator.inside.environment import child_environment
from emulator.inside.logs import LogStream

SERVICE = "sagemaker.amazonaws.com"
MODEL_FOLDER = "/opt/ml/model"
_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com/(?P<name>[^:@]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_CHAT_BASE = re.compile(r"/llama-cpp(-arm64)?[:@]")
_PING_SECONDS = 2
_STOP_SECONDS = 30


class ContainerError(Exception):
    """A container cannot be started, or is not healthy in time."""


def find_image(uri: str, credentials: dict[str, str]) -> str:
    """Return the digest of an image that the role behind `credentials` can pull.

    Raises:
        ContainerError: there is no such image, or the role may not pull it.
    """
    match = _ECR.fullmatch(uri)
    if match is None:
        raise ContainerError(f"the image {uri} is not in an ECR repository of the account")
    image_id = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"]}
    ecr = roles.client("ecr", credentials)
    try:
        ecr.get_authorization_token()
        name = match["name"]
        found = ecr.batch_get_image(repositoryName=name, imageIds=[image_id])
        if not found["images"]:
            raise ContainerError(f"Requested image {uri} not found.")
        digest = str(found["images"][0]["imageId"]["imageDigest"])
        ecr.get_download_url_for_layer(repositoryName=name, layerDigest=digest)
    except ClientError as error:
        raise ContainerError(f"the execution role cannot pull {uri}: {error}") from error
    return digest


@dataclass(frozen=True)
class ModelData:
    """Where a model's files come from."""

    uri: str
    is_prefix: bool
    is_gzip: bool

    @classmethod
    def of(cls, container: dict[str, Any]) -> ModelData | None:
        """Read it from a container definition."""
        if url := container.get("ModelDataUrl"):
            return cls(uri=url, is_prefix=False, is_gzip=True)
        source = (container.get("ModelDataSource") or {}).get("S3DataSource")
        if not source:
            return None
        return cls(
            uri=source["S3Uri"],
            is_prefix=source["S3DataType"] == "S3Prefix",
            is_gzip=source["CompressionType"] == "Gzip",
        )

    def objects(self, s3: Any) -> list[str]:
        """Return the keys of the model's objects.

        Raises:
            ContainerError: they cannot be read, or there is none.
        """
        bucket, key = self._location
        try:
            if not self.is_prefix:
                s3.head_object(Bucket=bucket, Key=key)
                return [key]
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
            if keys:
                s3.head_object(Bucket=bucket, Key=keys[0])
        except ClientError as error:
            raise ContainerError(
                f"Could not access model data at {self.uri}. Please ensure that the role has "
                f"s3:GetObject permissions and that the object is located in this Region: {error}"
            ) from error
        if not keys:
            raise ContainerError(f"Could not find model data at {self.uri}.")
        return keys

    def download(self, s3: Any, target: Path) -> None:
        """Put the model's files into a folder.

        Raises:
            ContainerError: they cannot be read.
        """
        bucket, prefix = self._location
        for key in self.objects(s3):
            name = key.removeprefix(prefix).lstrip("/") if self.is_prefix else Path(key).name
            if not name or name.endswith("/"):
                raise ContainerError(f"{key} is a folder object, which SageMaker cannot download")
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                body = s3.get_object(Bucket=bucket, Key=key)["Body"]
            except ClientError as error:
                raise ContainerError(f"cannot download s3://{bucket}/{key}: {error}") from error
            with path.open("wb") as file:
                for chunk in body.iter_chunks(1 << 20):
                    file.write(chunk)
            if self.is_gzip:
                _extract(path, target)

    @property
    def _location(self) -> tuple[str, str]:
        bucket, _, key = self.uri.removeprefix("s3://").partition("/")
        return bucket, key


def _extract(archive: Path, target: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(target, filter="data")
    except tarfile.TarError as error:
        raise ContainerError(f"cannot extract {archive.name}: {error}") from error
    archive.unlink()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a container is started with."""

    name: str
    image_uri: str
    environment: dict[str, str]
    model_data: ModelData | None
    role_arn: str
    log_group: str
    log_stream: str


class Container:
    """A running container: a process on a loopback port."""

    def __init__(self, launch: Launch, *, is_wanted: Callable[[], bool]) -> None:
        """Download the model and start the process.

        Raises:
            ContainerError: one of the two failed.
        """
        self._is_wanted = is_wanted
        self._folder = CONFIG.workdir / "containers" / launch.log_stream.replace("/", "-")
        self._process: subprocess.Popen[bytes] | None = None
        self._log: LogStream | None = None
        self._requests = 0
        self._measured = (time.monotonic(), 0.0)
        self._is_draining = False
        self._idle = threading.Condition()
        self.image_uri = launch.image_uri
        self.resolved_image = ""
        try:
            self._start(launch)
        except BaseException:
            self.stop()
            raise

    def _start(self, launch: Launch) -> None:
        session = launch.log_stream.rpartition("/")[2]
        try:
            credentials = roles.assume(launch.role_arn, service=SERVICE, session=session)
        except roles.RoleError as error:
            raise ContainerError(str(error)) from error
        digest = find_image(launch.image_uri, credentials)
        repository = _ECR.fullmatch(launch.image_uri)
        assert repository is not None
        self.resolved_image = f"{launch.image_uri[: repository.end('name')]}@{digest}"
        model = self._folder / "model"
        model.mkdir(parents=True)
        if launch.model_data is not None:
            launch.model_data.download(roles.client("s3", credentials), model)
        # Without the permission to write logs a container runs too, only unseen.
        with contextlib.suppress(ClientError):
            self._log = LogStream(
                roles.client("logs", credentials),
                group=launch.log_group,
                stream=launch.log_stream,
            )
        self.port = _free_port()
        command, cwd, environment = _command(digest, model=model, port=self.port)
        given = {
            name: re.sub(rf"^{MODEL_FOLDER}(?=/|$)", str(model), value)
            for name, value in launch.environment.items()
        }
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**child_environment(), "HOME": str(self._folder), **given, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if self._log is not None:
                self._log.write(line.decode(errors="replace").rstrip("\r\n"))

    def wait_healthy(self, seconds: float) -> None:
        """Return once `/ping` has answered 200.

        Raises:
            ContainerError: it did not within `seconds`, the process ended, or nobody waits.
        """
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            assert self._process is not None
            if (status := self._process.poll()) is not None:
                self._reader.join(timeout=5)
                raise ContainerError(f"exited with status {status}: {self.last_words}")
            if not self._is_wanted():
                raise ContainerError("is not wanted any more")
            if time.monotonic() > deadline:
                raise ContainerError(f"was not healthy in time: {self.last_words}")
            time.sleep(0.1)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process is None or self._process.poll() is not None

    def is_healthy(self) -> bool:
        """Ask `/ping` once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PING_SECONDS)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def last_words(self) -> str:
        """The last line of the container's output."""
        lines = [line for line in self._log.tail if line.strip()] if self._log else []
        return lines[-1][:400] if lines else "(no output)"

    @property
    def requests(self) -> int:
        """How many requests the container has now."""
        return self._requests

    def usage(self) -> dict[str, float]:
        """Return what the process has used since it was last asked, in percent of the machine.

        CPUUtilization is 100 for each core, as SageMaker counts it.
        """
        assert self._process is not None
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            disk = shutil.disk_usage(self._folder)
        except OSError:  # it has ended meanwhile
            return {}
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        now = time.monotonic()
        before, self._measured = self._measured, (now, seconds)
        used = max(seconds - before[1], 0.0) / max(now - before[0], 1e-3)
        return {
            "CPUUtilization": 100 * used,
            "MemoryUtilization": 100 * int(fields[21]) / os.sysconf("SC_PHYS_PAGES"),
            "DiskUtilization": 100 * disk.used / disk.total,
        }

    def enter(self) -> bool:
        """Count a request in; False when the container takes no more."""
        with self._idle:
            if not self._is_draining:
                self._requests += 1
            return not self._is_draining

    def leave(self) -> None:
        """Count a request out."""
        with self._idle:
            self._requests -= 1
            self._idle.notify_all()

    def stop(self) -> None:
        """End the process as SageMaker does: no new requests, SIGTERM, after 30 s SIGKILL."""
        with self._idle:
            self._is_draining = True
            self._idle.wait_for(lambda: self._requests == 0, timeout=CONFIG.scaled(60))
        process = self._process
        if process is not None:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_STOP_SECONDS)
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            self._reader.join(timeout=5)
        if self._log is not None:
            self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _command(digest: str, *, model: Path, port: int) -> tuple[list[str], Path, dict[str, str]]:
    """Return the command, its folder and its variables, by what the image was made of."""
    store = ImageStore(CONFIG.images)
    try:
        image: Image = store.get(digest)
    except NoSuchImage as error:
        raise ContainerError(f"the image {digest} was not pushed by this emulator") from error
    root = CONFIG.root
    if any(name.startswith("adapter/") for name in image.files):
        return (
            [str(root / ".venv/bin/python"), "-m", "adapter", "serve"],
            store.context(digest),
            {
                "BALLOT_MODEL_DIR": str(model),
                "BALLOT_HOST": "127.0.0.1",
                "BALLOT_PORT": str(port),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
    if not image.files and _CHAT_BASE.search(image.base):
        script = root / "emulator/chat_server.py"
        return (
            [str(root / ".build/chat/bin/python"), str(script), str(model), str(port)],
            model,
            {},
        )
    raise ContainerError(f"there is nothing that stands for an image from {image.base}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
