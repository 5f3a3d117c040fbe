"""SageMaker batch transform jobs: an input is cut into parts, and put together again.

What a job needs to be found again lies with AWS alone: under the job's name, and beside the parts.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3.exceptions
from botocore.exceptions import ClientError

from ballot import __version__
from ballot.aws_errors import error_from_botocore
from ballot.batch.answers import Answer, Tally, read_answer
from ballot.batch.errors import BatchError
from ballot.batch.lines import Source
from ballot.commands.aws import CONFIG, aws_errors, make_session
from ballot.commands.inventory import DeployedEndpoint
from ballot.errors import BallotError, InvalidAnswer
from ballot.transport import JSON_LINES

FOLDER = "batch"
ENDED = frozenset({"Completed", "Failed", "Stopped"})
_MEGABYTE = 1 << 20
# SageMaker gives parts to instances whole, so that one part an instance might wait for the slowest.
_PARTS_PER_INSTANCE = 4
_MOST_INSTANCES = 100
# As long as SageMaker waits for an answer at all. A line waits behind the others of its job.
_LINE_SECONDS = 3600
_MOST_RETRIES = 3
_NAME_CHARACTERS = 40
_RESULT_SUFFIX = ".out"
_LINES_KEY = "ballot-lines"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a job is to do, and on what; `location` is the S3 URI under which its folder is made."""

    source: Source
    endpoint: DeployedEndpoint
    location: str | None
    instance_type: str | None
    instances: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it is now; times are None until they come."""

    name: str
    status: str
    failure_reason: str | None
    input: str
    output: str
    model: str
    instance_type: str
    instances: int
    created: datetime
    started: datetime | None
    ended: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long it has been working, or worked."""
        if self.started is None:
            return None
        return ((self.ended or datetime.now(timezone.utc)) - self.started).total_seconds()

    def as_json(self) -> dict[str, Any]:
        """Return the job for `--json`."""
        times = {
            name: moment.isoformat() if moment else None
            for name, moment in (
                ("created", self.created),
                ("started", self.started),
                ("ended", self.ended),
            )
        }
        return {**vars(self), **times}


@dataclass(frozen=True)
class _Place:
    """A bucket, and the start of keys in it."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str) -> _Place:
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        if not uri.startswith("s3://") or not bucket:
            raise BatchError(f"{uri} is not an S3 URI such as s3://bucket/prefix", code="bad_uri")
        return cls(bucket, prefix.rstrip("/") + "/" if prefix else "")

    def inside(self, name: str) -> _Place:
        """Return a folder in it."""
        return _Place(self.bucket, f"{self.prefix}{name}/")

    @property
    def uri(self) -> str:
        """The S3 URI."""
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class _Part:
    """One object of a job's input: its file name, and how many lines it has."""

    name: str
    lines: int


@dataclass(frozen=True)
class _Object:
    """One object of a job's output."""

    bucket: str
    key: str


class TransformJobs:
    """Makes, watches and ends jobs, with the caller's AWS credentials.

    Every method raises BallotError where AWS refuses or cannot be reached.
    """

    def __init__(self, region: str | None) -> None:
        self._session = make_session(region)

    def submit(self, request: Request) -> Job:
        """Upload the input and start a job on it.

        Raises:
            BatchError: the endpoint has no model for it, or the input cannot be sent that way.
        """
        model = _batch_model(request.endpoint)
        self._check_model(model)
        resources = {
            "InstanceType": self._instance_type(request),
            "InstanceCount": _checked_instances(request.instances),
        }
        _check_input(request.source)
        name = _job_name(request.endpoint.name)
        place = _place(request).inside(name)
        self._upload(request, place.inside("input"))
        with aws_errors():
            self._sagemaker.create_transform_job(
                TransformJobName=name,
                ModelName=model,
                TransformResources=resources,
                Tags=_tags(request.endpoint),
                **_execution(request.source),
                **_data(place),
            )
        return self.find(name)

    def find(self, name: str) -> Job:
        """Return a job.

        Raises:
            BatchError: there is none of that name in this account and Region.
        """
        try:
            with aws_errors():
                found = self._sagemaker.describe_transform_job(TransformJobName=name)
        except BallotError as error:
            if "could not find" not in error.message.lower():
                raise
            raise BatchError(
                f"there is no transform job {name} in {self._session.region_name}",
                code="job_not_found",
            ) from error
        return _job(found)

    def stop(self, name: str) -> Job:
        """Stop a job that has not ended; it takes a while."""
        job = self.find(name)
        if job.status == "InProgress":
            with aws_errors():
                self._sagemaker.stop_transform_job(TransformJobName=name)
            job = self.find(name)
        return job

    def of_endpoint(self, endpoint_name: str) -> Iterator[dict[str, Any]]:
        """Yield name, status and creation of the jobs that were submitted for an endpoint."""
        prefix = endpoint_name[:_NAME_CHARACTERS]
        with aws_errors():
            pages = self._sagemaker.get_paginator("list_transform_jobs").paginate(
                NameContains=prefix, SortBy="CreationTime", SortOrder="Descending"
            )
            for page in pages:
                for found in page["TransformJobSummaries"]:
                    if found["TransformJobName"].startswith(f"{prefix}-"):
                        yield {
                            "name": found["TransformJobName"],
                            "status": found["TransformJobStatus"],
                            "created": found["CreationTime"].astimezone(timezone.utc).isoformat(),
                        }

    def fetch(self, job: Job, output: Path) -> Tally:
        """Write a completed job's answers, in the order of its input, whole or not at all.

        Raises:
            BatchError: it has not one answer for each line.
            OSError: the output cannot be written.
        """
        parts = self._parts(_Place.of(job.input))
        results = self._results(_Place.of(job.output))
        if missing := [part.name for part in parts if part.name not in results]:
            raise BatchError(
                f"there are no answers to {missing[0]} in {job.output}", code="output_gone"
            )
        tally = Tally()
        with tempfile.TemporaryDirectory(prefix=".ballot-", dir=output.parent) as folder:
            unfinished = Path(folder) / "answers"
            with unfinished.open("wb") as file:
                for part in parts:
                    result = results[part.name]
                    for answer in self._answers(part, result, Path(folder), tally.lines):
                        file.write(answer.line + b"\n")
                        tally.add([answer])
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(output)
        return tally

    @cached_property
    def _sagemaker(self) -> Any:
        return self._session.client("sagemaker", config=CONFIG)

    @cached_property
    def _s3(self) -> Any:
        return self._session.client("s3", config=CONFIG)

    def _check_model(self, name: str) -> None:
        """Refuse a model that a job would fail with, once its instances have been paid for."""
        with aws_errors():
            found = self._sagemaker.describe_model(ModelName=name)
        variables = found["PrimaryContainer"].get("Environment", {})
        if variables.get("BALLOT_GPU_LAYERS", "0") != "0":
            raise BatchError(
                f"{name} decodes on a GPU, and batch transform has no driver for its CUDA 13: "
                "its newest is 535; use `ballot batch run` with the endpoint",
                code="gpu_model",
            )

    def _instance_type(self, request: Request) -> str:
        """Return the type to run on, which must be one that batch transform has."""
        wanted = request.instance_type or next(iter(request.endpoint.instance_types), "")
        model = self._sagemaker.meta.service_model
        offered: Sequence[str] = model.shape_for("TransformInstanceType").enum
        if wanted not in offered:
            raise BatchError(
                f"batch transform does not offer {wanted or 'the type of the endpoint'}; name "
                "another with --instance-type, such as ml.c7i.4xlarge",
                code="instance_type_not_offered",
            )
        return wanted

    def _upload(self, request: Request, place: _Place) -> None:
        """Upload the input in as many parts as keep the instances busy."""
        source = request.source
        count = 1 if request.instances == 1 else request.instances * _PARTS_PER_INSTANCE
        sizes = _split_evenly(source.lines, min(count, source.lines))
        lines = source.read()
        with tempfile.TemporaryDirectory(prefix="ballot-") as folder:
            for number, size in enumerate(sizes, start=1):
                path = Path(folder) / f"part-{number:05}.jsonl"
                with path.open("wb") as file:
                    for _ in range(size):
                        file.write(next(lines).content + b"\n")
                extra = {"ContentType": JSON_LINES, "Metadata": {_LINES_KEY: str(size)}}
                key = place.prefix + path.name
                try:
                    with aws_errors():
                        self._s3.upload_file(str(path), place.bucket, key, ExtraArgs=extra)
                except boto3.exceptions.S3UploadFailedError as error:
                    raise _upload_error(error) from error
                path.unlink()
        next(lines, None)  # which finds out whether the file has changed meanwhile

    def _parts(self, place: _Place) -> list[_Part]:
        """Return the parts of a job's input, in order."""
        parts = []
        for key in self._keys(place):
            with aws_errors():
                head = self._s3.head_object(Bucket=place.bucket, Key=key)
            lines = head["Metadata"].get(_LINES_KEY)
            if lines is None:
                raise BatchError(
                    f"s3://{place.bucket}/{key} is no part of a job of `ballot batch submit`",
                    code="not_our_job",
                )
            parts.append(_Part(key.removeprefix(place.prefix), int(lines)))
        if not parts:
            raise BatchError(
                f"there is no input any more in {place.uri}, which tells what the answers are to",
                code="input_gone",
            )
        return parts

    def _results(self, place: _Place) -> dict[str, _Object]:
        """Return a job's output by the part that each object answers, wherever under `place`."""
        return {
            key.rpartition("/")[2].removesuffix(_RESULT_SUFFIX): _Object(place.bucket, key)
            for key in self._keys(place)
            if key.endswith(_RESULT_SUFFIX)
        }

    def _keys(self, place: _Place) -> list[str]:
        """Return the keys of a place, in order."""
        with aws_errors():
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=place.bucket, Prefix=place.prefix
            )
            return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))

    def _answers(self, part: _Part, result: _Object, folder: Path, before: int) -> Iterator[Answer]:
        """Yield the answers of one part, behind the `before` lines of those before it."""
        path = folder / part.name
        with aws_errors():
            self._s3.download_file(result.bucket, result.key, str(path))
        count = 0
        with path.open("rb") as file:
            for line in file:
                # SageMaker ends each answer with a line feed, whether or not it has one.
                if not line.strip():
                    continue
                count += 1
                yield _read(line.rstrip(b"\r\n"), before + count)
        path.unlink()
        if count != part.lines:
            raise BatchError(
                f"{part.name} has {count} answers to {part.lines} lines", code="answers_missing"
            )


def _batch_model(endpoint: DeployedEndpoint) -> str:
    """Return the name of the SageMaker model that batch transform can take."""
    if endpoint.kind != "decision":
        raise BatchError(
            f"{endpoint.name} is no decision endpoint, and only those answer in bulk",
            code="not_a_decision_endpoint",
        )
    tagged = endpoint.provenance and endpoint.provenance.batch_model
    if tagged:
        return tagged
    if endpoint.model_name and endpoint.model and endpoint.model.is_archive:
        return endpoint.model_name
    raise BatchError(
        f"{endpoint.name} has no model that batch transform can take, which is a packed one: set "
        '"batch": true for it in cdk.json and deploy',
        code="no_batch_model",
    )


def _check_input(source: Source) -> None:
    """Refuse what SageMaker would not send on line by line as it is."""
    if not source.lines:
        raise BatchError(f"{source.path} has no lines", code="empty_input")
    if source.first_blank is not None:
        raise BatchError(
            f"line {source.first_blank} of {source.path} is blank, and batch transform would lose "
            "it: delete it",
            code="blank_line",
        )


def _checked_instances(count: int) -> int:
    if not 1 <= count <= _MOST_INSTANCES:
        raise BatchError(
            f"{count} instances are not offered; give 1 to {_MOST_INSTANCES}",
            code="bad_instances",
        )
    return count


def _data(place: _Place) -> dict[str, Any]:
    """Return where a job's lines come from and its answers go to, and that they are lines."""
    source = {"S3DataType": "S3Prefix", "S3Uri": place.inside("input").uri}
    return {
        "TransformInput": {
            "DataSource": {"S3DataSource": source},
            "ContentType": JSON_LINES,
            "SplitType": "Line",
        },
        "TransformOutput": {
            "S3OutputPath": place.inside("output").uri.rstrip("/"),
            "Accept": JSON_LINES,
            "AssembleWith": "Line",
        },
    }


def _execution(source: Source) -> dict[str, Any]:
    """Return how the lines are sent: each in a request of its own, however long it is.

    Of a request with many short lines nobody could say that it will be answered within the hour
    that SageMaker waits for it at most; and between requests the model is idle for milliseconds.
    How many are under way at a time, the container says itself.
    """
    megabytes = source.longest_bytes // _MEGABYTE + 1
    return {
        "BatchStrategy": "SingleRecord",
        "MaxPayloadInMB": megabytes,
        "ModelClientConfig": {
            "InvocationsTimeoutInSeconds": _LINE_SECONDS,
            "InvocationsMaxRetries": _MOST_RETRIES,
        },
        "Environment": {
            "BALLOT_MAX_BODY_BYTES": str(megabytes * _MEGABYTE),
            "BALLOT_REQUEST_TIMEOUT_SECONDS": str(_LINE_SECONDS),
        },
    }


def _tags(endpoint: DeployedEndpoint) -> list[dict[str, str]]:
    """Return the tags by which the job's costs are the endpoint's."""
    found = endpoint.provenance.tags if endpoint.provenance else {}
    tags = {key: found[key] for key in ("environment", "endpoint") if key in found}
    return [
        {"Key": f"ballot:{key}", "Value": value}
        for key, value in {**tags, "client": __version__}.items()
    ]


def _place(request: Request) -> _Place:
    """Return where the job's folder is made: as asked, or in the bucket that the model is in."""
    if request.location:
        return _Place.of(request.location)
    assert request.endpoint.model is not None, "this is a bug: a decision endpoint has a model"
    return _Place(_Place.of(request.endpoint.model.uri).bucket, f"{FOLDER}/")


def _job_name(endpoint_name: str) -> str:
    moment = datetime.now(timezone.utc)
    start = endpoint_name[:_NAME_CHARACTERS].rstrip("-")
    return f"{start}-{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _split_evenly(lines: int, parts: int) -> list[int]:
    """Return how many lines each part gets."""
    least, rest = divmod(lines, parts)
    return [least + (number < rest) for number in range(parts)]


def _job(found: dict[str, Any]) -> Job:
    resources = found["TransformResources"]

    def moment(name: str) -> datetime | None:
        value = found.get(name)
        return value.astimezone(timezone.utc) if value else None

    created = moment("CreationTime")
    assert created is not None, "this is a bug: SageMaker's answer is not validated by botocore"
    return Job(
        name=found["TransformJobName"],
        status=found["TransformJobStatus"],
        failure_reason=found.get("FailureReason"),
        input=found["TransformInput"]["DataSource"]["S3DataSource"]["S3Uri"],
        output=found["TransformOutput"]["S3OutputPath"],
        model=found["ModelName"],
        instance_type=resources["InstanceType"],
        instances=resources["InstanceCount"],
        created=created,
        started=moment("TransformStartTime"),
        ended=moment("TransformEndTime"),
    )


def _read(line: bytes, number: int) -> Answer:
    try:
        return read_answer(line, place=1, number=number)
    except InvalidAnswer as error:
        raise BatchError(error.message, code="invalid_answer") from error


def _upload_error(error: Exception) -> BallotError:
    """Return what S3 refused an upload with; boto3 tells the reason in text alone."""
    cause = error.__context__
    if isinstance(cause, ClientError):
        return error_from_botocore(cause)
    return BatchError(str(error), code="upload_failed")
