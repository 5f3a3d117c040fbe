"""Instances behind a SageMaker endpoint, simulated: where a request goes, and what it finds there.

Each instance is one adapter: first come, first served, one request at a time, and a cache of
states out of which those used longest ago leave. What SageMaker documents of its strategies is
followed; what it does not say is assumed: PREFIX_AWARE keeps each prefix's instance by highest
random weight, so that a new instance takes over its share of the prefixes and moves no other.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.routing_trace import Request

CACHE_BYTES = 512 << 20
# One that is scored and 32 that wait.
MOST_OUTSTANDING = 33


class Instance:
    """One adapter and what it holds."""

    def __init__(self, number: int, *, cache_bytes: int) -> None:
        self.number = number
        self._cache_bytes = cache_bytes
        self._held_bytes = 0
        self._states: OrderedDict[str, int] = OrderedDict()
        self._finishes: deque[float] = deque()

    def outstanding(self, now: float) -> int:
        """How many requests it has not answered yet."""
        while self._finishes and self._finishes[0] <= now:
            self._finishes.popleft()
        return len(self._finishes)

    def serve(self, request: Request) -> Served:
        """Answer `request` once all are answered that came before it."""
        found = self._use(request)
        seconds = request.warm_seconds if found else request.cold_seconds
        start = max(request.time, self._finishes[-1] if self._finishes else 0.0)
        self._finishes.append(start + seconds)
        return Served(request, self.number, found, seconds, start + seconds)

    def _use(self, request: Request) -> bool:
        """Hold the request's state from now on; tell whether it was held before."""
        found = request.state in self._states
        if found:
            self._states.move_to_end(request.state)
        elif request.state_bytes <= self._cache_bytes:
            while self._held_bytes + request.state_bytes > self._cache_bytes:
                _, size = self._states.popitem(last=False)
                self._held_bytes -= size
            self._states[request.state] = request.state_bytes
            self._held_bytes += request.state_bytes
        return found


@dataclass(frozen=True)
class Served:
    """A request that was answered: by which instance, what that took, and when it was done."""

    request: Request
    instance: int
    found: bool
    seconds: float
    finish: float

    @property
    def latency(self) -> float:
        """The seconds from its coming to its answer."""
        return self.finish - self.request.time

    @property
    def decoded_tokens(self) -> int:
        """The tokens that had to be computed."""
        return self.request.warm_tokens if self.found else self.request.cold_tokens


Strategy = Callable[[Request, float, Sequence[Instance], random.Random], Instance]


def at_random(
    request: Request, now: float, instances: Sequence[Instance], source: random.Random
) -> Instance:
    """RANDOM: any instance."""
    return source.choice(instances)


def least_outstanding(
    request: Request, now: float, instances: Sequence[Instance], source: random.Random
) -> Instance:
    """LEAST_OUTSTANDING_REQUESTS: an instance with the fewest unanswered requests."""
    fewest = min(instance.outstanding(now) for instance in instances)
    return source.choice([one for one in instances if one.outstanding(now) == fewest])


def prefix_aware(threshold: int) -> Strategy:
    """PREFIX_AWARE: the prefix's instance, or another one while that has `threshold` in flight."""

    def strategy(
        request: Request, now: float, instances: Sequence[Instance], source: random.Random
    ) -> Instance:
        own = instances[_highest_weight(request.prefix, len(instances))]
        if own.outstanding(now) < threshold:
            return own
        return least_outstanding(request, now, instances, source)

    return strategy


@functools.lru_cache(maxsize=1 << 17)
def _highest_weight(prefix: str, instances: int) -> int:
    def weight(instance: int) -> bytes:
        return hashlib.blake2b(f"{instance} {prefix}".encode(), digest_size=8).digest()

    return max(range(instances), key=weight)


@dataclass(frozen=True)
class Replayed:
    """What became of a trace: the answered requests in their order, and what was refused."""

    served: Sequence[Served]
    instances: int
    refused: int = 0

    def part(self, start: float, end: float) -> Replayed:
        """Return the requests that were answered between these parts of the whole."""
        count = len(self.served)
        return Replayed(self.served[int(start * count) : int(end * count)], self.instances)

    @property
    def hit_ratio(self) -> float:
        """The part of the requests whose state was in memory."""
        return sum(one.found for one in self.served) / len(self.served)

    @property
    def decoded_tokens(self) -> float:
        """The tokens that had to be computed for a request, in the mean."""
        return sum(one.decoded_tokens for one in self.served) / len(self.served)

    def latency(self, percent: float) -> float:
        """Return the seconds within which so many of the requests were answered."""
        ordered = sorted(one.latency for one in self.served)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    @property
    def imbalance(self) -> float:
        """The time that the busiest instance was busy, over the mean of all."""
        busy = [0.0] * self.instances
        for one in self.served:
            busy[one.instance] += one.seconds
        return max(busy) / (sum(busy) / len(busy))


def replay(
    trace: Sequence[Request],
    strategy: Strategy,
    *,
    instances: int,
    cache_bytes: int = CACHE_BYTES,
    grown: int | None = None,
) -> Replayed:
    """Send a trace to so many instances; with `grown`, to that many from its middle on.

    A request that finds `MOST_OUTSTANDING` before it is refused.
    """
    source = random.Random(0)
    running = [Instance(number, cache_bytes=cache_bytes) for number in range(instances)]
    served = []
    refused = 0
    for index, request in enumerate(trace):
        if grown is not None and index == len(trace) // 2:
            running += [Instance(at, cache_bytes=cache_bytes) for at in range(instances, grown)]
        chosen = strategy(request, request.time, running, source)
        if chosen.outstanding(request.time) >= MOST_OUTSTANDING:
            refused += 1
        else:
            served.append(chosen.serve(request))
    return Replayed(served, len(running), refused)
