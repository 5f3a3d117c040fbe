"""What `/metrics` tells: Prometheus text, from a registry of this adapter's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from adapter.decision import Decision
from adapter.engine import Forward
from adapter.scorer import ModelIdentity, Scored
from adapter.state_cache import StateCache

CONTENT_TYPE = CONTENT_TYPE_LATEST
# When each counter began says nothing that the process's start does not, and doubles the series.
disable_created_metrics()  # type: ignore[no-untyped-call]
# Coarse where all is well, fine where the options are not what the model would say.
_MASS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60)


class Metrics:
    """Counts requests, waiting, tokens and forward passes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        PlatformCollector(self._registry)
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "ballot_requests",
            "Requests answered, by route and outcome (ok, or the code of the error).",
            ["route", "outcome"],
            registry=self._registry,
        )
        self._request_seconds = Histogram(
            "ballot_request_seconds",
            "Seconds from a request's first byte to its answer, by route.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._lines = Counter(
            "ballot_lines",
            "Lines of JSON Lines requests answered, by outcome (ok, or the code of the error).",
            ["outcome"],
            registry=self._registry,
        )
        self._decisions = Counter(
            "ballot_decisions",
            "Decisions answered, by kind (native, or the type of the System One question).",
            ["kind"],
            registry=self._registry,
        )
        self._input_tokens = Counter(
            "ballot_input_tokens",
            "Prompt tokens of the decisions answered.",
            registry=self._registry,
        )
        self._allowed_token_mass = Histogram(
            "ballot_allowed_token_mass",
            "Share of the model's whole next-token probability that a decision's options got.",
            buckets=_MASS,
            registry=self._registry,
        )
        self._queue_wait = Histogram(
            "ballot_queue_wait_seconds",
            "Seconds that a request waited for the worker.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._forward = Histogram(
            "ballot_forward_seconds",
            "Seconds of one decision's forward pass.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._decoded = Counter(
            "ballot_tokens_decoded", "Prompt tokens decoded.", registry=self._registry
        )
        self._reused = Counter(
            "ballot_tokens_reused", "Prompt tokens found in memory.", registry=self._registry
        )
        self._queue_depth = Gauge(
            "ballot_queue_depth",
            "Requests that wait behind the one being scored.",
            registry=self._registry,
        )
        self._healthy = Gauge(
            "ballot_healthy", "1 when /ping answers 200.", registry=self._registry
        )
        self._model = Info("ballot_model", "The model that answers.", registry=self._registry)

    def watch(self, *, waiting: Callable[[], int], is_healthy: Callable[[], bool]) -> None:
        """Read the queue's depth and the health from these when scraped."""
        self._queue_depth.set_function(waiting)
        self._healthy.set_function(is_healthy)

    def watch_process(
        self, *, connections: Callable[[], int], dropped_lines: Callable[[], int]
    ) -> None:
        """Read the open connections and the lines lost to the log from these when scraped."""
        self._registry.register(_ProcessCollector(connections, dropped_lines))

    def watch_cache(self, cache: StateCache) -> None:
        """Read the state cache's numbers when scraped."""
        self._registry.register(_CacheCollector(cache))

    def answered(self, route: str, outcome: str, seconds: float) -> None:
        """Count one answered request."""
        self._requests.labels(route, outcome).inc()
        self._request_seconds.labels(route).observe(seconds)

    def line(self, outcome: str) -> None:
        """Count one answered line."""
        self._lines.labels(outcome).inc()

    def decided(self, decisions: Sequence[Decision], scored: Sequence[Scored]) -> None:
        """Count answered decisions, and how far to trust them."""
        for decision, score in zip(decisions, scored, strict=True):
            self._decisions.labels(decision.kind).inc()
            self._input_tokens.inc(score.input_tokens)
            self._allowed_token_mass.observe(score.allowed_token_mass)

    def waited(self, seconds: float) -> None:
        """Count one request's wait for the worker."""
        self._queue_wait.observe(seconds)

    def forwarded(self, forward: Forward) -> None:
        """Count one forward pass and its tokens."""
        self._forward.observe(forward.seconds)
        self._decoded.inc(forward.decoded_tokens)
        self._reused.inc(forward.cached_tokens)

    def model(self, identity: ModelIdentity) -> None:
        """Name the model that answers."""
        self._model.info(
            {
                "file": identity.file,
                "sha256": identity.sha256,
                "architecture": identity.architecture,
                "quantization": identity.quantization,
                "tensor_type": identity.tensor_type,
                "llama_cpp": identity.llama_cpp,
                "backends": ",".join(identity.backends),
            }
        )

    def exposition(self) -> bytes:
        """Return the metrics as Prometheus text."""
        return generate_latest(self._registry)


class _ProcessCollector(Collector):
    """Tells what the process holds, and what it has lost."""

    def __init__(self, connections: Callable[[], int], dropped_lines: Callable[[], int]) -> None:
        self._connections = connections
        self._dropped_lines = dropped_lines

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ballot_connections", "Connections that are open.", self._connections()
        )
        yield CounterMetricFamily(
            "ballot_log_lines_dropped",
            "Lines that could not be written to the log.",
            self._dropped_lines(),
        )


class _CacheCollector(Collector):
    """Tells a state cache's own numbers."""

    def __init__(self, cache: StateCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        cache = self._cache
        yield CounterMetricFamily(
            "ballot_state_cache_hits",
            "Prompts whose state (or criterion, where that is first) was found in memory.",
            cache.hits,
        )
        yield CounterMetricFamily(
            "ballot_state_cache_misses",
            "Prompts whose state (or criterion, where that is first) had to be decoded.",
            cache.misses,
        )
        yield CounterMetricFamily(
            "ballot_state_cache_evictions",
            "Snapshots that left the state cache to make room.",
            cache.evictions,
        )
        yield GaugeMetricFamily(
            "ballot_state_cache_bytes", "Bytes that the state cache holds.", cache.held_bytes
        )
        yield GaugeMetricFamily(
            "ballot_state_cache_limit_bytes",
            "Bytes that the state cache may hold.",
            cache.max_bytes,
        )
        yield GaugeMetricFamily(
            "ballot_state_cache_entries", "Snapshots that the state cache holds.", len(cache)
        )
