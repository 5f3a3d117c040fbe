"""Batch transform: a job runs a model's container over the objects of a prefix.

From the developer guide, "Use Batch Transform" and "Use Your Own Inference Code with Batch
Transform": what is asked of the container, what it is told, and what becomes of a bad input file.
"""

from __future__ import annotations

import contextlib
import contextvars
import http.client
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError
from ministack.core.responses import AccountRegionScopedDict

from emulator.inside import roles
from emulator.inside.config import CONFIG
from emulator.inside.containers import SERVICE, Container, ContainerError, Launch, ModelData
from emulator.inside.logs import LogStream
from emulator.inside.services import ApiError, Json

log = logging.getLogger("ballot.transforms")

jobs: Any = AccountRegionScopedDict()
LOG_GROUP = "/aws/sagemaker/TransformJobs"
_MEGABYTE = 1 << 20
_LARGEST_MEGABYTES = 100
_HEALTH_SECONDS = 600
_RETRIED = (408, 429)
_SEE_LOGS = "See job logs for more information"


@dataclass
class Job:
    """A transform job: what was asked for, and how far it is."""

    request: Json
    arn: str
    model: Json
    status: str = "InProgress"
    failure: str | None = None
    created: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None
    stopping: threading.Event = field(default_factory=threading.Event)

    def settle(self, status: str, failure: str | None = None) -> None:
        """Reach a status that is the last one."""
        self.failure, self.ended, self.status = failure, time.time(), status

    @property
    def shown(self) -> Json:
        """What DescribeTransformJob answers."""
        times = {"TransformStartTime": self.started, "TransformEndTime": self.ended}
        given = {name: value for name, value in self.request.items() if name != "Tags"}
        return {
            **given,
            "TransformJobArn": self.arn,
            "TransformJobStatus": self.status,
            "CreationTime": self.created,
            **({"FailureReason": self.failure} if self.failure else {}),
            **{name: moment for name, moment in times.items() if moment},
        }

    @property
    def summary(self) -> Json:
        """What ListTransformJobs answers of it."""
        names = ("TransformJobName", "TransformJobArn", "CreationTime", "TransformJobStatus")
        more = ("TransformEndTime", "FailureReason")
        shown = self.shown
        return {
            "LastModifiedTime": self.ended or self.created,
            **{name: shown[name] for name in (*names, *more) if name in shown},
        }


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a job's records are sent: its own settings before the container's."""

    concurrency: int
    payload_bytes: int | None
    """The largest payload; None for any size."""
    is_multi_record: bool
    retries: int
    timeout_seconds: float


class JobFailed(Exception):
    """A job cannot go on; the text is its FailureReason."""


class _BadInput(Exception):
    """One input object could not be transformed; the job goes on with the others."""


def _invalid(message: str) -> ApiError:
    return ApiError("ValidationException", message)


def create(p: Json, model: Json) -> Json:
    """Start a job with a model.

    Raises:
        ApiError: the job is not valid, or there is one of that name.
    """
    name = p["TransformJobName"]
    arn = roles.sagemaker_arn("transform-job", name)
    if name in jobs:
        raise ApiError("ResourceInUse", f"Job name must be unique: {arn} already exists.")
    _check(p, model)
    job = Job(request=p, arn=arn, model=model)
    jobs[name] = job
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_run, job), name=f"job {name}", daemon=True).start()
    return {"TransformJobArn": arn}


def find(name: str) -> Job:
    """Return a job.

    Raises:
        ApiError: there is none of that name.
    """
    found: Job | None = jobs.get(name)
    if found is None:
        arn = roles.sagemaker_arn("transform-job", name)
        raise ApiError("ResourceNotFound", f'Could not find requested job "{arn}".')
    return found


def stop(p: Json) -> Json:
    """Ask a job to end."""
    job = find(p["TransformJobName"])
    if job.status != "InProgress":
        raise _invalid(f"The request was rejected because the job is {job.status}.")
    job.status = "Stopping"
    job.stopping.set()
    return {}


def listing(p: Json) -> Json:
    """List jobs, the newest first."""
    rows = [
        job.summary
        for name, job in jobs.items()
        if p.get("NameContains", "") in name and p.get("StatusEquals") in (None, job.status)
    ]
    rows.sort(key=lambda row: float(row["CreationTime"]), reverse=True)
    return {"TransformJobSummaries": rows[: p.get("MaxResults", 100)]}


def _check(p: Json, model: Json) -> None:
    if _container(model).get("ModelDataSource"):
        raise _invalid(
            f"Model {p['ModelName']} has a ModelDataSource, which batch transform does not "
            "support: it needs one gzip-compressed tar archive as ModelDataUrl."
        )
    megabytes, concurrency = p.get("MaxPayloadInMB", 0), p.get("MaxConcurrentTransforms", 0)
    if megabytes * max(concurrency, 1) > _LARGEST_MEGABYTES:
        raise _invalid("MaxConcurrentTransforms * MaxPayloadInMB must not exceed 100 MB.")
    source = p["TransformInput"]
    if source.get("SplitType", "None") not in ("None", "Line"):
        raise _invalid(f"SplitType {source['SplitType']} is not emulated")
    if source.get("CompressionType", "None") != "None":
        raise _invalid(f"CompressionType {source['CompressionType']} is not emulated")
    processing = p.get("DataProcessing", {})
    if processing.get("JoinSource", "None") != "None" or (
        {processing.get("InputFilter", "$"), processing.get("OutputFilter", "$")} != {"$"}
    ):
        raise _invalid("DataProcessing is not emulated")
    _location(p["TransformOutput"]["S3OutputPath"])


def _container(model: Json) -> Json:
    found: Json = model.get("PrimaryContainer") or model["Containers"][0]
    return found


def _location(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise _invalid(f"{uri} is not an S3 URI")
    return bucket, key


def _run(job: Job) -> None:
    job.started = time.time()
    try:
        bad = _Transform(job).run()
    except (JobFailed, ContainerError) as error:
        job.settle("Failed", str(error))
    except ClientError as error:
        job.settle("Failed", f"ClientError: {error}")
    except Exception as error:
        log.exception("transform job %s", job.request["TransformJobName"])
        job.settle("Failed", f"InternalServerError: this is a bug of the emulator: {error!r}")
    else:
        if job.stopping.is_set():
            job.settle("Stopped")
        elif bad:
            job.settle("Failed", bad)
        else:
            job.settle("Completed")


class _Transform:
    """One job at work, as its model's execution role."""

    def __init__(self, job: Job) -> None:
        self._job, self._request = job, job.request
        name = self._request["TransformJobName"]
        try:
            credentials = roles.assume(
                job.model["ExecutionRoleArn"], service=SERVICE, session="SageMaker"
            )
        except roles.RoleError as error:
            raise JobFailed(f"ClientError: {error}") from error
        self._s3 = roles.client("s3", credentials)
        self._stream = f"{name}/i-{job.arn.encode().hex()[-17:]}"
        # Without the permission to write logs a job runs too, only unseen.
        self._data_log: LogStream | None = None
        with contextlib.suppress(ClientError):
            self._data_log = LogStream(
                roles.client("logs", credentials),
                group=LOG_GROUP,
                stream=f"{self._stream}/data-log",
            )

    def run(self) -> str | None:
        """Transform every object; return why some could not be, None when all were.

        Raises:
            JobFailed, ContainerError, ClientError: the job ends here.
        """
        try:
            objects = list(self._objects())
            if not objects:
                uri = self._request["TransformInput"]["DataSource"]["S3DataSource"]["S3Uri"]
                raise JobFailed(f"ClientError: No S3 objects found under S3 URL {uri}")
            container = self._start()
            try:
                return self._transform_all(container, objects)
            finally:
                container.stop()
        finally:
            if self._data_log is not None:
                self._data_log.close()

    def _objects(self) -> Iterator[tuple[str, str, str]]:
        """Yield bucket and key of each input object, and the name that its output has."""
        source = self._request["TransformInput"]["DataSource"]["S3DataSource"]
        bucket, prefix = _location(source["S3Uri"])
        if source["S3DataType"] == "ManifestFile":
            manifest = json.loads(self._s3.get_object(Bucket=bucket, Key=prefix)["Body"].read())
            root = manifest[0]["prefix"]
            for name in manifest[1:]:
                yield (*_location(root + name), name)
            return
        folder = prefix.rpartition("/")[0]
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for item in itertools.chain.from_iterable(page.get("Contents", ()) for page in pages):
            if not item["Key"].endswith("/"):
                yield bucket, item["Key"], item["Key"].removeprefix(folder).lstrip("/")

    def _start(self) -> Container:
        definition = _container(self._job.model)
        told = {
            "SAGEMAKER_BATCH": "true",
            "SAGEMAKER_BATCH_STRATEGY": self._request.get("BatchStrategy"),
            "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": self._request.get("MaxConcurrentTransforms"),
            "SAGEMAKER_MAX_PAYLOAD_IN_MB": self._request.get("MaxPayloadInMB"),
        }
        container = Container(
            Launch(
                name=self._request["TransformJobName"],
                image_uri=definition["Image"],
                environment={
                    **{name: str(value) for name, value in told.items() if value is not None},
                    **(definition.get("Environment") or {}),
                    **self._request.get("Environment", {}),
                },
                model_data=ModelData.of(definition),
                role_arn=self._job.model["ExecutionRoleArn"],
                log_group=LOG_GROUP,
                log_stream=self._stream,
            ),
            is_wanted=lambda: not self._job.stopping.is_set(),
        )
        try:
            container.wait_healthy(CONFIG.scaled(_HEALTH_SECONDS))
        except ContainerError as error:
            container.stop()
            if self._job.stopping.is_set():
                return container
            raise JobFailed(
                "AlgorithmError: The primary container did not pass the ping health check. "
                f"{_SEE_LOGS}. (Emulator: the container {error})"
            ) from error
        return container

    def _transform_all(
        self, container: Container, objects: Sequence[tuple[str, str, str]]
    ) -> str | None:
        execution = _execution(self._request, _parameters(container.port))
        failures = []
        for bucket, key, name in objects:
            if self._job.stopping.is_set():
                break
            try:
                self._transform(container.port, execution, bucket, key, name)
            except _BadInput as error:
                self._note(f"{key}: {error}")
                failures.append(str(error))
        return failures[0] if failures else None

    def _transform(self, port: int, execution: Execution, bucket: str, key: str, name: str) -> None:
        content = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        payloads = list(_payloads(content, self._request, execution))
        caller = _Caller(port, self._request, execution, self._job.stopping.is_set, self._note)
        with ThreadPoolExecutor(max_workers=execution.concurrency) as pool:
            answers = list(pool.map(caller.call, payloads))
        if self._job.stopping.is_set():
            return
        output = self._request["TransformOutput"]
        end = b"\n" if output.get("AssembleWith") == "Line" else b""
        target, folder = _location(output["S3OutputPath"])
        self._s3.put_object(
            Bucket=target,
            Key=f"{folder.rstrip('/')}/{name}.out".lstrip("/"),
            Body=b"".join(answer + end for answer in answers),
        )

    def _note(self, line: str) -> None:
        """Write to the job's data log."""
        if self._data_log is not None:
            self._data_log.write(line)


def _parameters(port: int) -> Json:
    """Ask a container how it wants to be called; nothing when it does not say."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/execution-parameters")
            response = connection.getresponse()
            found = json.loads(response.read()) if response.status == 200 else {}
        except (OSError, http.client.HTTPException, ValueError):
            return {}
    return found if isinstance(found, dict) else {}


def _execution(request: Json, parameters: Mapping[str, Any]) -> Execution:
    strategies = {"MULTI_RECORD": "MultiRecord", "SINGLE_RECORD": "SingleRecord"}
    wanted = strategies.get(str(parameters.get("BatchStrategy")), "MultiRecord")
    megabytes = request.get("MaxPayloadInMB", parameters.get("MaxPayloadInMB", 6))
    concurrency = request.get("MaxConcurrentTransforms") or parameters.get(
        "MaxConcurrentTransforms", 1
    )
    client = request.get("ModelClientConfig", {})
    return Execution(
        concurrency=int(concurrency),
        payload_bytes=int(megabytes) * _MEGABYTE or None,
        is_multi_record=request.get("BatchStrategy", wanted) == "MultiRecord",
        retries=client.get("InvocationsMaxRetries", 3),
        timeout_seconds=CONFIG.scaled(client.get("InvocationsTimeoutInSeconds", 600)),
    )


def _payloads(content: bytes, request: Json, execution: Execution) -> Iterator[bytes]:
    """Yield what each request sends of an object.

    Raises:
        _BadInput: a record is larger than a payload may be.
    """
    limit = execution.payload_bytes
    is_split = request["TransformInput"].get("SplitType", "None") == "Line"
    records = _lines(content) if is_split else [content]
    payload = b""
    for record in records:
        if limit is not None and len(record) > limit:
            raise _BadInput(
                f"ClientError: a record of {len(record)} bytes exceeds MaxPayloadInMB. {_SEE_LOGS}"
            )
        too_long = limit is not None and len(payload) + len(record) > limit
        if payload and (too_long or not execution.is_multi_record):
            yield payload
            payload = b""
        payload += record
    if payload:
        yield payload


def _lines(content: bytes) -> list[bytes]:
    """Return the lines with their ends; a carriage return alone ends none."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


class _Caller:
    """Sends the payloads of one object to the container."""

    def __init__(
        self,
        port: int,
        request: Json,
        execution: Execution,
        is_stopping: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self._port, self._execution = port, execution
        self._is_stopping, self._note = is_stopping, note
        sent = {
            "Content-Type": request["TransformInput"].get("ContentType"),
            "Accept": request["TransformOutput"].get("Accept"),
        }
        self._headers = {name: value for name, value in sent.items() if value}

    def call(self, payload: bytes) -> bytes:
        """Return the container's answer to a payload, after as many tries as are allowed.

        Raises:
            _BadInput: it answered an error, or nothing in time.
        """
        problem = ""
        for _ in range(1 + self._execution.retries):
            if self._is_stopping():
                return b""
            try:
                status, answer = self._post(payload)
            except (OSError, http.client.HTTPException) as error:
                problem = f"AlgorithmError: no answer from the container ({error!r}). {_SEE_LOGS}"
                continue
            if status // 100 == 2:
                return answer
            self._note(f"Bad HTTP status received from algorithm: {status}")
            self._note(answer.decode(errors="replace")[:1000])
            if status // 100 == 4 and status not in _RETRIED:
                raise _BadInput(f"ClientError: {status}. {_SEE_LOGS}")
            problem = f"AlgorithmError: {status}. {_SEE_LOGS}"
        raise _BadInput(problem)

    def _post(self, payload: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=self._execution.timeout_seconds
        )
        with contextlib.closing(connection):
            connection.request("POST", "/invocations", body=payload, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read()
