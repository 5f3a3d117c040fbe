"""The emulator itself: builds that run, containers that serve, permissions that are enforced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from emulator import Emulator
from emulator.processes import MARKER_VARIABLE, marked
from tests.adapter_process import DEMO_MODEL, ROOT
from tests.emulated_aws import (
    BASE,
    BUCKET,
    FAKE_CONTEXT,
    REPOSITORY,
    Aws,
    archive,
    delete_stack,
    policy,
    polls,
    push_buildspec,
    running,
    stack_status,
    variant,
)

DECISION = json.loads((ROOT / "examples/support-route.json").read_text())
MODEL_PREFIX = "models/b179c9523d0e6a0f/"
DLC = f"public.ecr.aws/deep-learning-containers/llama-cpp@sha256:{'1f19' * 16}"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with running(tmp_path_factory.mktemp("emulator")) as aws:
        yield aws


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """An emulator whose minutes last half a second."""
    with running(tmp_path_factory.mktemp("hasty"), seconds_per_minute=0.5) as aws:
        yield aws


@pytest.fixture(scope="module")
def fake_image(aws: Aws) -> str:
    return aws.push(FAKE_CONTEXT)


@pytest.fixture(scope="module")
def fake_endpoint(aws: Aws, fake_image: str) -> str:
    return aws.serve(aws.model(fake_image))


@pytest.fixture(scope="module")
def demo_model(aws: Aws) -> str:
    """The demo's model as the model build leaves it; its prefix."""
    aws("s3").upload_file(str(DEMO_MODEL), BUCKET, MODEL_PREFIX + DEMO_MODEL.name)
    return MODEL_PREFIX


def code(caught: pytest.ExceptionInfo[ClientError]) -> str:
    found: str = caught.value.response["Error"]["Code"]
    return found


def phase(build: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in build["phases"] if p["phaseType"] == name)
    return found


def phases(build: dict[str, Any]) -> list[str]:
    return [p["phaseType"] for p in build["phases"]]


def spec(**sections: list[str]) -> str:
    found = {name: {"commands": commands} for name, commands in sections.items()}
    return json.dumps({"version": "0.2", "phases": found}, indent=1)


# Builds


def test_a_build_runs_its_phases_in_one_shell_and_exports_variables(aws: Aws) -> None:
    buildspec = """
version: 0.2
env:
  variables: {FROM_SPEC: spec, WHO: spec}
  exported-variables: [RESULT, ABSENT]
phases:
  install:
    commands: [mkdir inner, cd inner, local=kept]
  build:
    commands:
      - export RESULT="$WHO $FROM_SPEC $local $(basename "$PWD")"
      - |
        if true; then
          echo "a line of several"
        fi
  post_build:
    commands: [echo "succeeding $CODEBUILD_BUILD_SUCCEEDING"]
"""
    build = aws.run(buildspec)
    assert build["buildStatus"] == "SUCCEEDED"
    assert build["exportedEnvironmentVariables"] == [
        {"name": "RESULT", "value": "project spec kept inner"}
    ]
    lines = aws.log(build)
    assert "a line of several" in lines
    assert "succeeding 1" in lines
    assert phases(build) == [
        *("SUBMITTED", "QUEUED", "PROVISIONING", "DOWNLOAD_SOURCE", "INSTALL", "PRE_BUILD"),
        *("BUILD", "POST_BUILD", "UPLOAD_ARTIFACTS", "FINALIZING", "COMPLETED"),
    ]


def test_a_failed_command_names_itself_and_post_build_still_runs(aws: Aws) -> None:
    buildspec = """
version: 0.2
phases:
  build:
    commands: [echo before, "(exit 7)", echo after]
    finally: [echo at last]
  post_build:
    commands: [echo "succeeding $CODEBUILD_BUILD_SUCCEEDING"]
"""
    build = aws.run(buildspec)
    assert build["buildStatus"] == "FAILED"
    failed = phase(build, "BUILD")
    assert failed["phaseStatus"] == "FAILED"
    assert failed["contexts"] == [
        {
            "statusCode": "COMMAND_EXECUTION_ERROR",
            "message": "Error while executing command: (exit 7). Reason: exit status 7",
        }
    ]
    lines = aws.log(build)
    assert {"before", "at last", "succeeding 0"} <= set(lines)
    assert "after" not in lines


def test_a_build_phase_that_aborts_on_failure_ends_the_build(aws: Aws) -> None:
    build = aws.run(
        """
version: 0.2
phases:
  build: {on-failure: ABORT, commands: ["false"]}
  post_build: {commands: [echo unreachable]}
"""
    )
    assert build["buildStatus"] == "FAILED"
    assert "POST_BUILD" not in phases(build)


def test_a_failure_before_the_build_phase_ends_the_build(aws: Aws) -> None:
    build = aws.run(spec(pre_build=["exit 3"], build=["echo unreachable"], post_build=["echo no"]))
    assert build["buildStatus"] == "FAILED"
    assert "exit status 3" in phase(build, "PRE_BUILD")["contexts"][0]["message"]
    assert not {"BUILD", "POST_BUILD"} & set(phases(build))
    assert "unreachable" not in aws.log(build)


def test_a_build_runs_as_its_role_and_knows_nothing_of_the_callers(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = aws.run(spec(build=["env", "aws sts get-caller-identity --query Arn --output text"]))
    lines = aws.log(build)
    role = aws.build_role.rpartition("/")[2]
    session = f"AWSCodeBuild-{build['id'].partition(':')[2]}"
    account = aws.emulator.account
    assert f"arn:aws:sts::{account}:assumed-role/{role}/{session}" in lines
    assert not [line for line in lines if line.startswith(("PYTHONPATH=", "VIRTUAL_ENV="))]
    assert f"AWS_ACCESS_KEY_ID={account}" not in lines


def test_the_source_and_the_variables_can_be_given_per_build(aws: Aws) -> None:
    aws("s3").put_object(
        Bucket=BUCKET,
        Key="source.zip",
        Body=archive({"buildspec.yml": spec(build=['cat note; echo " by $WHO"']), "note": "read"}),
    )
    build = aws.run(
        "buildspec.yml",
        sourceTypeOverride="S3",
        sourceLocationOverride=f"{BUCKET}/source.zip",
        environmentVariablesOverride=[{"name": "WHO", "value": "the caller"}],
    )
    assert build["buildStatus"] == "SUCCEEDED"
    assert "read by the caller" in aws.log(build)
    assert {"name": "WHO", "value": "the caller"}.items() <= (
        build["environment"]["environmentVariables"][0].items()
    )


def test_what_a_build_installs_stays_in_that_build(aws: Aws) -> None:
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    commands = ["pip --version", f'python3 -c "{site}"', '! python -c "import botocore"']
    build = aws.run(spec(build=commands))
    assert build["buildStatus"] == "SUCCEEDED", aws.log(build)
    assert any(str(aws.emulator.workdir) in line for line in aws.log(build))


@pytest.mark.parametrize(
    ("buildspec", "message"),
    [
        ("version: 0.2\nphases: {build: {commands: [1]}}\n", "commands is not a list of strings"),
        ("version: 0.3\nphases: {}\n", "version 0.3 is not 0.2"),
        ("version: 0.2\nphases: {}\n", "phases is missing"),
        ("version: 0.2\nphase: {}\n", "buildspec: phase is not emulated"),
        ("version: [\n", "expected"),
        ("other.yml", "no such file or directory"),
    ],
)
def test_a_bad_buildspec_fails_the_download_phase(aws: Aws, buildspec: str, message: str) -> None:
    build = aws.run(buildspec)
    assert build["buildStatus"] == "FAILED"
    context = phase(build, "DOWNLOAD_SOURCE")["contexts"][0]
    assert context["statusCode"] == "YAML_FILE_ERROR"
    assert message in context["message"]


def test_a_role_that_may_not_read_the_source_fails_the_build(aws: Aws) -> None:
    build = aws.run(
        "buildspec.yml",
        role=aws.role("codebuild", "logs:*"),
        sourceTypeOverride="S3",
        sourceLocationOverride=f"{BUCKET}/absent.zip",
    )
    assert build["buildStatus"] == "FAILED"
    assert "AccessDenied" in phase(build, "DOWNLOAD_SOURCE")["contexts"][0]["message"]


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ("codebuild", "is not authorized to perform: logs:CreateLogGroup"),
        ("sagemaker", "does not trust codebuild.amazonaws.com"),
    ],
)
def test_a_role_that_does_not_fit_fails_the_build_at_once(
    aws: Aws, service: str, message: str
) -> None:
    build = aws.run(spec(build=["true"]), role=aws.role(service))
    assert build["buildStatus"] == "FAILED"
    assert message in phase(build, "PROVISIONING")["contexts"][0]["message"]


def test_stopping_a_build_ends_all_that_it_started(aws: Aws) -> None:
    build = aws.start(spec(build=["setsid sleep 600 &", "echo started", "sleep 600"]))
    belongs = f"CODEBUILD_BUILD_ID={build['id']}"
    for _ in polls("the build's command"):
        if sum("sleep 600" in command for command in marked(belongs).values()) == 2:
            break
    stopping = aws("codebuild").stop_build(id=build["id"])["build"]
    assert stopping["id"] == build["id"]
    build = aws.finished(build)
    assert build["buildStatus"] == "STOPPED"
    assert phase(build, "BUILD")["phaseStatus"] == "STOPPED"
    assert "POST_BUILD" not in phases(build)
    assert marked(belongs) == {}


def test_a_build_past_its_time_out_is_ended(hasty: Aws) -> None:
    build = hasty.run(spec(build=["sleep 600"]), timeout=8)
    assert build["buildStatus"] == "TIMED_OUT"
    assert phase(build, "BUILD")["contexts"][0]["statusCode"] == "BUILD_TIMED_OUT"
    assert marked(f"CODEBUILD_BUILD_ID={build['id']}") == {}


def test_the_same_request_starts_one_build(aws: Aws) -> None:
    first = aws.start(spec(build=["true"]), idempotencyToken="token")
    name = first["projectName"]
    again = aws("codebuild").start_build(projectName=name, idempotencyToken="token")["build"]
    other = aws("codebuild").start_build(projectName=name, idempotencyToken="another")["build"]
    assert again["id"] == first["id"]
    assert other["id"] != first["id"]
    assert other["buildNumber"] == 2
    with pytest.raises(ClientError) as caught:
        aws("codebuild").start_build(
            projectName=name, idempotencyToken="token", timeoutInMinutesOverride=10
        )
    assert code(caught) == "InvalidInputException"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"projectName": "absent"}, "ResourceNotFoundException"),
        ({"projectName": "absent", "imageOverride": ""}, "InvalidInputException"),
        ({"projectName": "absent", "sourceTypeOverride": "FTP"}, "InvalidInputException"),
    ],
)
def test_a_build_that_cannot_start(aws: Aws, parameters: dict[str, Any], expected: str) -> None:
    with pytest.raises(ClientError) as caught:
        aws("codebuild").start_build(**parameters)
    assert code(caught) == expected


# Images


def test_equal_inputs_give_equal_images(aws: Aws, fake_image: str) -> None:
    changed = {**FAKE_CONTEXT, "adapter/more.py": ""}
    assert aws.push(FAKE_CONTEXT) == fake_image
    assert aws.push(changed) != fake_image


def test_a_tag_of_an_immutable_repository_is_pushed_once(aws: Aws) -> None:
    aws("s3").put_object(Bucket=BUCKET, Key="twice.zip", Body=archive(FAKE_CONTEXT))
    options = {
        "sourceTypeOverride": "S3",
        "sourceLocationOverride": f"{BUCKET}/twice.zip",
        "environmentVariablesOverride": [
            {"name": "REPOSITORY_URI", "value": aws.repository},
            {"name": "IMAGE_TAG", "value": "once"},
        ],
    }
    assert aws.run(push_buildspec(), **options)["buildStatus"] == "SUCCEEDED"
    again = aws.run(push_buildspec(), **options)
    assert again["buildStatus"] == "FAILED"
    assert any("ImageTagAlreadyExistsException" in line for line in aws.log(again))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"Dockerfile": f"FROM {BASE}\nCOPY absent /\n"}, '"/absent": not found'),
        ({"Dockerfile": "ARG BASE\nFROM ${BASE}\n"}, "should not be blank"),
        ({"Dockerfile": "RUN true\n"}, "there is no FROM"),
        ({"other": ""}, "no such file or directory"),
        ({"Dockerfile": f"FROM {BASE}\nADD kept /\n", ".dockerignore": "kept"}, "not found"),
    ],
)
def test_a_dockerfile_that_cannot_be_built(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, text in {"kept": "", **files}.items():
        (tmp_path / name).write_text(text)
    result = docker("build", "-t", "name", str(tmp_path), store=tmp_path / "store")
    assert result.returncode == 1
    assert message in result.stderr


def test_a_dockerfile_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file.py").touch()
    (tmp_path / "Dockerfile.other").write_text(
        f"ARG BASE={BASE}\n# COPY absent /\nFROM $BASE AS first\nCOPY --chmod=755 folder \\\n"
        "  Dockerfile.* /opt/\nRUN <<EOF\nCOPY absent /\nEOF\nFROM first\n"
        "COPY --from=first /opt /opt\n"
    )
    store = tmp_path / "store"
    arguments = ("--file", str(tmp_path / "Dockerfile.other"), "--tag", "name:1", str(tmp_path))
    result = docker("build", *arguments, store=store)
    assert result.returncode == 0, result.stderr
    assert "stand-in" in result.stdout
    found = docker("image", "inspect", "--format", "{{.Id}}", "name:1", store=store)
    assert found.stdout.startswith("sha256:")


def test_the_list_of_what_is_in_an_image_is_copied_out_of_it(tmp_path: Path) -> None:
    store, copied = tmp_path / "store", tmp_path / "sbom.cdx.json"
    built = docker("build", "--tag", "name:1", str(ROOT / "container"), store=store)
    assert built.returncode == 0, built.stderr
    assert docker("create", "--name", "listed", "name:1", store=store).returncode == 0
    result = docker("cp", "listed:/opt/ballot/sbom.cdx.json", str(copied), store=store)
    assert "stand-in" in result.stdout
    base, adapter = json.loads(copied.read_text())["components"]
    assert "@".join((base["name"], base["version"])) in (ROOT / "stacks/catalog.json").read_text()
    assert "adapter/engine.py" in [part["name"] for part in adapter["components"]]
    other = docker("cp", "listed:/opt/ballot/venv", str(copied), store=store)
    assert other.returncode == 1
    assert "RUN was not run" in other.stderr


def docker(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "emulator/bin/docker", *arguments],
        env={**os.environ, "EMULATOR_ROOT": str(ROOT), "EMULATOR_IMAGES": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )


# Endpoints


def test_the_adapter_answers_behind_an_endpoint(
    aws: Aws, demo_model: str, client: httpx.Client
) -> None:
    files = {f"adapter/{p.name}": p.read_text() for p in ROOT.glob("container/adapter/*.py")}
    image = aws.push({**FAKE_CONTEXT, **files})
    endpoint = aws.serve(aws.model(image, prefix=demo_model, BALLOT_THREADS="1"))
    found = aws.invoke(endpoint, DECISION)["Body"]["result"]
    direct = client.post("/invocations", json=DECISION).json()["result"]
    for key in ("probabilities", "option_logits", "prompt_sha256", "model"):
        assert found[key] == direct[key]
    with pytest.raises(ClientError) as caught:
        aws.invoke(endpoint, {"decision": {}})
    assert caught.value.response["OriginalStatusCode"] == 400
    aws.delete(endpoint)


def test_a_mirrored_dlc_chats_and_streams(aws: Aws, demo_model: str) -> None:
    image = aws.push({}, command=f'docker pull {DLC} && docker tag {DLC} "$IMAGE"')
    config = aws.model(
        image,
        prefix=demo_model,
        SM_LLAMA_CPP_MODEL=f"/opt/ml/model/{DEMO_MODEL.name}",
        SM_LLAMA_CPP_CTX_SIZE="512",
        SM_LLAMA_CPP_THREADS="2",
    )
    endpoint = aws.serve(config)
    request = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
        "temperature": 0,
    }
    answer = aws.invoke(endpoint, request)["Body"]
    said = answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["model"] == DEMO_MODEL.name
    stream = aws("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=endpoint,
        ContentType="application/json",
        Body=json.dumps({**request, "stream": True}),
    )
    parts = [event["PayloadPart"]["Bytes"] for event in stream["Body"]]
    assert len(parts) > 1
    lines = b"".join(parts).decode().splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == said
    aws.delete(endpoint)


def test_a_container_gets_what_the_model_says(aws: Aws, fake_image: str) -> None:
    for name in ("one.gguf", "inner/two.json"):
        aws("s3").put_object(Bucket=BUCKET, Key=f"models/fake/{name}", Body=b"x")
    config = aws.model(fake_image, prefix="models/fake/", GREETING="hello", FILE="/opt/ml/model/x")
    endpoint = aws.serve(config)
    answer = aws.invoke(endpoint, {}, CustomAttributes="from the caller")
    body = answer["Body"]
    assert body["arguments"] == ["serve"]
    assert body["files"] == ["inner/two.json", "one.gguf"]
    assert body["environment"]["GREETING"] == "hello"
    assert body["environment"]["FILE"] == body["environment"]["BALLOT_MODEL_DIR"] + "/x"
    assert not {"AWS_ACCESS_KEY_ID", "PYTHONPATH"} & set(body["environment"])
    assert body["headers"]["X-Amzn-SageMaker-Custom-Attributes"] == "from the caller"
    assert answer["CustomAttributes"] == "from the container"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert answer["ContentType"] == "application/json"
    aws.delete(endpoint)


@pytest.mark.parametrize(("status", "kind"), [(400, "client"), (413, "client"), (503, "server")])
def test_what_a_container_refuses_is_a_model_error(
    aws: Aws, fake_endpoint: str, status: int, kind: str
) -> None:
    with pytest.raises(ClientError) as caught:
        aws.invoke(fake_endpoint, {"status": status})
    response: Any = caught.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert response["ResponseMetadata"]["RetryAttempts"] == 0
    assert code(caught) == "ModelError"
    assert response["OriginalStatusCode"] == status
    assert json.loads(response["OriginalMessage"])["arguments"] == ["serve"]
    assert f"Received {kind} error ({status}) from primary" in response["Error"]["Message"]
    assert response["LogStreamArn"].endswith(f"/aws/sagemaker/Endpoints/{fake_endpoint}")


def test_a_container_that_takes_too_long_is_a_model_error(hasty: Aws) -> None:
    endpoint = hasty.serve(hasty.model(hasty.push(FAKE_CONTEXT)))
    with pytest.raises(ClientError) as caught:
        hasty.invoke(endpoint, {"sleep": 5})
    response: Any = caught.value.response
    assert (code(caught), response["OriginalStatusCode"]) == ("ModelError", 0)
    assert "timed out" in response["OriginalMessage"]
    dimensions = {"EndpointName": endpoint, "VariantName": "AllTraffic"}
    counts = {"Invocation5XXErrors": 0.0, "InvocationModelErrors": 1.0}
    for name, expected in counts.items():
        points = hasty("cloudwatch").get_metric_statistics(
            Namespace="AWS/SageMaker",
            MetricName=name,
            Dimensions=[{"Name": k, "Value": v} for k, v in dimensions.items()],
            StartTime=datetime.now(UTC) - timedelta(hours=1),
            EndTime=datetime.now(UTC) + timedelta(hours=1),
            Period=86_400,
            Statistics=["Sum"],
        )["Datapoints"]
        assert sum(point["Sum"] for point in points) == expected, name


@pytest.mark.parametrize(
    ("endpoint", "options", "message"),
    [
        ("absent", {}, "Endpoint absent of account 123456789012 not found."),
        ("", {"TargetVariant": "Other"}, "Variant Other does not exist"),
    ],
)
def test_an_invocation_that_leads_nowhere(
    aws: Aws, fake_endpoint: str, endpoint: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        aws.invoke(endpoint or fake_endpoint, {}, **options)
    assert code(caught) == "ValidationError"


def test_invoking_needs_the_permission_on_that_endpoint(aws: Aws, fake_endpoint: str) -> None:
    user = aws.name()
    aws("iam").create_user(UserName=user)
    key = aws("iam").create_access_key(UserName=user)["AccessKey"]
    runtime = aws.client(
        "sagemaker-runtime",
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
    )

    def invoke() -> int:
        answer = runtime.invoke_endpoint(EndpointName=fake_endpoint, Body=b"{}")
        answer["Body"].close()
        status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
        return status

    def allow(endpoint: str) -> None:
        arn = f"arn:aws:sagemaker:us-east-1:{aws.emulator.account}:endpoint/{endpoint}"
        aws("iam").put_user_policy(
            UserName=user,
            PolicyName="invoke",
            PolicyDocument=policy("sagemaker:InvokeEndpoint", resource=arn),
        )

    allow("another")
    with pytest.raises(ClientError) as caught:
        invoke()
    assert code(caught) == "AccessDeniedException"
    allow(fake_endpoint)
    assert invoke() == 200


def test_an_endpoint_whose_container_ends_fails_and_says_why(aws: Aws, fake_image: str) -> None:
    name = aws.name()
    config = aws.model(fake_image, EXIT="1")
    aws("sagemaker").create_endpoint(EndpointName=name, EndpointConfigName=config)
    found = aws.settled(name)
    assert found["EndpointStatus"] == "Failed"
    assert "did not pass the ping health check" in found["FailureReason"]
    assert "exited with status 1: cannot load the model" in found["FailureReason"]
    group = f"/aws/sagemaker/Endpoints/{name}"
    stream = aws("logs").describe_log_streams(logGroupName=group)["logStreams"][0]
    events = aws("logs").get_log_events(logGroupName=group, logStreamName=stream["logStreamName"])
    assert "fake container starts" in [event["message"] for event in events["events"]]
    aws.delete(name)


def test_an_endpoint_that_is_never_healthy_fails(hasty: Aws) -> None:
    name = hasty.name()
    config = hasty.model(hasty.push(FAKE_CONTEXT), patience=60, UNHEALTHY="1")
    hasty("sagemaker").create_endpoint(EndpointName=name, EndpointConfigName=config)
    found = hasty.settled(name)
    assert found["EndpointStatus"] == "Failed"
    assert "was not healthy in time" in found["FailureReason"]
    assert processes_of(hasty, config) == {}


def processes_of(aws: Aws, config: str) -> dict[int, str]:
    """Return the containers that run a model, told apart by a variable of its environment."""
    return marked(f"OF={config}")


def test_an_update_switches_without_a_gap_and_a_failing_one_changes_nothing(
    aws: Aws, fake_image: str
) -> None:
    old = aws.model(fake_image, OF="the old one")
    new = aws.model(fake_image, OF="the new one")
    broken = aws.model(fake_image, OF="the broken one", EXIT="1")
    endpoint = aws.serve(old)
    stop, failures, seen = threading.Event(), list[Exception](), set[str]()

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                seen.add(aws.invoke(endpoint, {})["Body"]["environment"]["OF"])
            except ClientError as error:
                failures.append(error)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        sagemaker = aws("sagemaker")
        sagemaker.update_endpoint(EndpointName=endpoint, EndpointConfigName=broken)
        found = aws.settled(endpoint)
        assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("InService", old)
        assert "cannot load the model" in found["FailureReason"]
        assert len(processes_of(aws, "the old one")) == 1
        sagemaker.update_endpoint(EndpointName=endpoint, EndpointConfigName=new)
        found = aws.settled(endpoint)
        assert (found["EndpointStatus"], found["EndpointConfigName"]) == ("InService", new)
        assert "FailureReason" not in found
        assert found["ProductionVariants"][0]["DeployedImages"][0]["ResolvedImage"] == fake_image
        for _ in polls("an answer of the new one and the end of the old one"):
            if "the new one" in seen and not processes_of(aws, "the old one"):
                break
    finally:
        stop.set()
        asking.join()
    assert failures == []
    aws.delete(endpoint)
    assert processes_of(aws, "the new one") == {}


def primary(image: str, uri: str = "", kind: str = "S3Prefix") -> dict[str, Any]:
    source = {"S3Uri": uri, "S3DataType": kind, "CompressionType": "None"}
    return {"Image": image, **({"ModelDataSource": {"S3DataSource": source}} if uri else {})}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (primary(f"{{repository}}@sha256:{'0' * 64}"), "not found"),
        (primary("public.ecr.aws/other/image:latest"), "is not in an ECR repository"),
        (primary("{image}", f"s3://{BUCKET}/absent/"), "Could not find model data"),
        (primary("{image}", f"s3://{BUCKET}/absent"), "ends in '/'"),
        (primary("{image}", "s3://absent-bucket/models/"), "Could not access model data"),
        (primary("{image}", f"s3://{BUCKET}/m/", "Prefix"), "is not one of"),
    ],
)
def test_a_model_that_cannot_be_made(
    aws: Aws, fake_image: str, container: dict[str, Any], message: str
) -> None:
    image = container["Image"].format(image=fake_image, repository=aws.repository)
    with pytest.raises(ClientError, match=message) as caught:
        aws("sagemaker").create_model(
            ModelName=aws.name(),
            ExecutionRoleArn=aws.run_role,
            PrimaryContainer={**container, "Image": image},
        )
    assert code(caught) == "ValidationException"


@pytest.mark.parametrize(
    ("service", "actions", "message"),
    [
        ("codebuild", ["*"], "Could not assume role"),
        ("sagemaker", ["s3:*"], "cannot pull"),
        ("sagemaker", ["ecr:*"], "Could not access model data"),
    ],
)
def test_a_model_whose_role_does_not_fit(
    aws: Aws, fake_image: str, service: str, actions: list[str], message: str
) -> None:
    aws("s3").put_object(Bucket=BUCKET, Key="models/role/x.gguf", Body=b"x")
    with pytest.raises(ClientError, match=message):
        aws("sagemaker").create_model(
            ModelName=aws.name(),
            ExecutionRoleArn=aws.role(service, *actions),
            PrimaryContainer=primary(fake_image, f"s3://{BUCKET}/models/role/"),
        )


POOL = {"InstanceType": "ml.g5.xlarge", "Priority": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"InstancePools": [POOL]}, "exactly one of InstanceType, InstancePools"),
        ({"InstanceType": None}, "exactly one of InstanceType, InstancePools"),
        ({"InstanceType": None, "InstancePools": [POOL, POOL]}, "priorities must be unique"),
        ({"InstanceType": None, "InstancePools": [POOL] * 6}, "is not within"),
        ({"InstanceType": "c7i.xlarge"}, "is not one of"),
        ({"ModelName": "absent"}, "Could not find model"),
        ({"ContainerStartupHealthCheckTimeoutInSeconds": 59}, "value: 59, valid min value: 60"),
    ],
)
def test_an_endpoint_configuration_that_cannot_be_made(
    aws: Aws, fake_image: str, changes: dict[str, Any], message: str
) -> None:
    changed = {**variant(aws.model(fake_image)), **changes}
    with pytest.raises(ClientError, match=message) as caught:
        aws("sagemaker").create_endpoint_config(
            EndpointConfigName=aws.name(),
            ProductionVariants=[{k: v for k, v in changed.items() if v is not None}],
        )
    assert code(caught) == "ValidationException"


# CloudFormation


def template(aws: Aws, image: str, **environment: str) -> dict[str, Any]:
    target = {
        "ServiceNamespace": "sagemaker",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
        "ResourceId": {"Fn::Sub": "endpoint/${Endpoint.EndpointName}/variant/AllTraffic"},
    }
    metric = {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}
    resources = {
        "Model": {
            "Type": "AWS::SageMaker::Model",
            "Properties": {
                "ExecutionRoleArn": aws.run_role,
                "PrimaryContainer": {"Image": image, "Environment": environment},
            },
        },
        "Config": {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": {
                "ProductionVariants": [
                    variant({"Fn::GetAtt": ["Model", "ModelName"]})  # type: ignore[arg-type]
                ]
            },
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {
                "EndpointName": "of-a-stack",
                "EndpointConfigName": {"Fn::GetAtt": ["Config", "EndpointConfigName"]},
                "Tags": [{"Key": "team", "Value": "ballot"}],
            },
        },
        "Target": {
            "Type": "AWS::ApplicationAutoScaling::ScalableTarget",
            "Properties": {**target, "MinCapacity": 1, "MaxCapacity": 3},
        },
        "Policy": {
            "Type": "AWS::ApplicationAutoScaling::ScalingPolicy",
            "Properties": {
                "PolicyName": "track",
                "PolicyType": "TargetTrackingScaling",
                "ScalingTargetId": {"Ref": "Target"},
                "TargetTrackingScalingPolicyConfiguration": {
                    "PredefinedMetricSpecification": metric,
                    "TargetValue": 60,
                },
            },
        },
    }
    return {"Resources": resources}


def test_a_stack_of_an_endpoint_is_created_updated_rolled_back_and_deleted(
    aws: Aws, fake_image: str
) -> None:
    cloudformation, sagemaker = aws("cloudformation"), aws("sagemaker")

    def put(operation: Any, **environment: str) -> str:
        body = json.dumps(template(aws, fake_image, **environment))
        operation(StackName="endpoint", TemplateBody=body)
        return stack_status(aws, "endpoint")

    def live() -> dict[str, Any]:
        found: dict[str, Any] = sagemaker.describe_endpoint(EndpointName="of-a-stack")
        return found

    assert put(cloudformation.create_stack, OF="first") == "CREATE_COMPLETE"
    first = live()
    tags = sagemaker.list_tags(ResourceArn=first["EndpointArn"])["Tags"]
    assert {"Key": "team", "Value": "ballot"} in tags
    scaling = aws("application-autoscaling")
    targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert [t["ResourceId"] for t in targets] == ["endpoint/of-a-stack/variant/AllTraffic"]

    assert put(cloudformation.update_stack, OF="second") == "UPDATE_COMPLETE"
    second = live()
    assert second["EndpointArn"] == first["EndpointArn"]
    assert second["EndpointConfigName"] != first["EndpointConfigName"]
    assert aws.invoke("of-a-stack", {})["Body"]["environment"]["OF"] == "second"
    with pytest.raises(ClientError, match="Could not find endpoint configuration"):
        sagemaker.describe_endpoint_config(EndpointConfigName=first["EndpointConfigName"])

    failed = put(cloudformation.update_stack, OF="third", EXIT="1")
    assert failed == "UPDATE_ROLLBACK_COMPLETE"
    assert live()["EndpointConfigName"] == second["EndpointConfigName"]
    assert aws.invoke("of-a-stack", {})["Body"]["environment"]["OF"] == "second"
    events = cloudformation.describe_stack_events(StackName="endpoint")["StackEvents"]
    assert any("cannot load the model" in e.get("ResourceStatusReason", "") for e in events)

    delete_stack(aws, "endpoint")
    assert not sagemaker.list_endpoints(NameContains="of-a-stack")["Endpoints"]
    assert not [m for m in sagemaker.list_models()["Models"] if "endpoint-" in m["ModelName"]]
    assert processes_of(aws, "second") == {}


def test_a_stack_whose_endpoint_fails_leaves_nothing(aws: Aws, fake_image: str) -> None:
    body = json.dumps(template(aws, fake_image, EXIT="1"))
    aws("cloudformation").create_stack(StackName="failing", TemplateBody=body)
    assert stack_status(aws, "failing") == "ROLLBACK_COMPLETE"
    events = aws("cloudformation").describe_stack_events(StackName="failing")["StackEvents"]
    assert any("cannot load the model" in e.get("ResourceStatusReason", "") for e in events)
    names = [m["ModelName"] for m in aws("sagemaker").list_models()["Models"]]
    assert not [name for name in names if name.startswith("failing-")]
    delete_stack(aws, "failing")


def test_a_bucket_keeps_its_tags_and_is_not_deleted_with_its_objects(aws: Aws) -> None:
    bucket = {
        "Type": "AWS::S3::Bucket",
        "Properties": {
            "BucketName": "kept-bucket",
            "VersioningConfiguration": {"Status": "Enabled"},
            "Tags": [{"Key": "aws-cdk:auto-delete-objects", "Value": "true"}],
        },
    }
    body = json.dumps({"Resources": {"Bucket": bucket}})
    aws("cloudformation").create_stack(StackName="bucket", TemplateBody=body)
    assert stack_status(aws, "bucket") == "CREATE_COMPLETE"
    tags = aws("s3").get_bucket_tagging(Bucket="kept-bucket")["TagSet"]
    assert {"Key": "aws-cdk:auto-delete-objects", "Value": "true"} in tags
    version = aws("s3").put_object(Bucket="kept-bucket", Key="x", Body=b"x")["VersionId"]
    aws("cloudformation").delete_stack(StackName="bucket")
    assert stack_status(aws, "bucket") == "DELETE_FAILED"
    aws("s3").delete_object(Bucket="kept-bucket", Key="x", VersionId=version)
    delete_stack(aws, "bucket")


def test_a_project_of_a_stack_logs_where_the_template_says(aws: Aws) -> None:
    project = {
        "Type": "AWS::CodeBuild::Project",
        "Properties": {
            "Name": "of-a-stack",
            "ServiceRole": aws.build_role,
            "Source": {"Type": "NO_SOURCE", "BuildSpec": spec(build=["echo hello"])},
            "Artifacts": {"Type": "NO_ARTIFACTS"},
            "Environment": {
                "Type": "LINUX_CONTAINER",
                "Image": "aws/codebuild/standard:7.0",
                "ComputeType": "BUILD_GENERAL1_SMALL",
            },
            "LogsConfig": {"CloudWatchLogs": {"Status": "ENABLED", "GroupName": "/chosen"}},
        },
    }
    body = json.dumps({"Resources": {"Project": project}})
    aws("cloudformation").create_stack(StackName="project", TemplateBody=body)
    assert stack_status(aws, "project") == "CREATE_COMPLETE"
    shown = aws("codebuild").batch_get_projects(names=["of-a-stack"])["projects"][0]
    assert shown["logsConfig"]["cloudWatchLogs"]["groupName"] == "/chosen"
    build = aws.finished(aws("codebuild").start_build(projectName="of-a-stack")["build"])
    assert build["logs"]["groupName"] == "/chosen"
    assert "%2Fchosen" in build["logs"]["deepLink"].replace("$25", "%")
    assert "hello" in aws.log(build)
    delete_stack(aws, "project")


# Requests to ministack's own services


def test_an_image_that_is_asked_for_must_be_there(aws: Aws) -> None:
    with pytest.raises(ClientError, match="imageTag:'absent'") as caught:
        aws("ecr").describe_images(repositoryName=REPOSITORY, imageIds=[{"imageTag": "absent"}])
    assert code(caught) == "ImageNotFoundException"


def test_the_public_registry_gives_a_token(aws: Aws) -> None:
    data = aws("ecr-public").get_authorization_token()["authorizationData"]
    assert data["authorizationToken"]


def test_a_policy_on_a_log_group_covers_its_streams(aws: Aws) -> None:
    group, user = f"/{aws.name()}", aws.name()
    aws("logs").create_log_group(logGroupName=group)
    arn = f"arn:aws:logs:us-east-1:{aws.emulator.account}:log-group:{group}:*"
    aws("iam").create_user(UserName=user)
    aws("iam").put_user_policy(
        UserName=user,
        PolicyName="write",
        PolicyDocument=policy("logs:CreateLogStream", resource=arn),
    )
    key = aws("iam").create_access_key(UserName=user)["AccessKey"]
    logs = aws.client(
        "logs",
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
    )
    logs.create_log_stream(logGroupName=group, logStreamName="x")
    with pytest.raises(ClientError) as caught:
        logs.create_log_stream(logGroupName="/other", logStreamName="x")
    assert code(caught) == "AccessDeniedException"


def test_requests_are_checked_against_the_api_model(aws: Aws) -> None:
    with pytest.raises(ClientError, match="is not one of MUTABLE"):
        aws("ecr").create_repository(repositoryName="checked", imageTagMutability="SOLID")
    with pytest.raises(ClientError, match="serviceRole"):
        aws("codebuild").create_project(
            name="checked",
            source={"type": "NO_SOURCE"},
            artifacts={"type": "NO_ARTIFACTS"},
            environment={"type": "VAX", "image": "x", "computeType": "BUILD_GENERAL1_SMALL"},
            serviceRole="",
        )


# The emulator as a whole


def test_leftovers_lists_what_is_there(tmp_path: Path) -> None:
    with running(tmp_path) as aws:
        endpoint = aws.serve(aws.model(aws.push(FAKE_CONTEXT)))
        found = aws.emulator.leftovers()
        assert found["buckets"] == [BUCKET]
        assert found["repositories"] == [REPOSITORY]
        assert found["endpoints"] == [endpoint]
        assert len(found["roles"]) == 2
        assert len(found["processes"]) == 1
        assert found["processes"][0].endswith("-m adapter serve")
        pid = int(found["processes"][0].partition(" ")[0])
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["emulator.log"]


def test_a_new_emulator_holds_nothing_and_cleans_up_after_itself() -> None:
    with Emulator() as emulator:
        folder = emulator.workdir
        assert not any(emulator.leftovers().values())
    assert not folder.exists()


def test_without_iam_every_role_may_do_everything(tmp_path: Path) -> None:
    with running(tmp_path, iam=False) as aws:
        build = aws.run(spec(build=["aws s3 ls"]), role=aws.role("lambda"))
        assert build["buildStatus"] == "SUCCEEDED", aws.log(build)
        assert any(line.endswith(BUCKET) for line in aws.log(build))


def test_an_emulator_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from emulator import Emulator\n"
        "with Emulator(Path(sys.argv[1])) as emulator:\n"
        "    print(emulator._marker, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        marker = parent.stdout.readline().strip()
        belongs = f"EMULATOR_MARKER={marker}"
        assert len(marked(belongs)) == 1
        parent.kill()
    for _ in polls("the emulator's end"):
        if not marked(belongs) and not marked(f"{MARKER_VARIABLE}={marker}"):
            return


def test_the_command_prints_what_to_export_and_ends_when_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "emulator", "--workdir", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("# log"):
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert "export AWS_ACCESS_KEY_ID=123456789012" in lines
    assert any(line.startswith("export AWS_ENDPOINT_URL=https://127.0.0.1:") for line in lines)
