"""A decision endpoint and a chat endpoint in an emulator, up in seconds: no stack, no builds.

The images are put where a build's `docker push` would have left them. The decision endpoint's
container is the adapter of this checkout, the chat endpoint's the stand-in for AWS's llama.cpp
container, each on the demo's model unless told otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from emulator.image_store import MANIFEST_TYPE, Image, ImageStore, context_files
from tests.adapter_process import DEMO_MODEL, ROOT
from tests.emulated_aws import BASE, BUCKET, REPOSITORY, Aws, running

DECISION_PREFIX, CHAT_PREFIX = "models/decision/", "models/chat/"
CHAT_BASE = f"public.ecr.aws/deep-learning-containers/llama-cpp@sha256:{'1f19' * 16}"
CONTEXT_TOKENS = "8192"


@dataclass(frozen=True)
class EmulatedEndpoints:
    """The names of both endpoints, and the account that they are in."""

    aws: Aws
    decision: str
    chat: str

    @property
    def exports(self) -> dict[str, str]:
        """The variables by which a program finds them instead of AWS's."""
        return self.aws.emulator.exports


@contextlib.contextmanager
def emulated_endpoints(
    workdir: Path, *, decision_model: Path = DEMO_MODEL
) -> Iterator[EmulatedEndpoints]:
    """Run an emulator with both endpoints in service."""
    with running(workdir) as aws:
        for prefix, file in ((DECISION_PREFIX, decision_model), (CHAT_PREFIX, DEMO_MODEL)):
            aws("s3").upload_file(str(file), BUCKET, prefix + file.name)
        decision = aws.model(
            adapter_image(aws),
            prefix=DECISION_PREFIX,
            BALLOT_CONTEXT_TOKENS=CONTEXT_TOKENS,
            BALLOT_THREADS="1",
            BALLOT_REQUEST_TIMEOUT_SECONDS="3600",
        )
        chat = aws.model(
            _push(aws, Image(base=CHAT_BASE)),
            prefix=CHAT_PREFIX,
            SM_LLAMA_CPP_MODEL=f"/opt/ml/model/{DEMO_MODEL.name}",
            SM_LLAMA_CPP_CTX_SIZE="512",
        )
        names = [_create(aws, config) for config in (decision, chat)]
        for name in names:
            found = aws.settled(name)
            assert found["EndpointStatus"] == "InService", found
        yield EmulatedEndpoints(aws, *names)


def adapter_image(aws: Aws) -> str:
    """Put the image of this checkout's adapter into the registry; return its URI."""
    container = ROOT / "container"
    files = {
        name: digest
        for name, digest in context_files(container).items()
        if name.startswith("adapter/") and name.endswith(".py")
    }
    image = Image(base=BASE, dockerfile="", files=files)
    return _push(aws, image, context=container)


def _push(aws: Aws, image: Image, *, context: Path | None = None) -> str:
    """Put an image into the emulated engine and its registry; return its URI."""
    ImageStore(aws.emulator.workdir / "images").add(image, context=context)
    aws("ecr").put_image(
        repositoryName=REPOSITORY,
        imageManifest=image.manifest,
        imageManifestMediaType=MANIFEST_TYPE,
        imageTag=aws.name(),
    )
    return f"{aws.repository}@{image.digest}"


def _create(aws: Aws, config: str) -> str:
    """Begin to make an endpoint; return its name."""
    name = aws.name()
    aws("sagemaker").create_endpoint(EndpointName=name, EndpointConfigName=config)
    return name
