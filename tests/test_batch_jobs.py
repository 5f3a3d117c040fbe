"""`ballot batch submit|wait|fetch|stop|list`, on jobs that the emulator really runs."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.adapter_process import PATIENCE, ROOT
from tests.api_model import violations
from tests.cli_process import ballot, clean_environment
from tests.emulated_aws import BUCKET, Aws, running
from tests.emulated_endpoints import adapter_image
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.lines_server import LinesServer, decision, encoded
from tests.test_batch import mixed, undated

ENDPOINT = "ballot-dev-decision"
SETTINGS = {"BALLOT_THREADS": "1", "BALLOT_CONTEXT_TOKENS": "1024"}


@dataclass(frozen=True)
class Bulk:
    """An account with an endpoint that does bulk work, too."""

    aws: Aws
    model_file: Path
    folder: str

    def ballot(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ballot("batch", *arguments, **self.aws.emulator.exports)

    def submit(self, *arguments: str) -> str:
        """Submit a job; return its name."""
        ended = self.ballot("submit", *arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def described(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.aws("sagemaker").describe_transform_job(TransformJobName=job)
        return found

    def keys(self, job: str) -> list[str]:
        listed = self.aws("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"batch/{job}/")
        return [item["Key"].removeprefix(f"batch/{job}/") for item in listed["Contents"]]

    def packed_model(self, image: str, **environment: str) -> str:
        """Make a model of the kind that batch transform takes; return its name."""
        name = self.aws.name()
        self.aws("sagemaker").create_model(
            ModelName=name,
            ExecutionRoleArn=self.aws.run_role,
            PrimaryContainer={
                "Image": image,
                "ModelDataUrl": f"s3://{BUCKET}/{self.folder}-gzip/model.tar.gz",
                "Environment": {**SETTINGS, **environment},
            },
        )
        return name

    def endpoint(self, name: str, image: str, tags: Mapping[str, str]) -> None:
        """Begin to make an endpoint of an unpacked model, as a stack does."""
        config = self.aws.model(
            image, prefix=f"{self.folder}/", BALLOT_THREADS="1", BALLOT_CONTEXT_TOKENS="1024"
        )
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.aws("sagemaker").create_endpoint(
            EndpointName=name, EndpointConfigName=config, Tags=listed
        )


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bulk]:
    folder = tmp_path_factory.mktemp("bulk")
    model, archive = folder / "tiny.gguf", folder / "model.tar.gz"
    write_tiny_model(model, chat_template=BYTES_TEMPLATE)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(model, "tiny.gguf")
    with running(folder / "emulator") as aws:
        actions = ("s3:GetObject", "s3:ListBucket", "s3:PutObject", "logs:*", "ecr:*")
        aws.run_role = aws.role("sagemaker", *actions)
        sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
        made = Bulk(aws, model, f"models/{sha256[:16]}")
        for path, key in ((model, "/tiny.gguf"), (archive, "-gzip/model.tar.gz")):
            aws("s3").upload_file(str(path), BUCKET, made.folder + key)
        image = adapter_image(aws)
        tags = {
            "ballot:batch-model": made.packed_model(image),
            "ballot:environment": "dev",
            "ballot:endpoint": "decision",
        }
        made.endpoint(ENDPOINT, image, tags)
        made.endpoint("ballot-dev-plain", image, {})
        gpu = {"ballot:batch-model": made.packed_model(image, BALLOT_GPU_LAYERS="-1")}
        made.endpoint("ballot-dev-gpu", image, gpu)
        broken = {"ballot:batch-model": made.packed_model(image, BALLOT_CONTEXT_TOKENS="1")}
        made.endpoint("ballot-dev-broken", image, broken)
        assert aws.settled(ENDPOINT)["EndpointStatus"] == "InService"
        yield made


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_job_answers_as_the_endpoint_does(bulk: Bulk, tmp_path: Path) -> None:
    requests, here, there = (tmp_path / name for name in ("in.jsonl", "here", "there"))
    # Of the bad lines all but the blank one, which a job cannot have.
    requests.write_bytes(mixed(350).replace(b"\n  \n", b"\n{}\n"))
    asked = bulk.ballot("run", str(requests), "-o", str(here), "-e", ENDPOINT)
    assert asked.returncode == 1, asked.stderr
    job = bulk.submit(str(requests), "-e", ENDPOINT, "--instances", "2")

    assert re.fullmatch(rf"{ENDPOINT}-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}", job)
    waited = bulk.ballot("wait", job)
    assert waited.returncode == 0, waited.stdout
    assert waited.stdout.startswith(f"{job}: Completed on 2 x ml.c7i.xlarge, ")
    fetched = bulk.ballot("fetch", job, "-o", str(there), "--json")
    assert fetched.returncode == 1, fetched.stderr
    parts = [f"input/part-{number:05}.jsonl" for number in range(1, 9)]
    assert [key for key in bulk.keys(job) if key.startswith("input/")] == parts
    found = answers(there)
    assert [answer.get("line") for answer in found] == [
        None if number % 100 else number for number in range(1, 351)
    ]
    assert undated(found) == undated(answers(here))
    summary = json.loads(fetched.stdout)
    assert (summary["lines"], summary["decisions"]) == (350, 347)
    assert summary["errors"] == {"missing_field": 2, "invalid_encoding": 1}


def test_what_is_asked_of_sagemaker_is_what_its_api_takes(bulk: Bulk, tmp_path: Path) -> None:
    requests = tmp_path / "in.jsonl"
    wide = {"decision": {**decision(2)["decision"], "state": "x" * (3 << 20)}}
    requests.write_bytes(encoded(decision(1), wide))
    job = bulk.submit(str(requests), "-e", ENDPOINT, "--instance-type", "ml.c7i.2xlarge")
    described = bulk.described(job)
    asked = {
        key: described[key]
        for key in (
            "TransformJobName",
            "ModelName",
            "MaxPayloadInMB",
            "BatchStrategy",
            "ModelClientConfig",
            "Environment",
            "TransformInput",
            "TransformOutput",
            "TransformResources",
        )
    }
    assert violations("sagemaker", "CreateTransformJob", asked) == []
    assert asked["MaxPayloadInMB"] == 4
    assert asked["Environment"]["BALLOT_MAX_BODY_BYTES"] == str(4 << 20)
    assert asked["TransformResources"]["InstanceType"] == "ml.c7i.2xlarge"
    tags = bulk.aws("sagemaker").list_tags(ResourceArn=described["TransformJobArn"])["Tags"]
    found = {tag["Key"]: tag["Value"] for tag in tags}
    assert found["ballot:environment"] == "dev"
    assert found["ballot:endpoint"] == "decision"
    output = tmp_path / "out.jsonl"
    early = bulk.ballot("fetch", job, "-o", str(output))
    assert early.returncode == 1 or output.exists()
    assert bulk.ballot("wait", job).returncode == 0
    if not output.exists():
        assert bulk.ballot("fetch", job, "-o", str(output)).returncode == 1
    first, second = answers(output)
    assert first["result"]["id"] == "d-1"
    assert (second["code"], second["line"], second["id"]) == ("too_many_tokens", 2, "d-2")


def test_a_job_that_fails_or_is_stopped_says_so(bulk: Bulk, tmp_path: Path) -> None:
    requests, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_bytes(encoded(decision(1)))
    job = bulk.submit(str(requests), "-e", "ballot-dev-broken")
    waited = bulk.ballot("wait", job)
    assert waited.returncode == 1
    first, reason = waited.stdout.splitlines()
    assert first.startswith(f"{job}: Failed on 1 x ml.c7i.xlarge")
    assert "did not pass the ping health check" in reason
    fetched = bulk.ballot("fetch", job, "-o", str(output))
    assert fetched.returncode == 1
    assert f"{job} is Failed, and has no answers" in fetched.stderr
    assert not output.exists()

    requests.write_bytes(encoded(*map(decision, range(1, 4_001))))
    job = bulk.submit(str(requests), "-e", ENDPOINT, "--instances", "4")
    still = bulk.ballot("wait", job, "--timeout", "0.1")
    assert still.returncode == 3
    assert f"{job} is still InProgress after 0.1 s" in still.stderr
    deadline = time.monotonic() + PATIENCE
    while not any(key.startswith("output/") for key in bulk.keys(job)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopped = bulk.ballot("stop", job)
    assert stopped.returncode == 0
    assert re.match(rf"{job}: (Stopping|Stopped) on ", stopped.stdout)
    waited = bulk.ballot("wait", job, "--json")
    assert (waited.returncode, json.loads(waited.stdout)["status"]) == (1, "Stopped")
    listed = bulk.ballot("list", "-e", ENDPOINT, "--json")
    names = {item["name"]: item["status"] for item in json.loads(listed.stdout)}
    assert names[job] == "Stopped"

    fetched = bulk.ballot("fetch", job, "-o", str(output))
    assert fetched.returncode == 1
    found = answers(output)
    missing = [number for number, answer in enumerate(found, start=1) if "result" not in answer]
    assert len(found) == 4_000 > len(missing) > 0 == len(missing) % 250
    for number in missing:
        answer = found[number - 1]
        assert (answer["code"], answer["retryable"]) == ("not_answered", True)
        assert (answer["line"], answer["id"]) == (number, f"d-{number}")
    (program,) = re.findall(r"`sed -n '(.+)' INPUT`", fetched.stderr)
    left = subprocess.run(["sed", "-n", program, requests], capture_output=True, check=True).stdout
    assert left == encoded(*map(decision, missing))
    again = bulk.ballot("run", str(requests), "-o", str(output), "-e", ENDPOINT, "--again")
    assert again.returncode == 0, again.stderr
    ids = [answer["result"]["id"] for answer in answers(output)]
    assert ids == [f"d-{number}" for number in range(1, 4_001)]


@pytest.mark.parametrize(
    ("content", "arguments", "line"),
    [
        (b"{}\n", ("-e", "ballot-dev-plain"), 'set "batch": true for it in cdk.json and deploy'),
        (b"{}\n", ("-e", "ballot-dev-gpu"), "decodes on a GPU, and batch transform has no driver"),
        (b"{}\n\n{}\n", ("-e", ENDPOINT), "line 2 of "),
        (b"", ("-e", ENDPOINT), "has no lines"),
        (b"{}\n", ("-e", ENDPOINT, "--instances", "0"), "0 instances are not offered"),
        (b"{}\n", ("-e", ENDPOINT, "--s3", "bucket"), "bucket is not an S3 URI"),
        (
            b"{}\n",
            ("-e", ENDPOINT, "--instance-type", "ml.c7g.xlarge"),
            "batch transform does not offer ml.c7g.xlarge; name another with --instance-type",
        ),
    ],
)
def test_what_no_job_can_do_is_refused_before_anything_is_sent(
    bulk: Bulk, tmp_path: Path, content: bytes, arguments: tuple[str, ...], line: str
) -> None:
    requests = tmp_path / "in.jsonl"
    requests.write_bytes(content)
    before = bulk.aws("s3").list_objects_v2(Bucket=BUCKET)["KeyCount"]
    ended = bulk.ballot("submit", str(requests), *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert line in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert bulk.aws("s3").list_objects_v2(Bucket=BUCKET)["KeyCount"] == before


def test_a_job_that_is_not_there_and_a_file_that_is(bulk: Bulk, tmp_path: Path) -> None:
    for command in (("wait",), ("stop",), ("fetch", "-o", str(tmp_path / "new"))):
        ended = bulk.ballot(*command, "absent")
        assert ended.returncode == 2
        assert "there is no transform job absent in us-east-1" in ended.stderr
    there = tmp_path / "there"
    there.write_text("precious")
    ended = bulk.ballot("fetch", "absent", "-o", str(there))
    assert ended.returncode == 2
    assert f"{there} is there already" in ended.stderr


def test_a_job_whose_answers_are_short_is_told(bulk: Bulk, tmp_path: Path) -> None:
    requests, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_bytes(encoded(decision(1), decision(2)))
    job = bulk.submit(str(requests), "-e", ENDPOINT)
    assert bulk.ballot("wait", job).returncode == 0
    key = f"batch/{job}/output/part-00001.jsonl.out"
    body = bulk.aws("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
    bulk.aws("s3").put_object(Bucket=BUCKET, Key=key, Body=body.split(b"\n")[0] + b"\n")
    ended = bulk.ballot("fetch", job, "-o", str(output))
    assert ended.returncode == 1
    assert "part-00001.jsonl has 1 answers to 2 lines" in ended.stderr
    bulk.aws("s3").delete_object(Bucket=BUCKET, Key=key)
    ended = bulk.ballot("fetch", job, "-o", str(output))
    assert ended.returncode == 1
    assert "there are no answers to part-00001.jsonl in " in ended.stderr
    assert list(tmp_path.iterdir()) == [requests]


def test_the_commands_of_the_page_run_as_they_stand(bulk: Bulk, tmp_path: Path) -> None:
    """Only the server's port is another one."""
    page = (ROOT / "docs" / "batch.md").read_text()
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    assert commands.count("ballot batch ") == 8
    (tmp_path / "requests.jsonl").write_bytes(encoded(*map(decision, range(1, 21))))
    shutil.copy(bulk.model_file, tmp_path / "model.gguf")
    with LinesServer() as server:
        ended = subprocess.run(
            ["bash", "-ec", f'ballot() {{ "{sys.executable}" -m ballot "$@"; }}\n'
             + commands.replace("http://127.0.0.1:8080", server.url)],
            cwd=tmp_path,
            env=clean_environment(**bulk.aws.emulator.exports, **SETTINGS),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    outputs = re.findall(r"-o (\S+)", commands)
    assert len(outputs) == 5
    for name in outputs:
        ids = [answer["result"]["id"] for answer in answers(tmp_path / name)]
        assert ids == [f"d-{number}" for number in range(1, 21)]
        assert f"{name}: 20 of 20 lines answered" in ended.stdout
