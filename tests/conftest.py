"""Fixtures: one adapter for the whole run, and the demo model's parts in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from adapter.llama import Library, Model
from adapter.prompt import PromptTemplate, render_template
from adapter.tokens import Encoder
from tests.adapter_process import DEMO_MODEL, GEMMA_MODEL, ROOT, AdapterProcess
from tests.gguf_models import BYTES_TEMPLATE, write_hybrid_model, write_tiny_model

if TYPE_CHECKING:
    from tests.synthesis import Synthesis, Template


@pytest.fixture(scope="session")
def adapter() -> Iterator[AdapterProcess]:
    """The adapter on the demo model, with the settings of a default deployment."""
    with AdapterProcess(BALLOT_BODY_TIMEOUT_SECONDS="2") as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def client(adapter: AdapterProcess) -> Iterator[httpx.Client]:
    """An HTTP client of that adapter."""
    with adapter.client() as client:
        yield client


@pytest.fixture(scope="session")
def library() -> Library:
    """llama.cpp, loaded into this process."""
    return Library(None)


@pytest.fixture(scope="session")
def demo_model(library: Library) -> Iterator[Model]:
    """The demo model, loaded into this process."""
    with closing(Model(library, DEMO_MODEL, gpu_layers=0)) as model:
        yield model


@pytest.fixture(scope="session")
def demo_template(demo_model: Model) -> PromptTemplate:
    """The demo model's own chat template."""
    assert demo_model.chat_template is not None
    return render_template(demo_model.chat_template, bos_token="", eos_token="")


@pytest.fixture(scope="session")
def demo_encoder(demo_model: Model, demo_template: PromptTemplate) -> Encoder:
    """The encoder of the demo model."""
    return Encoder(demo_model.vocabulary, demo_template, context_tokens=4096)


@pytest.fixture(scope="session")
def tiny_model(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A random attention model over bytes."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path, chat_template=None)
    with closing(Model(library, path, gpu_layers=0)) as model:
        yield model


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a random attention model over bytes, with a template: what starts soonest."""
    path = tmp_path_factory.mktemp("bytes") / "bytes.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    return path


@pytest.fixture(scope="session")
def hybrid_model(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A random Qwen3.5 hybrid: three layers with a running state to one of attention."""
    path = tmp_path_factory.mktemp("hybrid") / "qwen35-random.gguf"
    write_hybrid_model(path)
    with closing(Model(library, path, gpu_layers=0)) as model:
        assert model.metadata("general.architecture") == "qwen35"
        yield model


@pytest.fixture(scope="session")
def gemma_model(library: Library) -> Iterator[Model]:
    """Gemma 3 270M: its sliding-window layers see the last 512 tokens."""
    with closing(Model(library, GEMMA_MODEL, gpu_layers=0)) as model:
        assert model.metadata("gemma3.attention.sliding_window") == "512"
        yield model


@pytest.fixture
def support_route() -> dict[str, Any]:
    """The article's decision, as a request."""
    request: dict[str, Any] = json.loads((ROOT / "examples" / "support-route.json").read_text())
    return request


@pytest.fixture
def shared_state() -> dict[str, Any]:
    """Two decisions about one state, as a request."""
    request: dict[str, Any] = json.loads((ROOT / "examples" / "shared-state.json").read_text())
    return request


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Synthesis]:
    """The environments of cdk.json, synthesized; prod for one account and Region."""
    from tests.synthesis import synthesize  # importing the CDK takes seconds; few tests need it

    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(f"cdk-{name}")

    return {
        "local": synthesize("local", folder("local")),
        "dev": synthesize("dev", folder("dev")),
        "prod": synthesize("prod", folder("prod"), account="123456789012", region="eu-west-1"),
    }


@pytest.fixture(scope="session")
def templates(environments: dict[str, Synthesis]) -> dict[str, Template]:
    """The readable templates of all environments, by stack."""
    return {
        stack: template
        for synthesis in environments.values()
        for stack, template in synthesis.readable().items()
    }
