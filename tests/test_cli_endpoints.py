"""`ballot endpoints` and `ballot doctor`, against endpoints of the emulated SageMaker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli_process import (
    MODEL,
    Scripted,
    ScriptedServer,
    aws_environment,
    ballot,
    ballot_in_terminal,
    result,
)
from tests.emulated_aws import BUCKET, FAKE_CONTEXT, Aws, policy, running, variant

SHA256 = str(MODEL["sha256"])
PREFIX = f"models/{SHA256[:16]}/"
POOLS = [
    {"InstanceType": "ml.g6.xlarge", "Priority": 1},
    {"InstanceType": "ml.g5.xlarge", "Priority": 2},
]
# Stands for a container: it answers what its environment says.
ANSWERING = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if os.environ.get("EXIT"):
    raise SystemExit("cannot load the model")

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(b"")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(os.environ["ANSWER"].encode())

ThreadingHTTPServer(("127.0.0.1", int(os.environ["BALLOT_PORT"])), Handler).serve_forever()
"""


PROVENANCE = {
    "batch-model": "batch-model-of-the-stack",
    "model": "qwen3.5-4b-q4-k-m",
    "model-sha256": SHA256,
    "model-source": "bartowski/Qwen@4168f45",
    "version": "0.7.0",
}


def decision_answer(sha256: str = SHA256, *, mass: float = 0.9) -> str:
    scored = result("ballot-doctor", {"account_access": 0.91, "billing": 0.09}, mass=mass)
    return json.dumps({"result": {**scored, "model": {**MODEL, "sha256": sha256}}})


CHAT_ANSWER = json.dumps(
    {
        "model": "a.gguf",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}],
    }
)


@dataclass(frozen=True)
class Deployed:
    """An account with endpoints of two environments, and the image that they run."""

    aws: Aws
    image: str

    @property
    def variables(self) -> dict[str, str]:
        return dict(self.aws.emulator.exports)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with running(tmp_path_factory.mktemp("cli")) as aws:
        image = aws.push({**FAKE_CONTEXT, "adapter/__main__.py": ANSWERING})
        manifest = json.dumps({"schema": 1, "sha256": SHA256})
        aws("s3").put_object(Bucket=BUCKET, Key=f"{PREFIX}model-manifest.json", Body=manifest)
        aws("s3").put_object(Bucket=BUCKET, Key="models/0123456789abcdef/a.gguf", Body=b"x")
        decision = {"BALLOT_THREADS": "1", "ANSWER": decision_answer()}
        tags = {"image-digest": image.rpartition("@")[2], **PROVENANCE}
        create(aws, "ballot-dev-decision", image, PREFIX, decision, pools=True, tags=tags)
        chat = {"SM_LLAMA_CPP_MODEL": "/opt/ml/model/a.gguf", "ANSWER": CHAT_ANSWER}
        create(aws, "ballot-dev-chat", image, "models/0123456789abcdef/", chat)
        failing = {"BALLOT_THREADS": "1", "EXIT": "1"}
        tags = {"image-digest": f"sha256:{'0' * 64}", "model-sha256": "0" * 64}
        create(aws, "ballot-dev-broken", image, PREFIX, failing, tags=tags)
        other = {"BALLOT_THREADS": "1", "ANSWER": decision_answer("f" * 64, mass=0.1)}
        create(aws, "ballot-dev2-decision", image, PREFIX, other)
        for name in ("dev-decision", "dev-chat", "dev-broken", "dev2-decision"):
            aws.settled(f"ballot-{name}")
        yield Deployed(aws, image)


def create(
    aws: Aws,
    name: str,
    image: str,
    prefix: str,
    environment: Mapping[str, str],
    *,
    pools: bool = False,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Begin to make an endpoint, as a stack of ours does."""
    config = aws.model(image, prefix=prefix, patience=600, **environment)
    if pools:
        model, config = config, aws.name()
        pooled = {**variant(model), "InstancePools": POOLS, "InitialInstanceCount": 2}
        del pooled["InstanceType"]
        aws("sagemaker").create_endpoint_config(
            EndpointConfigName=config, ProductionVariants=[pooled]
        )
    listed = [{"Key": f"ballot:{key}", "Value": value} for key, value in (tags or {}).items()]
    aws("sagemaker").create_endpoint(
        EndpointName=name,
        EndpointConfigName=config,
        Tags=[*listed, {"Key": "team", "Value": "support"}],
    )


def digest(deployed: Deployed) -> str:
    """Return the digest of the image that runs."""
    return deployed.image.rpartition("@")[2]


def test_endpoints_are_told_as_sagemaker_describes_them(deployed: Deployed) -> None:
    ended = ballot("endpoints", "-c", "dev", "--json", **deployed.variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    broken, chat, decision = json.loads(ended.stdout)
    described = deployed.aws("sagemaker").describe_endpoint(EndpointName="ballot-dev-decision")
    assert decision.pop("changed").startswith(f"{described['LastModifiedTime']:%Y-%m-%dT%H:%M}")
    assert decision == {
        "name": "ballot-dev-decision",
        "status": "InService",
        "kind": "decision",
        "instances": [{"type": "ml.g6.xlarge", "count": 2}],
        "wanted_instances": 2,
        "instance_types": ["ml.g6.xlarge", "ml.g5.xlarge"],
        "image": deployed.image,
        "image_digest": deployed.image.rpartition("@")[2],
        "model_uri": f"s3://{BUCKET}/{PREFIX}",
        "model_sha256": SHA256,
        "provenance": {"image-digest": digest(deployed), **PROVENANCE},
        "differences": [],
        "failure_reason": None,
    }
    assert (chat["kind"], chat["status"]) == ("chat", "InService")
    assert chat["instances"] == [{"type": "ml.c7i.xlarge", "count": 1}]
    assert chat["model_sha256"] is None
    assert (chat["provenance"], chat["differences"]) == ({}, [])
    assert broken["differences"] == ["image", "model"]
    assert (broken["name"], broken["status"]) == ("ballot-dev-broken", "Failed")
    assert broken["instances"] == []
    assert "cannot load the model" in broken["failure_reason"]


def test_endpoints_read_well(deployed: Deployed) -> None:
    ended = ballot("endpoints", "--environment", "environment=dev", **deployed.variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    blocks = re.sub(r"changed   .* UTC", "changed   NOW UTC", ended.stdout).split("\n\n")
    assert blocks[2] == (
        "ballot-dev-decision  InService  decision\n"
        "  instances 2 x ml.g6.xlarge\n"
        f"  image     {digest(deployed)}\n"
        f"  model     s3://{BUCKET}/{PREFIX}\n"
        f"  SHA-256   {SHA256}\n"
        "  source    qwen3.5-4b-q4-k-m, bartowski/Qwen@4168f45\n"
        "  version   0.7.0\n"
        "  batch     batch-model-of-the-stack\n"
        "  changed   NOW UTC"
    )
    assert (
        f"  differs   this image is not the one that was deployed, sha256:{'0' * 64}\n"
        f"  differs   this model is not the one that was deployed, {'0' * 64}\n"
    ) in blocks[0]
    assert "  SHA-256   0123456789abcdef... (its manifest cannot be read)" in blocks[1]
    assert blocks[0].startswith("ballot-dev-broken  Failed  decision\n")
    assert "  instances none, of ml.c7i.xlarge\n" in blocks[0]
    assert "  failure   The primary container" in blocks[0]
    coloured = ballot_in_terminal("endpoints", "-c", "dev", columns=60, **deployed.variables).stdout
    assert "\x1b[1;31m  Failed\x1b[0m" in coloured
    assert f"\n  SHA-256   {SHA256}\n" in coloured  # uncut, and unwrapped: it is there to be copied
    reason = coloured.partition("  failure   ")[2].partition("\n\n")[0].splitlines()
    assert len(reason) > 2
    assert all(line.startswith(" " * 12 + "\x1b[31m") for line in reason[1:])


def test_an_environment_without_endpoints_is_said_to_have_none(deployed: Deployed) -> None:
    ended = ballot("endpoints", "-c", "prod", **deployed.variables)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.startswith("ballot: there is no endpoint of prod in us-east-1; ")
    ended = ballot("endpoints", "-c", "prod", "--json", **deployed.variables)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, [])


def findings(output: str) -> list[tuple[str, str]]:
    """Return each line's mark and title."""
    lines = re.findall(r"^([✓✗!-]) (\S+(?: \S+)?)  ", output, re.M)
    return [(mark, title) for mark, title in lines]


def test_doctor_finds_a_healthy_endpoint_healthy(deployed: Deployed) -> None:
    ended = ballot("doctor", "--endpoint", "ballot-dev-decision", **deployed.variables)
    assert (ended.returncode, ended.stderr) == (0, "")
    titles = ("Region", "credentials", "endpoint", "decision", "model", "token mass")
    assert findings(ended.stdout) == [("✓", title) for title in titles]
    assert f"account {deployed.aws.emulator.account}" in ended.stdout
    assert "ballot-dev-decision is InService on 2 x ml.g6.xlarge" in ended.stdout
    assert f"{MODEL['file']}, SHA-256 {SHA256[:16]}, as deployed" in ended.stdout


def test_doctor_goes_through_an_environment_and_fails_for_one_endpoint(deployed: Deployed) -> None:
    ended = ballot("doctor", "-c", "dev", **deployed.variables)
    assert ended.returncode == 1
    broken, chat, decision = (part for part in ended.stdout.split("\n\n")[1:])
    assert findings(broken) == [
        ("✗", "endpoint"),
        ("-", "decision"),
        ("-", "model"),
        ("-", "token mass"),
    ]
    assert "cannot load the model" in broken
    assert "read the log group /aws/sagemaker/Endpoints/ballot-dev-broken" in broken
    assert "skipped: the endpoint does not answer" in broken
    assert findings(chat) == [("✓", "endpoint"), ("✓", "chat")]
    assert [mark for mark, _ in findings(decision)] == ["✓"] * 4


def test_doctor_tells_another_model_from_the_deployed_one(deployed: Deployed) -> None:
    ended = ballot("doctor", "--endpoint", "ballot-dev2-decision", **deployed.variables)
    assert ended.returncode == 1
    assert findings(ended.stdout)[3:] == [("✓", "decision"), ("✗", "model"), ("!", "token mass")]
    assert f"SHA-256 {'f' * 16}, but {SHA256[:16]} is deployed" in ended.stdout


def test_doctor_names_an_endpoint_that_is_not_there(deployed: Deployed) -> None:
    ended = ballot("doctor", "--endpoint", "ballot-dev-absent", **deployed.variables)
    assert ended.returncode == 1
    assert findings(ended.stdout)[2] == ("✗", "endpoint")
    assert "there is no endpoint ballot-dev-absent in us-east-1" in ended.stdout
    assert "`ballot endpoints -c ENVIRONMENT` lists those there are" in ended.stdout


def test_who_may_only_invoke_learns_that_it_works(deployed: Deployed) -> None:
    aws, user = deployed.aws, deployed.aws.name()
    aws("iam").create_user(UserName=user)
    aws("iam").put_user_policy(
        UserName=user, PolicyName="invoke", PolicyDocument=policy("sagemaker:InvokeEndpoint")
    )
    key = aws("iam").create_access_key(UserName=user)["AccessKey"]
    variables = {
        **deployed.variables,
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }
    ended = ballot("doctor", "--endpoint", "ballot-dev-decision", **variables)
    assert ended.returncode == 1
    expected = [("✗", "endpoint"), ("✓", "decision"), ("!", "model"), ("✓", "token mass")]
    assert findings(ended.stdout)[2:] == expected
    assert "sagemaker:DescribeEndpoint" in ended.stdout
    listing = ballot("endpoints", "-c", "dev", **variables)
    assert listing.returncode == 3
    assert "sagemaker:ListEndpoints" in listing.stderr


def test_doctor_without_credentials_skips_what_needs_them() -> None:
    ended = ballot("doctor", "--endpoint", "x", "--region", "eu-west-1")
    assert ended.returncode == 1
    assert findings(ended.stdout) == [
        ("✓", "Region"),
        ("✗", "credentials"),
        *[("-", title) for title in ("endpoint", "decision", "model", "token mass")],
    ]
    assert "`aws sso login`" in ended.stdout
    assert ended.stdout.count("skipped: no credentials") == 4


def test_doctor_without_a_region_still_tells_whose_credentials_they_are() -> None:
    caller = (
        "<GetCallerIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
        "<GetCallerIdentityResult><Arn>arn:aws:iam::123456789012:user/me</Arn>"
        "<UserId>A</UserId><Account>123456789012</Account></GetCallerIdentityResult>"
        "</GetCallerIdentityResponse>"
    )
    with ScriptedServer(Scripted(200, caller.encode(), {"content-type": "text/xml"})) as server:
        variables = aws_environment(server.url)
        del variables["AWS_REGION"]
        ended = ballot("doctor", **variables)
    assert ended.returncode == 1
    assert findings(ended.stdout) == [("✗", "Region"), ("✓", "credentials")]
    assert "give --region, or set AWS_REGION" in ended.stdout
    assert "arn:aws:iam::123456789012:user/me" in ended.stdout


def test_doctor_and_a_server_that_is_loading_or_absent() -> None:
    loading: dict[str, Any] = {"ping": Scripted(503)}
    with ScriptedServer(Scripted(503), **loading) as server:
        ended = ballot("doctor", "--url", server.url)
        url = server.url
    skipped = [("-", "decision"), ("-", "model"), ("-", "token mass")]
    assert (ended.returncode, findings(ended.stdout)) == (1, [("✗", "server"), *skipped])
    assert "is loading, or not healthy" in ended.stdout
    ended = ballot("doctor", "--url", url)
    assert (ended.returncode, findings(ended.stdout)) == (1, [("✗", "server"), *skipped])
    assert f"{url}: " in ended.stdout
    assert "Connection refused" in ended.stdout
