"""The one thread that owns the model, from loading it to freeing it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from adapter.artifact import Artifact, find_artifact
from adapter.cpu import default_threads
from adapter.decision import Decision, Option
from adapter.engine import BATCH_TOKENS, Engine, reuse_candidates, start_engine
from adapter.errors import ScoringError, StartupError, TooLarge
from adapter.llama import Context, Library, Model
from adapter.logs import log
from adapter.prompt import PromptTemplate, plain_template, render_template
from adapter.scorer import ModelIdentity, read_logits
from adapter.settings import Settings
from adapter.state_cache import StateCache
from adapter.tokens import Encoder

# Short, because every start waits for it.
SELF_TEST = Decision(
    id="self-test",
    state="The parcel arrived.",
    question="Did it arrive?",
    options=(Option("yes", "Yes."), Option("no", "No.")),
)


@dataclass(frozen=True)
class Loaded:
    """What the event loop needs of a loaded model."""

    encoder: Encoder
    identity: ModelIdentity
    cache: StateCache


def run(
    settings: Settings,
    *,
    on_ready: Callable[[Loaded], None],
    work: Callable[[Engine], None],
) -> None:
    """Load the model, prove it by a self-test, call `on_ready`, `work` until done, free it all.

    Raises:
        StartupError: it cannot be loaded as the settings say.
    """
    artifact = find_artifact(settings.model_dir, settings.gguf_path)
    library = Library(settings.llama_lib_dir)
    with ThreadPoolExecutor(1) as hashing:
        sha256 = hashing.submit(artifact.sha256)
        with closing(Model(library, artifact.path, gpu_layers=settings.gpu_layers)) as model:
            _serve(settings, artifact, model, sha256.result, on_ready=on_ready, work=work)


def _serve(
    settings: Settings,
    artifact: Artifact,
    model: Model,
    sha256: Callable[[], str],
    *,
    on_ready: Callable[[Loaded], None],
    work: Callable[[Engine], None],
) -> None:
    template = _template(model, settings.chat_template)
    encoder = Encoder(model.vocabulary, template, context_tokens=settings.context_tokens)
    threads = settings.threads or default_threads()
    with closing(
        Context(
            model,
            tokens=settings.context_tokens,
            threads=threads,
            batch_tokens=min(BATCH_TOKENS, settings.context_tokens),
        )
    ) as context:
        cache = StateCache(
            max_bytes=settings.state_cache_mb << 20, max_entries=settings.state_cache_entries
        )
        engine = _self_tested(context, cache, encoder, model)
        identity = _identify(settings, artifact, model, threads=threads, sha256=sha256())
        _warn_of_long_context(settings.context_tokens, model.trained_context_tokens)
        _warn_of_slow_type(model, settings.gpu_layers)
        log(logging.INFO, "model_loaded", reuse=engine.reuse.name, **identity.as_json())
        on_ready(Loaded(encoder, identity, cache))
        work(engine)


def _template(model: Model, override: Path | None) -> PromptTemplate:
    source = _read_template(override) if override else model.chat_template
    if source is None:
        log(logging.WARNING, "no_chat_template", layout="plain")
        return plain_template()
    vocabulary = model.vocabulary
    return render_template(
        source,
        bos_token=_piece(vocabulary.pieces, vocabulary.bos),
        eos_token=_piece(vocabulary.pieces, vocabulary.eos),
    )


def _piece(pieces: list[bytes], token: int | None) -> str:
    return "" if token is None else pieces[token].decode("utf-8", "replace")


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(
            f"BALLOT_CHAT_TEMPLATE {path} cannot be read ({error}); set it to a Jinja template in "
            "UTF-8"
        ) from error


def _self_tested(context: Context, cache: StateCache, encoder: Encoder, model: Model) -> Engine:
    tried = reuse_candidates(is_recurrent=model.is_recurrent, window=model.window_tokens)
    try:
        probe = encoder.encode(SELF_TEST)
        started = start_engine(context, cache, probe, tried)
        read_logits(started.logits, probe.slots)
    except TooLarge as error:
        raise StartupError(
            f"the self-test decision does not fit ({error}); raise BALLOT_CONTEXT_TOKENS"
        ) from error
    except ScoringError as error:
        raise StartupError(f"the self-test decision could not be scored: {error}") from error
    reuse = started.engine.reuse
    if reuse is not tried[0]:
        log(logging.WARNING, "reuse_changes_bits", tried=tried[0].name, fallback=reuse.name)
    return started.engine


def _identify(
    settings: Settings, artifact: Artifact, model: Model, *, threads: int, sha256: str
) -> ModelIdentity:
    return ModelIdentity(
        file=artifact.path.name,
        sha256=sha256,
        architecture=model.metadata("general.architecture") or "unknown",
        quantization=model.quantization,
        tensor_type=model.tensor_type,
        context_tokens=settings.context_tokens,
        threads=threads,
        gpu_layers=settings.gpu_layers,
        backends=tuple(device.name for device in model.library.devices),
        llama_cpp=model.library.version,
    )


def _warn_of_long_context(context_tokens: int, trained: int) -> None:
    if context_tokens > trained:
        log(
            logging.WARNING,
            "context_longer_than_trained",
            context_tokens=context_tokens,
            trained_context_tokens=trained,
        )


def _warn_of_slow_type(model: Model, gpu_layers: int) -> None:
    if gpu_layers == 0 and not model.is_fast_on_cpu:
        log(
            logging.WARNING,
            "no_fast_kernel",
            tensor_type=model.tensor_type,
            message="this CPU has no fast kernel for the type of most tensors; q4_0, q8_0 or q4_K "
            "would be about twice as fast",
        )
