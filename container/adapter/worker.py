"""The one thread that decodes with the model, from its self-test to its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Protocol

from adapter.calibration import Calibration, read_calibration
from adapter.context import Context
from adapter.cpu import default_threads
from adapter.decision import Decision, Option, Scoring
from adapter.engine import BATCH_TOKENS, Engine, reuse_candidates, start_engine
from adapter.errors import ModelChanged, ScoringError, StartupError, TooLarge
from adapter.lanes import Lanes
from adapter.llama import Model, Vocabulary
from adapter.loading import Loading
from adapter.logs import log, origin
from adapter.memory import bytes_left, cache_bytes, check_context_fits
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

    loading: Loading
    encoder: Encoder
    identity: ModelIdentity
    cache: StateCache
    calibration: Calibration | None
    released: date


class Service(Protocol):
    """What a worker serves; `adapter.process.Process` is one. All calls come from its thread."""

    def loaded(self, loaded: Loaded) -> None:
        """Take requests from now on."""

    def work(self, engine: Engine) -> None:
        """Score requests until there are no more."""

    def failed(self, message: str) -> None:
        """Know that the worker has ended before its time, and why."""


class Worker:
    """The thread. It starts at once, and waits for its service when the model is loaded."""

    def __init__(self, settings: Settings, loading: Loading) -> None:
        self._settings = settings
        self._loading = loading
        self._service: Future[Service] = Future()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def serve(self, service: Service) -> None:
        """Serve `service`."""
        self._service.set_result(service)

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the thread's end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        """Whatever ends the worker before its time ends the process."""
        try:
            run(
                self._settings,
                self._loading,
                on_ready=lambda loaded: self._service.result().loaded(loaded),
                work=lambda engine: self._service.result().work(engine),
            )
        except (StartupError, ModelChanged) as error:
            self._service.result().failed(str(error))
        except BaseException as error:
            self._service.result().failed(f"the scoring worker died: {origin(error)}")


def run(
    settings: Settings,
    loading: Loading,
    *,
    on_ready: Callable[[Loaded], None],
    work: Callable[[Engine], None],
) -> None:
    """Prove the loaded model by a self-test, call `on_ready`, and `work` until done.

    The model stays loaded: whoever was given its encoder may still be using it, on any thread.

    Raises:
        StartupError: it cannot be loaded as the settings say.
    """
    threads = settings.threads or default_threads()
    calibration = read_calibration(settings.calibration) if settings.calibration else None
    model = loading.model
    with ThreadPoolExecutor(1) as beside:
        encoding = beside.submit(_encoder, settings, model)
        left = bytes_left()
        with closing(_context(settings, loading, threads=threads, left=left)) as context:
            encoder = encoding.result()
            cache = _cache(settings, left - context.host_bytes, mapped=model.mapped_bytes)
            engine = _self_tested(context, cache, encoder, model)
            identity = _identify(settings, loading, model, threads=threads)
            if calibration:
                _check_calibration(calibration, settings, identity)
            _warn_of_long_context(settings.context_tokens, model.trained_context_tokens)
            _warn_of_slow_type(model, settings.gpu_layers)
            log(logging.INFO, "model_loaded", reuse=engine.reuse.name, **identity.as_json())
            released = loading.artifact.written()
            on_ready(Loaded(loading, encoder, identity, cache, calibration, released))
            beside.submit(encoder.read_vocabulary)
            work(engine)


def _encoder(settings: Settings, model: Model) -> Encoder:
    template = _template(model, settings.chat_template)
    return Encoder(model.vocabulary, template, context_tokens=settings.context_tokens)


def _context(settings: Settings, loading: Loading, *, threads: int, left: int) -> Context:
    model = loading.model

    def context(tokens: int) -> Context:
        return Context(
            model,
            tokens=tokens,
            threads=threads,
            batch_tokens=min(BATCH_TOKENS, tokens),
            lanes=settings.lanes,
            verify=loading.verify,
        )

    def measure(tokens: int) -> int:
        with closing(context(tokens)) as measured:
            return measured.host_bytes

    check_context_fits(
        settings.context_tokens, left, token_bytes=model.most_bytes_per_token, measure=measure
    )
    return context(settings.context_tokens)


def _cache(settings: Settings, left: int, *, mapped: int) -> StateCache:
    """Return an empty cache of the size that is set, or else of what `left` bytes have for it."""
    wanted = settings.state_cache_mb << 20
    size = cache_bytes(wanted, left, mapped=mapped)
    if size < wanted:
        log(
            logging.WARNING,
            "state_cache_limited",
            mib=size >> 20,
            message="there is no memory for the state cache that is asked for; lower "
            "BALLOT_STATE_CACHE_MB or BALLOT_CONTEXT_TOKENS, or add memory",
        )
    return StateCache(max_bytes=size, max_entries=settings.state_cache_entries)


def _template(model: Model, override: Path | None) -> PromptTemplate:
    source = _read_template(override) if override else model.chat_template
    if source is None:
        log(logging.WARNING, "no_chat_template", layout="plain")
        return plain_template()
    vocabulary = model.vocabulary
    return render_template(
        source,
        bos_token=_written(vocabulary, vocabulary.bos),
        eos_token=_written(vocabulary, vocabulary.eos),
    )


def _written(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.pieces[token].decode("utf-8", "replace")


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
    lanes = Lanes(context.lanes, batch_tokens=context.batch_tokens, context_tokens=context.capacity)
    try:
        probe = encoder.encode(SELF_TEST)
        started = start_engine(context, cache, probe, tried, lanes)
        read_logits(started.logits, probe.slots)
    except TooLarge as error:
        raise StartupError(
            f"the self-test decision does not fit ({error}); raise BALLOT_CONTEXT_TOKENS"
        ) from error
    except ScoringError as error:
        raise StartupError(f"the self-test decision could not be scored: {error}") from error
    if lanes.count > 1:
        _try_lanes(started.engine, encoder)
    reuse = started.engine.reuse
    if reuse is not tried[0]:
        log(logging.WARNING, "reuse_changes_bits", tried=tried[0].name, fallback=reuse.name)
    return started.engine


def _try_lanes(engine: Engine, encoder: Encoder) -> None:
    both = [encoder.encode(decision) for decision in (SELF_TEST, SELF_TEST.reversed())]
    try:
        engine.forward_together(both, lambda: False)
    except ScoringError as error:
        raise StartupError(
            f"llama.cpp cannot merge decodes of this model ({error}); set BALLOT_LANES to 1"
        ) from error
    log(logging.WARNING, "lanes_move_bits", lanes=engine.lanes.count)


def _identify(settings: Settings, loading: Loading, model: Model, *, threads: int) -> ModelIdentity:
    return ModelIdentity(
        file=loading.artifact.path.name,
        sha256=loading.sha256,
        architecture=model.metadata("general.architecture") or "unknown",
        quantization=model.quantization,
        tensor_type=model.tensor_type,
        context_tokens=settings.context_tokens,
        threads=threads,
        gpu_layers=settings.gpu_layers,
        backends=tuple(device.name for device in model.library.devices),
        llama_cpp=model.library.version,
    )


def _check_calibration(
    calibration: Calibration, settings: Settings, identity: ModelIdentity
) -> None:
    scoring = Scoring(layout=settings.layout, orders=settings.orders)
    calibration.check_bound(model_sha256=identity.sha256, scoring=scoring)
    log(logging.INFO, "calibrated", calibration_sha256=calibration.sha256)


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
