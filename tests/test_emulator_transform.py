"""Batch transform in the emulator: what a container is sent, and what becomes of its answers.

The container echoes: its answer to a payload says what it was sent, so that each test reads from
the output what AWS's developer guide says that SageMaker does.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulated_aws import BUCKET, FAKE_CONTEXT, Aws, polls, running

MEGABYTE = 1 << 20

# Its answers say what it was sent. A payload with "fail N" is answered N times with status 500.
BATCH_ADAPTER = """
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

failures, lock, active, most = {}, threading.Lock(), 0, 0

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path != "/execution-parameters":
            return self.answer(200, b"")
        if "PARAMETERS" not in os.environ:
            return self.answer(404, b"")
        self.answer(200, os.environ["PARAMETERS"].encode())
    def do_POST(self):
        global active, most
        with lock:
            active += 1
            most = max(most, active)
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if "slow" in text:
            time.sleep(0.3)
        status = 200
        with lock:
            for line in text.splitlines():
                if line.startswith("fail ") and failures.get(line, 0) < int(line.split()[1]):
                    failures[line] = failures.get(line, 0) + 1
                    status = 500
                if line.startswith("refuse "):
                    status = int(line.split()[1])
        model = Path(os.environ["BALLOT_MODEL_DIR"])
        answer = json.dumps({
            "lines": text.splitlines() if len(text) < 10000 else len(text),
            "most": most,
            "type": self.headers.get("Content-Type"), "accept": self.headers.get("Accept"),
            "files": sorted(p.name for p in model.iterdir()),
            "environment": {k: v for k, v in os.environ.items()
                            if k.startswith("SAGEMAKER_") or k == "WHO"},
        })
        with lock:
            active -= 1
        self.answer(status, answer.encode())

ThreadingHTTPServer(("127.0.0.1", int(os.environ["BALLOT_PORT"])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with running(tmp_path_factory.mktemp("emulator")) as aws:
        actions = ("s3:GetObject", "s3:ListBucket", "s3:PutObject", "logs:*", "ecr:*")
        aws.run_role = aws.role("sagemaker", *actions)
        aws("s3").put_object(Bucket=BUCKET, Key="model.tar.gz", Body=packed("tiny.gguf"))
        yield aws


@pytest.fixture(scope="module")
def image(aws: Aws) -> str:
    return aws.push({**FAKE_CONTEXT, "adapter/__main__.py": BATCH_ADAPTER})


@pytest.fixture(scope="module")
def model(aws: Aws, image: str) -> str:
    return make_model(aws, image)


def packed(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def make_model(aws: Aws, image: str, *, role: str = "", **environment: str) -> str:
    name = aws.name()
    aws("sagemaker").create_model(
        ModelName=name,
        ExecutionRoleArn=role or aws.run_role,
        PrimaryContainer={
            "Image": image,
            "ModelDataUrl": f"s3://{BUCKET}/model.tar.gz",
            "Environment": {"WHO": "the model", **environment},
        },
    )
    return name


class Batch:
    """A job over some objects, each given by the text that it holds."""

    def __init__(self, aws: Aws, model: str, objects: dict[str, str], **more: Any) -> None:
        self.aws, self.name = aws, aws.name()
        for key, text in objects.items():
            aws("s3").put_object(Bucket=BUCKET, Key=f"in/{self.name}/{key}", Body=text.encode())
        source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/in/{self.name}/"}
        given = more.pop("input", {})
        request = {
            "TransformJobName": self.name,
            "ModelName": model,
            "TransformInput": {
                "DataSource": {"S3DataSource": source},
                "ContentType": "application/jsonlines",
                "SplitType": "Line",
                **given,
            },
            "TransformOutput": {
                "S3OutputPath": f"s3://{BUCKET}/out/{self.name}",
                "Accept": "application/jsonlines",
                "AssembleWith": "Line",
            },
            "TransformResources": {"InstanceType": "ml.c7i.xlarge", "InstanceCount": 1},
            **more,
        }
        aws("sagemaker").create_transform_job(**request)

    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = self.aws("sagemaker").describe_transform_job(
            TransformJobName=self.name
        )
        return found

    def ended(self) -> dict[str, Any]:
        for _ in polls(f"job {self.name}"):
            found = self.described()
            if found["TransformJobStatus"] in ("Completed", "Failed", "Stopped"):
                return found
        raise AssertionError

    def outputs(self) -> dict[str, list[Any]]:
        """What the job wrote: the lines of each object, by the object's name."""
        prefix = f"out/{self.name}/"
        found = self.aws("s3").list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
        return {
            row["Key"].removeprefix(prefix): [
                json.loads(line)
                for line in self.aws("s3")
                .get_object(Bucket=BUCKET, Key=row["Key"])["Body"]
                .read()
                .splitlines()
            ]
            for row in found
        }


def completed(batch: Batch) -> dict[str, list[Any]]:
    found = batch.ended()
    assert found["TransformJobStatus"] == "Completed", found
    assert "FailureReason" not in found
    return batch.outputs()


def test_a_job_answers_every_object_in_order(aws: Aws, model: str) -> None:
    batch = Batch(aws, model, {"one.jsonl": "a\nb\n", "deep/two.jsonl": "c\nd\ne"})
    outputs = completed(batch)
    assert {name: [line["lines"] for line in lines] for name, lines in outputs.items()} == {
        "one.jsonl.out": [["a", "b"]],
        "deep/two.jsonl.out": [["c", "d", "e"]],
    }
    (answer,) = outputs["one.jsonl.out"]
    assert answer["type"] == answer["accept"] == "application/jsonlines"
    assert answer["files"] == ["tiny.gguf"]
    assert answer["environment"] == {"WHO": "the model", "SAGEMAKER_BATCH": "true"}
    listed = aws("sagemaker").list_transform_jobs(NameContains=batch.name)
    assert [row["TransformJobStatus"] for row in listed["TransformJobSummaries"]] == ["Completed"]


def test_one_record_a_request_and_so_many_at_once(aws: Aws, model: str) -> None:
    batch = Batch(
        aws,
        model,
        {"x": "".join(f"slow {number}\n" for number in range(6))},
        BatchStrategy="SingleRecord",
        MaxConcurrentTransforms=3,
        Environment={"WHO": "the job"},
    )
    lines = completed(batch)["x.out"]
    assert [line["lines"] for line in lines] == [[f"slow {number}"] for number in range(6)]
    assert max(line["most"] for line in lines) == 3
    assert lines[0]["environment"] == {
        "WHO": "the job",
        "SAGEMAKER_BATCH": "true",
        "SAGEMAKER_BATCH_STRATEGY": "SingleRecord",
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "3",
    }


def test_requests_are_as_large_as_the_payload_may_be(aws: Aws, model: str) -> None:
    line = "x" * (MEGABYTE // 2 - 1) + "\n"
    lines = completed(Batch(aws, model, {"x": line * 5}, MaxPayloadInMB=1))["x.out"]
    assert [answer["lines"] for answer in lines] == [MEGABYTE, MEGABYTE, MEGABYTE // 2]


def test_what_a_job_leaves_open_the_container_says(aws: Aws, image: str) -> None:
    parameters = {
        "MaxConcurrentTransforms": 2,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 1,
    }
    model = make_model(aws, image, PARAMETERS=json.dumps(parameters))
    objects = {"x": "slow 1\nslow 2\nslow 3\nslow 4\n"}
    lines = completed(Batch(aws, model, objects))["x.out"]
    assert [len(answer["lines"]) for answer in lines] == [1, 1, 1, 1]
    assert max(answer["most"] for answer in lines) == 2
    batch = Batch(aws, model, {"x": "y" * (MEGABYTE + 1)})
    assert "exceeds MaxPayloadInMB" in batch.ended()["FailureReason"]


def test_an_object_that_is_not_split_is_one_request(aws: Aws, model: str) -> None:
    batch = Batch(aws, model, {"x": "a\nb\n"}, input={"SplitType": "None"})
    assert [line["lines"] for line in completed(batch)["x.out"]] == [["a", "b"]]


def test_a_failing_request_is_tried_again(aws: Aws, model: str) -> None:
    client = {"InvocationsMaxRetries": 2, "InvocationsTimeoutInSeconds": 60}
    mended = Batch(aws, model, {"x": "fail 2 once\n"}, ModelClientConfig=client)
    assert len(completed(mended)["x.out"]) == 1


def test_a_bad_object_fails_the_job_and_the_others_have_their_answers(aws: Aws, model: str) -> None:
    client = {"InvocationsMaxRetries": 1, "InvocationsTimeoutInSeconds": 60}
    objects = {"1-good": "a\n", "2-bad": "fail 9\n", "3-refused": "refuse 400\n", "4-good": "b\n"}
    batch = Batch(aws, model, objects, ModelClientConfig=client)
    found = batch.ended()
    assert found["TransformJobStatus"] == "Failed"
    assert found["FailureReason"] == ("AlgorithmError: 500. See job logs for more information")
    assert sorted(batch.outputs()) == ["1-good.out", "4-good.out"]
    group = "/aws/sagemaker/TransformJobs"
    streams = aws("logs").describe_log_streams(logGroupName=group, logStreamNamePrefix=batch.name)
    names = [row["logStreamName"] for row in streams["logStreams"]]
    (name,) = (name for name in names if name.endswith("/data-log"))
    events = aws("logs").get_log_events(logGroupName=group, logStreamName=name)["events"]
    messages = [event["message"] for event in events]
    assert messages.count("Bad HTTP status received from algorithm: 500") == 2
    assert messages.count("Bad HTTP status received from algorithm: 400") == 1


def test_a_job_can_be_stopped(aws: Aws, model: str) -> None:
    lines = "".join(f"slow {number}\n" for number in range(500))
    batch = Batch(aws, model, {"x": lines}, BatchStrategy="SingleRecord")
    assert batch.described()["TransformJobStatus"] == "InProgress"
    assert aws.emulator.leftovers()["transform jobs"] == [batch.name]
    aws("sagemaker").stop_transform_job(TransformJobName=batch.name)
    assert batch.ended()["TransformJobStatus"] == "Stopped"
    assert batch.outputs() == {}
    assert aws.emulator.leftovers()["transform jobs"] == []


def test_a_job_needs_objects_and_the_right_to_write(aws: Aws, image: str, model: str) -> None:
    assert "No S3 objects found" in Batch(aws, model, {}).ended()["FailureReason"]
    role = aws.role("sagemaker", "s3:GetObject", "s3:ListBucket", "ecr:*")
    reading = make_model(aws, image, role=role)
    batch = Batch(aws, reading, {"x": "a\n"})
    found = batch.ended()
    assert found["TransformJobStatus"] == "Failed"
    assert "PutObject" in found["FailureReason"]


def test_a_container_that_never_starts_fails_the_job(aws: Aws) -> None:
    broken = aws.push({**FAKE_CONTEXT, "adapter/__main__.py": "raise SystemExit('no model')"})
    found = Batch(aws, make_model(aws, broken), {"x": "a\n"}).ended()
    assert found["TransformJobStatus"] == "Failed"
    assert "no model" in found["FailureReason"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MaxPayloadInMB": 51, "MaxConcurrentTransforms": 2}, "must not exceed 100 MB"),
        ({"BatchStrategy": "All"}, "is not one of"),
        ({"TransformResources": {"InstanceType": "c7i", "InstanceCount": 1}}, "is not one of"),
        ({"input": {"SplitType": "RecordIO"}}, "is not emulated"),
        ({"ModelName": "absent"}, "Could not find model"),
        ({"ModelClientConfig": {"InvocationsMaxRetries": 4}}, "is not within"),
    ],
)
def test_a_job_that_cannot_be_made(
    aws: Aws, model: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        Batch(aws, changes.pop("ModelName", model), {"x": "a\n"}, **changes)
    assert caught.value.response["Error"]["Code"] == "ValidationException"


def test_a_model_of_a_prefix_is_refused(aws: Aws, image: str) -> None:
    aws("s3").put_object(Bucket=BUCKET, Key="models/plain/x.gguf", Body=b"x")
    model = aws.model(image, prefix="models/plain/")
    with pytest.raises(ClientError, match="has a ModelDataSource"):
        Batch(aws, model, {"x": "a\n"})


def test_a_name_is_used_once(aws: Aws, model: str) -> None:
    batch = Batch(aws, model, {"x": "a\n"})
    request = {
        key: value
        for key, value in batch.described().items()
        if key in ("TransformJobName", "ModelName", "TransformInput", "TransformOutput")
    }
    resources = {"InstanceType": "ml.c7i.xlarge", "InstanceCount": 1}
    with pytest.raises(ClientError, match="must be unique"):
        aws("sagemaker").create_transform_job(**request, TransformResources=resources)
    completed(batch)
