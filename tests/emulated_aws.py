"""A running emulator with what its tests need in it: roles, a bucket, a repository, builds."""

from __future__ import annotations

import contextlib
import io
import json
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from boto3.session import Session
from botocore.config import Config

from emulator import Emulator

PATIENCE = 60.0
POLL_SECONDS = 0.05
BUCKET = "artifacts-of-the-tests"
REPOSITORY = "images-of-the-tests"
BASE = f"base@sha256:{'1' * 64}"

# Stands for a container: its answers are what the requests ask for.
FAKE_ADAPTER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

print("fake container starts", flush=True)
if os.environ.get("EXIT"):
    sys.exit(f"cannot load the model")

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(503 if os.environ.get("UNHEALTHY") else 200, b"")
    def do_POST(self):
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(wanted.get("sleep", 0))
        model = Path(os.environ["BALLOT_MODEL_DIR"])
        body = json.dumps({
            "arguments": sys.argv[1:],
            "environment": dict(os.environ),
            "files": sorted(str(p.relative_to(model)) for p in model.rglob("*") if p.is_file()),
            "headers": dict(self.headers),
        }).encode()
        self.answer(wanted.get("status", 200), body, Content_Type="application/json",
                    X_Amzn_SageMaker_Custom_Attributes="from the container")

ThreadingHTTPServer(("127.0.0.1", int(os.environ["BALLOT_PORT"])), Handler).serve_forever()
"""
FAKE_CONTEXT = {
    "adapter/__init__.py": "",
    "adapter/__main__.py": FAKE_ADAPTER,
    "Dockerfile": "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY adapter/ /opt/adapter/\n",
}


def archive(files: Mapping[str, str]) -> bytes:
    """Return a zip archive of files given by their text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, text in files.items():
            zipped.writestr(name, text)
    return buffer.getvalue()


def policy(*actions: str, resource: str = "*") -> str:
    """Return a policy document that allows actions."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


class Aws:
    """Clients of an emulator, and the steps that several tests share."""

    def __init__(self, emulator: Emulator, clients: contextlib.ExitStack) -> None:
        self.emulator = emulator
        self._clients = clients
        self._made: dict[str, Any] = {}
        self._names = iter(f"name-{number}" for number in range(10_000))
        self.build_role = self.role("codebuild", "logs:*", "s3:*", "ecr:*")
        self.run_role = self.role("sagemaker", "logs:*", "s3:GetObject", "s3:ListBucket", "ecr:*")
        self("s3").create_bucket(Bucket=BUCKET)
        repository = self("ecr").create_repository(
            repositoryName=REPOSITORY, imageTagMutability="IMMUTABLE"
        )
        self.repository: str = repository["repository"]["repositoryUri"]

    def __call__(self, service: str) -> Any:
        """Return a client of the account's root."""
        if service not in self._made:
            self._made[service] = self.client(service)
        return self._made[service]

    def client(self, service: str, **keys: str) -> Any:
        """Return a new client; `keys` name other credentials than the account's root."""
        exports = self.emulator.exports
        credentials = keys or {
            "aws_access_key_id": exports["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": exports["AWS_SECRET_ACCESS_KEY"],
        }
        session: Any = _SESSION
        made = session.client(
            service,
            endpoint_url=self.emulator.endpoint_url,
            region_name=self.emulator.region,
            verify=exports["AWS_CA_BUNDLE"],
            config=_UNCHECKED,
            **credentials,
        )
        return self._clients.enter_context(contextlib.closing(made))

    def name(self) -> str:
        """Return a name that nothing else has."""
        return next(self._names)

    def role(self, service: str, *actions: str) -> str:
        """Make a role that a service can assume; return its ARN."""
        name = self.name()
        trust = {
            "Effect": "Allow",
            "Principal": {"Service": f"{service}.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        made = self("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)
        if actions:
            self("iam").put_role_policy(
                RoleName=name, PolicyName="allowed", PolicyDocument=policy(*actions)
            )
        arn: str = made["Role"]["Arn"]
        return arn

    def start(self, buildspec: str, *, role: str = "", **override: Any) -> dict[str, Any]:
        """Make a project of an inline buildspec and start a build of it."""
        name = self.name()
        self("codebuild").create_project(
            name=name,
            source={"type": "NO_SOURCE", "buildspec": buildspec},
            artifacts={"type": "NO_ARTIFACTS"},
            environment={
                "type": "LINUX_CONTAINER",
                "image": "aws/codebuild/standard:7.0",
                "computeType": "BUILD_GENERAL1_SMALL",
                "environmentVariables": [{"name": "WHO", "value": "project"}],
            },
            serviceRole=role or self.build_role,
            timeoutInMinutes=override.pop("timeout", 60),
        )
        started = self("codebuild").start_build(projectName=name, **override)
        build: dict[str, Any] = started["build"]
        return build

    def build(self, build_id: str) -> dict[str, Any]:
        """Return a build's record."""
        found: dict[str, Any] = self("codebuild").batch_get_builds(ids=[build_id])["builds"][0]
        return found

    def finished(self, build: dict[str, Any]) -> dict[str, Any]:
        """Wait for a build's end and return its record."""
        for _ in polls(f"build {build['id']}"):
            build = self.build(build["id"])
            if build["buildComplete"]:
                return build
        raise AssertionError

    def run(self, buildspec: str, **options: Any) -> dict[str, Any]:
        """Start a build and wait for its end."""
        return self.finished(self.start(buildspec, **options))

    def log(self, build: dict[str, Any]) -> list[str]:
        """Return the lines of a build's log."""
        where = build["logs"]
        events = self("logs").get_log_events(
            logGroupName=where["groupName"],
            logStreamName=where["streamName"],
            startFromHead=True,
            limit=10_000,
        )
        return [event["message"].rstrip() for event in events["events"]]

    def push(self, files: Mapping[str, str], *, command: str = "") -> str:
        """Have a build push an image made from files; return its URI with its digest."""
        key, tag = f"sources/{self.name()}.zip", self.name()
        self("s3").put_object(Bucket=BUCKET, Key=key, Body=archive(files))
        build = self.run(
            push_buildspec(command),
            sourceTypeOverride="S3",
            sourceLocationOverride=f"{BUCKET}/{key}",
            environmentVariablesOverride=[
                {"name": "REPOSITORY_URI", "value": self.repository},
                {"name": "IMAGE_TAG", "value": tag},
            ],
        )
        assert build["buildStatus"] == "SUCCEEDED", self.log(build)
        images = self("ecr").describe_images(
            repositoryName=REPOSITORY, imageIds=[{"imageTag": tag}]
        )
        return f"{self.repository}@{images['imageDetails'][0]['imageDigest']}"

    def model(
        self, image: str, *, prefix: str = "", patience: int = 3600, **environment: str
    ) -> str:
        """Make a model and an endpoint configuration of the same name; return it."""
        name = self.name()
        container: dict[str, Any] = {"Image": image, "Environment": environment}
        if prefix:
            container["ModelDataSource"] = {
                "S3DataSource": {
                    "S3Uri": f"s3://{BUCKET}/{prefix}",
                    "S3DataType": "S3Prefix",
                    "CompressionType": "None",
                }
            }
        self("sagemaker").create_model(
            ModelName=name, ExecutionRoleArn=self.run_role, PrimaryContainer=container
        )
        self("sagemaker").create_endpoint_config(
            EndpointConfigName=name,
            ProductionVariants=[
                variant(name, ContainerStartupHealthCheckTimeoutInSeconds=patience)
            ],
        )
        return name

    def settled(self, endpoint: str) -> dict[str, Any]:
        """Wait for an endpoint to leave its transition and return what describes it."""
        for _ in polls(f"endpoint {endpoint}"):
            found: dict[str, Any] = self("sagemaker").describe_endpoint(EndpointName=endpoint)
            if found["EndpointStatus"] in ("InService", "Failed"):
                return found
        raise AssertionError

    def serve(self, config: str) -> str:
        """Make an endpoint, wait for it and return its name."""
        name = self.name()
        self("sagemaker").create_endpoint(EndpointName=name, EndpointConfigName=config)
        found = self.settled(name)
        assert found["EndpointStatus"] == "InService", found
        return name

    def invoke(self, endpoint: str, body: Any, **more: Any) -> dict[str, Any]:
        """Invoke an endpoint with JSON and return the answer, its body read."""
        answer: dict[str, Any] = self("sagemaker-runtime").invoke_endpoint(
            EndpointName=endpoint,
            ContentType="application/json",
            Body=json.dumps(body),
            **more,
        )
        return {**answer, "Body": json.loads(answer["Body"].read())}

    def delete(self, endpoint: str) -> None:
        """Delete an endpoint and wait until it is gone."""
        self("sagemaker").delete_endpoint(EndpointName=endpoint)
        for _ in polls(f"the end of {endpoint}"):
            if not self("sagemaker").list_endpoints(NameContains=endpoint)["Endpoints"]:
                return


_SESSION = Session()
# What is not valid must reach the emulator for it to say so.
_UNCHECKED = Config(parameter_validation=False)


def variant(model: str, **more: Any) -> dict[str, Any]:
    """Return a production variant on one instance."""
    return {
        "VariantName": "AllTraffic",
        "ModelName": model,
        "InstanceType": "ml.c7i.xlarge",
        "InitialInstanceCount": 1,
        **more,
    }


def push_buildspec(command: str = "") -> str:
    """Return a buildspec that builds the source's Dockerfile, or runs `command`, and pushes."""
    build = command or f"docker build --build-arg BASE_IMAGE={BASE} -t $IMAGE ."
    return json.dumps(
        {
            "version": "0.2",
            "phases": {
                "build": {
                    "commands": [
                        'export IMAGE="$REPOSITORY_URI:$IMAGE_TAG"',
                        build,
                        'docker push "$IMAGE"',
                    ]
                }
            },
        },
        indent=1,
    )


def polls(what: str) -> Iterator[None]:
    """Yield again and again, until patience ends."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"gave up waiting for {what}")


def stack_status(aws: Aws, name: str) -> str:
    """Wait for a stack to leave its transition and return its status."""
    for _ in polls(f"stack {name}"):
        found = aws("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        status: str = found["StackStatus"]
        if not status.endswith("_IN_PROGRESS"):
            return status
    raise AssertionError


def delete_stack(aws: Aws, name: str) -> None:
    """Delete a stack and wait until it is gone."""
    stack_id = aws("cloudformation").describe_stacks(StackName=name)["Stacks"][0]["StackId"]
    aws("cloudformation").delete_stack(StackName=name)
    assert stack_status(aws, stack_id) == "DELETE_COMPLETE"


@contextlib.contextmanager
def running(workdir: Path, **options: Any) -> Iterator[Aws]:
    """Run an emulator with clients of it."""
    with (
        Emulator(workdir, **options) as emulator,
        contextlib.ExitStack() as clients,
    ):
        yield Aws(emulator, clients)
