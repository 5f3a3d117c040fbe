"""SageMaker batch transform jobs: an input is cut into parts, and put together again.

What a job needs to be found again lies with AWS alone: under the job's name, and beside the parts.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3.exceptions
from botocore.exceptions import ClientError

from ballot import __version__
from ballot.aws_errors import error_from_botocore
from ballot.batch.answers import Answer, Tally, own_error, read_answer
from ballot.batch.errors import BatchError, BatchFailed
from ballot.batch.lines import Line, Source
from ballot.batch.record import Binding, write_binding
from ballot.commands.aws import CONFIG, aws_errors, make_session
from ballot.commands.inventory import DeployedEndpoint
from ballot.errors import BallotError, InvalidAnswer
from ballot.transport import JSON_LINES

FOLDER = "batch"
ENDED = frozenset({"Completed", "Failed", "Stopped"})
_MEGABYTE = 1 << 20
# SageMaker gives parts to instances whole, so that one part an instance might wait for the slowest.
_PARTS_PER_INSTANCE = 4
# A job that fails, or is stopped, has answers to whole parts alone.
_MOST_PART_LINES = 5_000
_MOST_PART_BYTES = 256 * _MEGABYTE
_MOST_INSTANCES = 100
# As long as SageMaker waits for an answer at all. A line waits behind the others of its job.
_LINE_SECONDS = 3600
_MOST_RETRIES = 3
_NAME_CHARACTERS = 40
_RESULT_SUFFIX = ".out"
_LINES_KEY = "ballot-lines"
_INPUT_KEY = "ballot-input-sha256"
# Of the types that batch transform has, those whose disks are no part of the instance itself.
_VOLUME_TYPES = re.compile(r"ml\.[cmr]\d+i?\.\w+")


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


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One object of a job's input: its file name, how many lines it has, and of which input."""

    name: str
    lines: int
    input_sha256: str


@dataclass(frozen=True)
class _Object:
    """One object of a job's input or output."""

    bucket: str
    key: str


@dataclass
class Fetched:
    """What was written of a job's answers; `missing` are the first and last lines without one."""

    tally: Tally = field(default_factory=Tally)
    missing: list[tuple[int, int]] = field(default_factory=list)


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
        instance_type = self._instance_type(request)
        _check_instances(request.instances)
        _check_input(request.source)
        name = _job_name(request.endpoint.name)
        place = _place(request).inside(name)
        self._upload(request, place.inside("input"))
        provenance = request.endpoint.provenance
        key = provenance.kms_key if provenance else None
        with aws_errors():
            self._sagemaker.create_transform_job(
                TransformJobName=name,
                ModelName=model,
                TransformResources=_resources(instance_type, request.instances, key),
                Tags=_tags(request.endpoint),
                **_execution(request.source),
                **_data(place, key),
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
        start = _name_start(endpoint_name)
        pattern = re.compile(rf"{re.escape(start)}-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}")
        with aws_errors():
            pages = self._sagemaker.get_paginator("list_transform_jobs").paginate(
                NameContains=start, SortBy="CreationTime", SortOrder="Descending"
            )
            for page in pages:
                for found in page["TransformJobSummaries"]:
                    if pattern.fullmatch(found["TransformJobName"]):
                        yield {
                            "name": found["TransformJobName"],
                            "status": found["TransformJobStatus"],
                            "created": found["CreationTime"].astimezone(timezone.utc).isoformat(),
                        }

    def fetch(self, job: Job, output: Path) -> Fetched | None:
        """Write an ended job's answers, in the order of its input, whole or not at all.

        Of a job that has failed or was stopped, each line of a part without answers gets an error.
        Beside the output lies what `ballot batch run` needs to ask lines of it again.

        Returns:
            What was written; None where the job has failed, or was stopped, without any answer.

        Raises:
            BatchError: its input is gone, or not ours.
            BatchFailed: it has completed, and has not one answer for each line.
            OSError: the output cannot be written.
        """
        place = _Place.of(job.input)
        parts = self._parts(place)
        results = self._results(_Place.of(job.output))
        if job.status != "Completed" and not results:
            return None
        missing = [part.name for part in parts if part.name not in results]
        if job.status == "Completed" and missing:
            raise BatchFailed(
                f"there are no answers to {missing[0]} in {job.output}", code="output_gone"
            )
        fetched, model_sha256 = Fetched(), None
        with tempfile.TemporaryDirectory(prefix=".ballot-", dir=output.parent) as folder:
            unfinished = Path(folder) / "answers"
            with unfinished.open("wb") as file:
                for part in parts:
                    before = fetched.tally.lines
                    if part.name in results:
                        answers = self._answers(part, results[part.name], Path(folder), before)
                    else:
                        asked = _Object(place.bucket, place.prefix + part.name)
                        answers = self._unanswered(part, asked, Path(folder), before)
                        _extend(fetched.missing, before + 1, before + part.lines)
                    for answer in answers:
                        file.write(answer.line + b"\n")
                        fetched.tally.add([answer])
                        model_sha256 = answer.model_sha256 or model_sha256
                file.flush()
                os.fsync(file.fileno())
            binding = Binding(
                input_name=f"that of {job.name}",
                input_sha256=parts[0].input_sha256,
                input_lines=fetched.tally.lines,
                model_sha256=model_sha256,
            )
            write_binding(output, binding)
            unfinished.replace(output)
        return fetched

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
        lines = source.read()
        most_lines = _part_lines(source.lines, request.instances)
        with tempfile.TemporaryDirectory(prefix="ballot-") as folder:
            for number in itertools.count(1):
                path = Path(folder) / f"part-{number:05}.jsonl"
                size = _write_part(path, lines, most_lines)
                if not size:
                    break
                metadata = {_LINES_KEY: str(size), _INPUT_KEY: source.sha256}
                extra = {"ContentType": JSON_LINES, "Metadata": metadata}
                key = place.prefix + path.name
                try:
                    with aws_errors():
                        self._s3.upload_file(str(path), place.bucket, key, ExtraArgs=extra)
                except boto3.exceptions.S3UploadFailedError as error:
                    raise _upload_error(error) from error
                path.unlink()

    def _parts(self, place: _Place) -> list[_Part]:
        """Return the parts of a job's input, in order."""
        parts = []
        for key in self._keys(place):
            with aws_errors():
                head = self._s3.head_object(Bucket=place.bucket, Key=key)
            lines, sha256 = (head["Metadata"].get(name) for name in (_LINES_KEY, _INPUT_KEY))
            if lines is None or sha256 is None:
                raise BatchError(
                    f"s3://{place.bucket}/{key} is no part of a job of `ballot batch submit`",
                    code="not_our_job",
                )
            name = key.removeprefix(place.prefix)
            parts.append(_Part(name=name, lines=int(lines), input_sha256=sha256))
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
            raise BatchFailed(
                f"{part.name} has {count} answers to {part.lines} lines", code="answers_missing"
            )

    def _unanswered(
        self, part: _Part, asked: _Object, folder: Path, before: int
    ) -> Iterator[Answer]:
        """Yield the errors of a part that has no answers."""
        error = BallotError(
            "the job ended before this line was answered", code="not_answered", retryable=True
        )
        path = folder / part.name
        with aws_errors():
            self._s3.download_file(asked.bucket, asked.key, str(path))
        with path.open("rb") as file:
            for number, line in enumerate(file, start=before + 1):
                yield own_error(error, Line(number, line.removesuffix(b"\n")))
        path.unlink()


def _batch_model(endpoint: DeployedEndpoint) -> str:
    """Return the name of the SageMaker model that batch transform can take."""
    if endpoint.kind != "decision":
        raise BatchError(
            f"{endpoint.name} is no decision endpoint, and only those answer in bulk",
            code="not_a_decision_endpoint",
        )
    if endpoint.provenance is None:
        raise BatchError(
            f"the tags of {endpoint.name} say which model does bulk work, and may not be read: "
            "have sagemaker:ListTags granted to you",
            code="no_tags",
        )
    if endpoint.provenance.batch_model is None:
        raise BatchError(
            f"{endpoint.name} has no model and no rights for batch transform: set "
            '"batch": true for it in cdk.json and deploy',
            code="no_batch_model",
        )
    return endpoint.provenance.batch_model


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


def _check_instances(count: int) -> None:
    if not 1 <= count <= _MOST_INSTANCES:
        raise BatchError(
            f"{count} instances are not offered; give 1 to {_MOST_INSTANCES}",
            code="bad_instances",
        )


def _resources(instance_type: str, instances: int, key: str | None) -> dict[str, Any]:
    """Return what a job runs on; a key encrypts the volumes of what has any."""
    resources = {"InstanceType": instance_type, "InstanceCount": instances}
    if key and _VOLUME_TYPES.fullmatch(instance_type):
        return {**resources, "VolumeKmsKeyId": key}
    return resources


def _data(place: _Place, key: str | None) -> dict[str, Any]:
    """Return where a job's lines come from and its answers go to, and that they are lines."""
    source = {"S3DataType": "S3Prefix", "S3Uri": place.inside("input").uri}
    encrypted = {"KmsKeyId": key} if key else {}
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
            **encrypted,
        },
    }


def _execution(source: Source) -> dict[str, Any]:
    """Return how the lines are sent: each in a request of its own, however long it is.

    Of a request with many short lines nobody could say that it will be answered within the hour
    that SageMaker waits for it at most. How many are under way at a time, the container says.
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
    return f"{_name_start(endpoint_name)}-{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _name_start(endpoint_name: str) -> str:
    """Return what the names of an endpoint's jobs begin with."""
    return endpoint_name[:_NAME_CHARACTERS].rstrip("-")


def _part_lines(lines: int, instances: int) -> int:
    """Return how many lines a part has at most, so that instances are busy and little is lost."""
    parts = 1 if instances == 1 else instances * _PARTS_PER_INSTANCE
    return min(math.ceil(lines / parts), _MOST_PART_LINES)


def _write_part(path: Path, lines: Iterator[Line], most_lines: int) -> int:
    """Write the next lines, as many as are in a part; return how many, 0 at the end."""
    count = size = 0
    with path.open("wb") as file:
        for line in lines:
            size += file.write(line.content + b"\n")
            count += 1
            if count == most_lines or size >= _MOST_PART_BYTES:
                break
    return count


def _extend(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Add lines behind those of the ranges."""
    if ranges and ranges[-1][1] == first - 1:
        first = ranges.pop()[0]
    ranges.append((first, last))


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
        raise BatchFailed(error.message, code="invalid_answer") from error


def _upload_error(error: Exception) -> BallotError:
    """Return what S3 refused an upload with; boto3 tells the reason in text alone."""
    cause = error.__context__
    if isinstance(cause, ClientError):
        return error_from_botocore(cause)
    return BatchError(str(error), code="upload_failed")
