"""The custom resource's handlers, against botocore's stubs: every call checked, in order.

The stubs refuse a call that is not expected, has other parameters, or breaks the API's model.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.response import StreamingBody
from botocore.stub import Stubber

from build_waiter import handlers
from build_waiter.builds import BuildFailed, Builds
from build_waiter.handlers import BuildWaiter
from build_waiter.request import BadRequest
from build_waiter.results import BadResult, Results

STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Ballot-dev-decision/1"
IMAGE_PROJECT = "ballot-dev-image-cpu"
MODEL_PROJECT = "ballot-dev-model"
HASH, OTHER_HASH = "1" * 64, "2" * 64
DIGEST = "sha256:" + "d" * 64
PIN = "b" * 64
REPOSITORY = "ballot-dev-cpu"
REPOSITORY_URI = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/{REPOSITORY}"
BUCKET = "artifacts"
MANIFEST = "models/bbbbbbbbbbbbbbbb/model-manifest.json"
BUILD = f"{IMAGE_PROJECT}:0001"
LINK = "https://console.aws.amazon.com/cloudwatch/home#logEvent:group=x"
IMAGE = {
    "Kind": "image",
    "ProjectName": IMAGE_PROJECT,
    "SourceLocation": "assets/source.zip",
    "InputsHash": HASH,
    "Environment": json.dumps({"BASE_IMAGE": "base", "REPOSITORY_URI": REPOSITORY_URI}),
    "RepositoryName": REPOSITORY,
    "ImageTag": HASH,
}
# One that is built here, and listed; what is mirrored has no bucket.
LISTED = {
    **IMAGE,
    "Environment": json.dumps({"REPOSITORY_URI": REPOSITORY_URI, "ARTIFACT_BUCKET": BUCKET}),
}
MODEL = {
    "Kind": "model",
    "ProjectName": MODEL_PROJECT,
    "SourceLocation": "assets/model.zip",
    "InputsHash": HASH,
    "Environment": json.dumps({"MODEL_COMPRESSION": "none", "MODEL_TOKENIZER": ""}),
    "ArtifactBucket": BUCKET,
    "ManifestKey": MANIFEST,
    "ExpectedSha256": PIN,
}
IMAGE_FOUND = {"ImageDigest": DIGEST, "ImageUri": f"{REPOSITORY_URI}@{DIGEST}"}
MODEL_FOUND = {"ModelDataUri": "s3://artifacts/models/bbbbbbbbbbbbbbbb/", "GgufSha256": PIN}


def event(
    kind: str = "Create",
    properties: dict[str, str] = IMAGE,
    *,
    old: dict[str, str] | None = None,
    logical_id: str = "Image",
    request_id: str = "request-1",
    **more: str,
) -> dict[str, Any]:
    """Return what CloudFormation sends, as Provider hands it on."""
    known = {} if kind == "Create" else {"PhysicalResourceId": f"{IMAGE_PROJECT}/{logical_id}"}
    return {
        "RequestType": kind,
        "RequestId": request_id,
        "StackId": STACK,
        "LogicalResourceId": logical_id,
        "ResourceProperties": {"ServiceToken": "arn", **properties},
        **({"OldResourceProperties": old} if old else {}),
        **known,
        **more,
    }


def build(
    status: str = "IN_PROGRESS",
    *,
    build_id: str = BUILD,
    inputs_hash: str = HASH,
    owner: str = f"{STACK}/Image",
    phases: list[dict[str, Any]] | None = None,
    log: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a build as CodeBuild describes it."""
    return {
        "id": build_id,
        "buildStatus": status,
        "environment": {
            "type": "LINUX_CONTAINER",
            "image": "x",
            "computeType": "BUILD_GENERAL1_SMALL",
            "environmentVariables": [
                {"name": "BALLOT_BUILD_OWNER", "value": owner},
                {"name": "BALLOT_BUILD_INPUTS", "value": inputs_hash},
            ],
        },
        "phases": phases or [],
        "logs": log or {},
    }


@dataclass
class Aws:
    """The stubbed services, told what is going to be asked, in order."""

    codebuild: Stubber
    logs: Stubber
    ecr: Stubber
    s3: Stubber

    def has_image(self, digest: str | None = DIGEST) -> None:
        """Expect the image to be looked up; there is one, or none."""
        wanted = {"repositoryName": REPOSITORY, "imageIds": [{"imageTag": HASH}]}
        if digest is None:
            self.ecr.add_client_error(
                "describe_images", "ImageNotFoundException", expected_params=wanted
            )
        else:
            answer = {"imageDetails": [{"imageDigest": digest}]}
            self.ecr.add_response("describe_images", answer, wanted)

    def has_list(self, *, refused_with: str | None = None) -> None:
        """Expect the list of what is in the image to be looked for under the image's digest."""
        wanted = {"Bucket": BUCKET, "Key": f"sboms/{'d' * 64}.cdx.json"}
        if refused_with is None:
            self.s3.add_response("head_object", {}, wanted)
        else:
            self.s3.add_client_error("head_object", refused_with, expected_params=wanted)

    def has_manifest(self, content: object | None) -> None:
        """Expect the manifest to be read; there is one with some content, or none."""
        wanted = {"Bucket": BUCKET, "Key": MANIFEST}
        if content is None:
            self.s3.add_client_error("get_object", "NoSuchKey", expected_params=wanted)
        else:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            body = StreamingBody(io.BytesIO(data), len(data))
            self.s3.add_response("get_object", {"Body": body}, wanted)

    def has_builds(self, *builds: dict[str, Any], project: str = IMAGE_PROJECT) -> None:
        """Expect the project's builds to be listed and described."""
        ids = [item["id"] for item in builds]
        self.codebuild.add_response(
            "list_builds_for_project", {"ids": ids} if ids else {}, {"projectName": project}
        )
        if ids:
            self.describes(*builds)

    def describes(self, *builds: dict[str, Any]) -> None:
        """Expect builds to be described."""
        ids = [item["id"] for item in builds]
        self.codebuild.add_response("batch_get_builds", {"builds": list(builds)}, {"ids": ids})

    def starts(
        self,
        properties: dict[str, str] = IMAGE,
        *,
        logical_id: str = "Image",
        request_id: str = "request-1",
        build_id: str = BUILD,
    ) -> None:
        """Expect a build to be started with the inputs of `properties`."""
        variables = {
            **json.loads(properties["Environment"]),
            "BALLOT_BUILD_OWNER": f"{STACK}/{logical_id}",
            "BALLOT_BUILD_INPUTS": properties["InputsHash"],
        }
        location = properties["SourceLocation"]
        self.codebuild.add_response(
            "start_build",
            {"build": {"id": build_id}},
            {
                "projectName": properties["ProjectName"],
                "environmentVariablesOverride": [
                    {"name": name, "value": value, "type": "PLAINTEXT"}
                    for name, value in variables.items()
                ],
                "idempotencyToken": hashlib.sha256(request_id.encode()).hexdigest(),
                **({"sourceLocationOverride": location} if location else {}),
            },
        )

    def stops(self, build_id: str = BUILD) -> None:
        """Expect a build to be stopped."""
        self.codebuild.add_response("stop_build", {"build": {"id": build_id}}, {"id": build_id})

    def says(self, *lines: str) -> None:
        """Expect the end of the log to be read."""
        self.logs.add_response(
            "get_log_events",
            {"events": [{"timestamp": 1, "message": line} for line in lines]},
            {"logGroupName": "group", "logStreamName": "stream", "limit": 50},
        )


@pytest.fixture
def aws() -> Iterator[Aws]:
    session = botocore.session.get_session()
    session.set_credentials("key", "secret")
    stubs = {
        name: Stubber(session.create_client(name, region_name="us-east-1"))
        for name in ("codebuild", "logs", "ecr", "s3")
    }
    with ExitStack() as stack:
        for stub in stubs.values():
            stack.enter_context(stub)
        yield Aws(**stubs)
        for stub in stubs.values():
            stub.assert_no_pending_responses()


@pytest.fixture
def waiter(aws: Aws) -> BuildWaiter:
    return BuildWaiter(
        Builds(codebuild=aws.codebuild.client, logs=aws.logs.client),
        Results(ecr=aws.ecr.client, s3=aws.s3.client),
    )


class TestCreate:
    def test_an_image_that_is_missing_is_built(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds()
        aws.has_image(None)
        aws.has_builds()
        aws.starts()
        assert waiter.on_event(event()) == {
            "PhysicalResourceId": f"{IMAGE_PROJECT}/Image",
            "BuildId": BUILD,
        }

    def test_an_image_that_is_there_is_not_built(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds()
        aws.has_image()
        assert waiter.on_event(event())["BuildId"] == ""
        aws.has_image()
        assert waiter.is_complete(event(BuildId="")) == {
            "IsComplete": True,
            "Data": {**IMAGE_FOUND, "BuildId": ""},
        }

    def test_an_image_that_is_listed_is_not_built(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds()
        aws.has_image()
        aws.has_list()
        assert waiter.on_event(event("Create", LISTED))["BuildId"] == ""

    def test_an_image_whose_list_did_not_arrive_is_built_once_more(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_builds()
        aws.has_image()
        aws.has_list(refused_with="404")
        aws.has_builds()
        aws.starts(LISTED)
        assert waiter.on_event(event("Create", LISTED))["BuildId"] == BUILD

    def test_a_list_that_may_not_be_seen_is_told_as_it_is(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_image()
        aws.has_list(refused_with="403")
        with pytest.raises(ClientError, match="403"):
            waiter.is_complete(event("Create", LISTED, BuildId=""))

    def test_a_build_that_left_no_list_has_not_made_the_image(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.describes(build("SUCCEEDED"))
        aws.has_image()
        aws.has_list(refused_with="404")
        with pytest.raises(BadResult, match=f"no image {REPOSITORY}:{HASH} that is listed"):
            waiter.is_complete(event("Create", LISTED, BuildId=BUILD))

    def test_a_model_that_is_missing_is_built(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds(project=MODEL_PROJECT)
        aws.has_manifest(None)
        aws.has_builds(project=MODEL_PROJECT)
        aws.starts(MODEL, logical_id="Model")
        assert waiter.on_event(event("Create", MODEL, logical_id="Model")) == {
            "PhysicalResourceId": f"{MODEL_PROJECT}/Model",
            "BuildId": BUILD,
        }

    def test_a_model_that_is_there_is_not_built(self, aws: Aws, waiter: BuildWaiter) -> None:
        manifest = {"sha256": PIN, "tokenizer_source": None}
        aws.has_builds(project=MODEL_PROJECT)
        aws.has_manifest(manifest)
        assert waiter.on_event(event("Create", MODEL))["BuildId"] == ""
        aws.has_manifest(manifest)
        assert waiter.is_complete(event("Create", MODEL, BuildId="")) == {
            "IsComplete": True,
            "Data": {**MODEL_FOUND, "BuildId": ""},
        }

    @pytest.mark.parametrize(
        "manifest",
        [
            {"sha256": "c" * 64, "tokenizer_source": None},
            {"sha256": PIN, "tokenizer_source": {"repository": "o/n", "revision": "c" * 40}},
            {"tokenizer_source": None},
        ],
        ids=["other model", "other tokenizer", "no checksum"],
    )
    def test_another_model_in_its_place_is_built_over(
        self, manifest: dict[str, Any], aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_builds(project=MODEL_PROJECT)
        aws.has_manifest(manifest)
        aws.has_builds(project=MODEL_PROJECT)
        aws.starts(MODEL)
        assert waiter.on_event(event("Create", MODEL))["BuildId"] == BUILD

    def test_a_model_with_its_tokenizer_is_recognised(self, aws: Aws, waiter: BuildWaiter) -> None:
        tokenizer = {"repository": "o/n", "revision": "c" * 40}
        variables = {"MODEL_COMPRESSION": "gzip", "MODEL_TOKENIZER": json.dumps(tokenizer)}
        properties = {**MODEL, "Environment": json.dumps(variables)}
        aws.has_manifest({"sha256": PIN, "tokenizer_source": tokenizer})
        data = waiter.is_complete(event("Create", properties, BuildId=""))["Data"]
        assert data["ModelDataUri"] == f"{MODEL_FOUND['ModelDataUri']}model.tar.gz"

    def test_a_project_without_a_source_gets_none(self, aws: Aws, waiter: BuildWaiter) -> None:
        properties = {**IMAGE, "SourceLocation": ""}
        aws.has_builds()
        aws.has_image(None)
        aws.has_builds()
        aws.starts(properties)
        assert waiter.on_event(event("Create", properties))["BuildId"] == BUILD


class TestWaiting:
    def test_a_running_build_is_waited_for(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.describes(build())
        assert waiter.is_complete(event(BuildId=BUILD)) == {"IsComplete": False}

    def test_a_finished_build_gives_what_lies_in_the_repository(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.describes(build("SUCCEEDED"))
        aws.has_image()
        assert waiter.is_complete(event(BuildId=BUILD)) == {
            "IsComplete": True,
            "Data": {**IMAGE_FOUND, "BuildId": BUILD},
        }

    def test_a_failure_says_phase_reason_and_where_the_log_is(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        phases: list[dict[str, Any]] = [
            {"phaseType": "INSTALL", "phaseStatus": "SUCCEEDED"},
            {
                "phaseType": "BUILD",
                "phaseStatus": "FAILED",
                "contexts": [
                    {"statusCode": "X", "message": "first"},
                    {
                        "statusCode": "COMMAND_EXECUTION_ERROR",
                        "message": "Error while executing command: docker build. Reason: "
                        "exit status 1.",
                    },
                ],
            },
            {"phaseType": "POST_BUILD", "phaseStatus": "FAILED"},
            {"phaseType": "COMPLETED"},
        ]
        log = {"groupName": "group", "streamName": "stream", "deepLink": LINK}
        aws.describes(build("FAILED", phases=phases, log=log))
        aws.says("[Container] Running command docker build", " ", "line 1", "line 2", "bad ABI\n")
        with pytest.raises(BuildFailed) as error:
            waiter.is_complete(event(BuildId=BUILD))
        assert str(error.value) == (
            f"build {BUILD} ended FAILED in phase BUILD: Error while executing command: docker "
            "build. Reason: exit status 1. The log ends with: line 1 | line 2 | bad ABI. "
            f"Log: {LINK}"
        )

    def test_a_build_past_its_time_says_so(self, aws: Aws, waiter: BuildWaiter) -> None:
        phases: list[dict[str, Any]] = [
            {
                "phaseType": "BUILD",
                "phaseStatus": "TIMED_OUT",
                "contexts": [{"message": "Build timed out. "}],
            }
        ]
        aws.describes(build("TIMED_OUT", phases=phases, log={"deepLink": LINK}))
        with pytest.raises(BuildFailed) as error:
            waiter.is_complete(event(BuildId=BUILD))
        assert str(error.value) == (
            f"build {BUILD} ended TIMED_OUT in phase BUILD: Build timed out. Log: {LINK}"
        )

    def test_a_failure_without_details_is_still_told(self, aws: Aws, waiter: BuildWaiter) -> None:
        log = {"groupName": "group", "streamName": "stream"}
        aws.describes({**build("FAULT", log=log), "currentPhase": "PROVISIONING"})
        aws.logs.add_client_error("get_log_events", "ResourceNotFoundException")
        with pytest.raises(BuildFailed) as error:
            waiter.is_complete(event(BuildId=BUILD))
        assert str(error.value) == (
            f"build {BUILD} ended FAULT in phase PROVISIONING: no reason given. Log: none"
        )

    def test_a_long_log_is_cut_to_what_cloudformation_shows(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        log = {"groupName": "group", "streamName": "stream", "deepLink": LINK}
        aws.describes(build("FAILED", log=log))
        aws.says("x" * 5000)
        with pytest.raises(BuildFailed) as error:
            waiter.is_complete(event(BuildId=BUILD))
        assert len(str(error.value)) < 1000
        assert str(error.value).endswith(LINK)

    def test_a_build_that_is_gone_is_a_failure(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.codebuild.add_response("batch_get_builds", {"builds": []}, {"ids": [BUILD]})
        with pytest.raises(BuildFailed, match=f"build {BUILD} is not there any more"):
            waiter.is_complete(event(BuildId=BUILD))


class TestResults:
    def test_success_without_an_image_is_a_failure(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.describes(build("SUCCEEDED"))
        aws.has_image(None)
        with pytest.raises(BadResult) as error:
            waiter.is_complete(event(BuildId=BUILD))
        assert str(error.value) == (
            f"the build succeeded, but there is no image {REPOSITORY}:{HASH}"
        )

    @pytest.mark.parametrize("digest", ["", "d" * 64, "sha256:" + "d" * 63, "sha256:" + "D" * 64])
    def test_a_malformed_digest_is_a_failure(
        self, digest: str, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_image(digest)
        with pytest.raises(BadResult) as error:
            waiter.is_complete(event(BuildId=""))
        assert str(error.value) == (
            f"the digest of {REPOSITORY}:{HASH} is {digest!r}, "
            "not sha256:<64 lower-case hexadecimal digits>"
        )

    @pytest.mark.parametrize(
        ("manifest", "message"),
        [
            (None, "is not there"),
            ({"sha256": "c" * 64}, f"says SHA-256 {'c' * 64}, but {PIN} is pinned"),
            (
                {"sha256": "C" * 64},
                f"says '{'C' * 64}' for the SHA-256, not 64 lower-case hexadecimal digits",
            ),
            ({}, "says None for the SHA-256, not 64 lower-case hexadecimal digits"),
            ({"sha256": PIN, "tokenizer_source": {}}, "was made with another tokenizer"),
        ],
    )
    def test_a_model_other_than_the_pinned_one_is_a_failure(
        self, manifest: object | None, message: str, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.describes(build("SUCCEEDED"))
        aws.has_manifest(manifest)
        aws.has_manifest(manifest)
        with pytest.raises(BadResult) as error:
            waiter.is_complete(event("Create", MODEL, BuildId=BUILD))
        assert str(error.value) == (f"the build succeeded, but s3://{BUCKET}/{MANIFEST} {message}")

    @pytest.mark.parametrize(
        ("content", "message"), [(b"{", "is not JSON"), (b"[]", "is not a JSON object")]
    )
    def test_a_manifest_that_cannot_be_read_is_a_failure(
        self, content: bytes, message: str, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_manifest(content)
        with pytest.raises(BadResult, match=f"s3://{BUCKET}/{MANIFEST} {message}"):
            waiter.is_complete(event("Create", MODEL, BuildId=""))


class TestUpdate:
    def test_unchanged_inputs_start_nothing(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds(build("SUCCEEDED"))
        aws.has_image()
        assert waiter.on_event(event("Update", old=IMAGE)) == {
            "PhysicalResourceId": f"{IMAGE_PROJECT}/Image",
            "BuildId": "",
        }

    def test_changed_inputs_start_a_build_under_the_same_id(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_builds(build("SUCCEEDED", inputs_hash=OTHER_HASH))
        aws.has_image(None)
        aws.has_builds()
        aws.starts()
        old = {**IMAGE, "InputsHash": OTHER_HASH}
        assert waiter.on_event(event("Update", old=old)) == {
            "PhysicalResourceId": f"{IMAGE_PROJECT}/Image",
            "BuildId": BUILD,
        }

    def test_the_id_stays_when_the_project_changes(self, aws: Aws, waiter: BuildWaiter) -> None:
        properties = {**IMAGE, "ProjectName": "ballot-dev-image-cuda"}
        aws.has_builds(project="ballot-dev-image-cuda")
        aws.has_builds(build(inputs_hash=OTHER_HASH))
        aws.stops()
        aws.has_image()
        answer = waiter.on_event(event("Update", properties, old=IMAGE))
        assert answer["PhysicalResourceId"] == f"{IMAGE_PROJECT}/Image"

    def test_a_cancelled_update_leaves_nothing_running(self, aws: Aws, waiter: BuildWaiter) -> None:
        """Rolling back is an update to the old properties, whose result is there."""
        aws.has_builds(build(inputs_hash=OTHER_HASH))
        aws.stops()
        aws.has_image()
        new = {**IMAGE, "InputsHash": OTHER_HASH}
        assert waiter.on_event(event("Update", old=new))["BuildId"] == ""

    def test_builds_of_others_are_left_alone(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds(build(inputs_hash=OTHER_HASH, owner="another stack/Image"))
        aws.has_image()
        assert waiter.on_event(event("Update", old=IMAGE))["BuildId"] == ""


class TestRetries:
    def test_a_request_that_comes_again_finds_its_build(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        aws.has_builds(build())
        aws.has_image(None)
        aws.has_builds(build())
        assert waiter.on_event(event())["BuildId"] == BUILD

    def test_a_request_that_comes_again_at_once_gets_the_same_build(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        """CodeBuild may not list a build yet, but answers the same token with the same build."""
        for _ in range(2):
            aws.has_builds()
            aws.has_image(None)
            aws.has_builds()
            aws.starts()
            assert waiter.on_event(event())["BuildId"] == BUILD

    def test_two_stacks_share_a_build_of_the_same_inputs(
        self, aws: Aws, waiter: BuildWaiter
    ) -> None:
        theirs = build(owner="another stack/Image")
        aws.has_builds(theirs)
        aws.has_image(None)
        aws.has_builds(theirs)
        assert waiter.on_event(event())["BuildId"] == BUILD


class TestDelete:
    def test_nothing_runs_and_nothing_is_done(self, aws: Aws, waiter: BuildWaiter) -> None:
        aws.has_builds(build("SUCCEEDED"))
        assert waiter.on_event(event("Delete")) == {"PhysicalResourceId": f"{IMAGE_PROJECT}/Image"}
        aws.has_builds(build("SUCCEEDED"))
        assert waiter.is_complete(event("Delete")) == {"IsComplete": True}

    def test_a_running_build_is_stopped(self, aws: Aws, waiter: BuildWaiter) -> None:
        others = build(build_id="other:1", owner="another stack/Image")
        aws.has_builds(build(), others)
        aws.stops()
        waiter.on_event(event("Delete"))
        aws.has_builds(build(), others)
        assert waiter.is_complete(event("Delete")) == {"IsComplete": False}
        aws.has_builds(build("STOPPED"), others)
        assert waiter.is_complete(event("Delete")) == {"IsComplete": True}

    def test_a_project_that_is_gone_is_no_obstacle(self, aws: Aws, waiter: BuildWaiter) -> None:
        for _ in range(2):
            aws.codebuild.add_client_error("list_builds_for_project", "ResourceNotFoundException")
        waiter.on_event(event("Delete"))
        assert waiter.is_complete(event("Delete")) == {"IsComplete": True}

    def test_malformed_properties_are_no_obstacle(self, waiter: BuildWaiter) -> None:
        assert waiter.on_event(event("Delete", {"Kind": "nothing"})) == {
            "PhysicalResourceId": f"{IMAGE_PROJECT}/Image"
        }
        assert waiter.is_complete(event("Delete", {})) == {"IsComplete": True}


class TestProperties:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"Kind": "video"}, "Kind is 'video'; allowed: image, model"),
            ({"Kind": ""}, "the property Kind is missing"),
            ({"InputsHash": "abc"}, "InputsHash is 'abc', not 64 lower-case hexadecimal digits"),
            ({"ImageTag": ""}, "the property ImageTag is missing"),
            ({"RepositoryName": ""}, "the property RepositoryName is missing"),
            ({"Environment": "{"}, "Environment is not JSON: "),
            ({"Environment": '{"A": 1}'}, "Environment is not a JSON object of texts"),
            ({"Environment": "[]"}, "Environment is not a JSON object"),
            ({"Environment": "{}"}, "the property REPOSITORY_URI is missing"),
        ],
    )
    def test_malformed_properties_are_refused_before_anything_is_done(
        self, change: dict[str, str], message: str, waiter: BuildWaiter
    ) -> None:
        with pytest.raises(BadRequest) as error:
            waiter.on_event(event("Create", {**IMAGE, **change}))
        assert str(error.value).startswith(message)

    @pytest.mark.parametrize("tokenizer", ["{", "[]", "[" * 100_000], ids=["cut", "list", "deep"])
    def test_a_malformed_tokenizer_is_refused(self, tokenizer: str, waiter: BuildWaiter) -> None:
        environment = json.dumps({"MODEL_TOKENIZER": tokenizer})
        with pytest.raises(BadRequest, match="MODEL_TOKENIZER is not "):
            waiter.on_event(event("Create", {**MODEL, "Environment": environment}))

    def test_a_malformed_pin_is_refused(self, waiter: BuildWaiter) -> None:
        with pytest.raises(BadRequest) as error:
            waiter.on_event(event("Create", {**MODEL, "ExpectedSha256": PIN.upper()}))
        assert str(error.value) == (
            f"ExpectedSha256 is {PIN.upper()!r}, not 64 lower-case hexadecimal digits"
        )


def test_the_handlers_use_the_functions_own_role(monkeypatch: pytest.MonkeyPatch, aws: Aws) -> None:
    clients = {name: getattr(aws, name).client for name in ("codebuild", "logs", "ecr", "s3")}
    monkeypatch.setattr(boto3, "client", clients.__getitem__)
    aws.has_builds()
    aws.has_image()
    assert handlers.on_event(event(), None)["BuildId"] == ""
    aws.has_image()
    assert handlers.is_complete(event(BuildId=""), None)["IsComplete"] is True
