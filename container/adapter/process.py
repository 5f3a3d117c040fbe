"""One run of the adapter: the event loop, the signals, and the worker that they outlive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Generator

import uvicorn

from adapter.admission import Admission
from adapter.engine import Engine
from adapter.errors import ModelChanged, StartupError, WorkerFailed
from adapter.lifecycle import Lifecycle, State, draining, worker_failed
from adapter.loading import Loading, in_background
from adapter.logs import dropped_lines, log
from adapter.metrics import Metrics
from adapter.protocol import MAX_HEADER_BYTES, Limits, limited
from adapter.server import Adapter
from adapter.settings import Settings
from adapter.worker import Loaded, Worker

# How long the connections, and then the worker, may take to close after the last answer.
CLOSE_SECONDS = 2
# Longer than load balancers and connection pools keep an idle connection (a minute, mostly): who
# closes first must not be the side that the next request may be on its way to.
KEEP_ALIVE_SECONDS = 75
# The share of a body's time for which it keeps its place, whoever else comes for it.
GRACE = 0.1
# How often the worker is looked at, and, while nothing is scored, the model's files.
WATCH_SECONDS = 1
# However many files may be open: each connection may hold 64 KiB of headers, and as much of a body.
MAX_CONNECTIONS = 2048
# The files that are no connections, and those that are accepted but not counted yet.
RESERVED_FILES = 128
# How many connections the event loop accepts in one go; it counts them only afterwards.
ACCEPTED_AT_ONCE = 16


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, which close the port before accepted work is done."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on `sockets`, and let many wait in the kernel, whatever is accepted in one go."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(socket.SOMAXCONN)

    def hang_up(self) -> None:
        """Drop the connections that are left: to their handlers, their callers are gone."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to `Process`."""
        yield


def run_process(settings: Settings, worker: Worker, listener: socket.socket) -> None:
    """Serve on `listener` until told to stop.

    Raises:
        StartupError: the model cannot be loaded as the settings say.
        WorkerFailed: `worker` ended before its time.
    """

    async def run() -> None:
        await Process(settings).run(worker, listener)

    asyncio.run(run())


class Process:
    """What the event loop runs; a `Service` to the worker, which is on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        """Prepare to run on the event loop that runs now."""
        self._settings = settings
        self._limits = Limits(
            connections=connection_limit(), patience_seconds=settings.body_timeout_seconds
        )
        self._lifecycle = Lifecycle()
        self._metrics = Metrics()
        self._admission = Admission(
            self._lifecycle,
            self._metrics,
            max_queue=settings.max_queue,
            timeout_seconds=settings.request_timeout_seconds,
            grace_seconds=GRACE * settings.body_timeout_seconds,
        )
        self._adapter = Adapter(
            settings, lifecycle=self._lifecycle, admission=self._admission, metrics=self._metrics
        )
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []
        self._failure: StartupError | WorkerFailed | None = None

    async def run(self, worker: Worker, listener: socket.socket) -> None:
        """Do what `run_process` says."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        server = Server(self._uvicorn_config())
        self._metrics.watch_process(
            connections=lambda: len(server.server_state.connections), dropped_lines=dropped_lines
        )
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        worker.serve(self)
        await self._stop.wait()
        await self._drain()
        server.should_exit = True
        hanging_up = self._loop.call_later(CLOSE_SECONDS, server.hang_up)
        await serving
        hanging_up.cancel()
        self._admission.stop()
        # Nothing is left to serve meanwhile, and where memory is short there is no other thread.
        worker.join(CLOSE_SECONDS)
        for watch in self._watches:
            watch.cancel()
        if self._failure is not None:
            raise self._failure

    def loaded(self, loaded: Loaded) -> None:
        """Take requests from now on."""
        self._loop.call_soon_threadsafe(self._serve, loaded)

    def work(self, engine: Engine) -> None:
        """Score requests until the process stops."""
        self._admission.work(engine)

    def failed(self, message: str) -> None:
        """Refuse what is not answered yet, and stop."""
        self._loop.call_soon_threadsafe(self._fail, message)

    def _uvicorn_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._adapter.application(),
            http=limited(self._limits),
            backlog=ACCEPTED_AT_ONCE,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # By then all have been hung up on: what is left is a bug, and is cancelled.
            timeout_graceful_shutdown=2 * CLOSE_SECONDS,
        )

    async def _drain(self) -> None:
        """Wait for accepted requests; refuse those that are not answered in time."""
        self._lifecycle.drain()
        log(logging.INFO, "draining", accepted=self._admission.admitted)
        try:
            async with asyncio.timeout(self._settings.drain_timeout_seconds):
                while self._admission.admitted:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self._admission.refuse_unfinished(draining())

    def _serve(self, loaded: Loaded) -> None:
        self._adapter.model_loaded(loaded)
        watches = (self._watch_model(loaded.loading), self._watch_worker())
        self._watches = [asyncio.ensure_future(watch) for watch in watches]

    async def _watch_model(self, loading: Loading) -> None:
        """Fail soon after the model's files have changed, though nothing is scored meanwhile."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                if loading.is_touched:
                    await asyncio.wrap_future(in_background("checksum", loading.verify))
            except ModelChanged as error:
                return self._fail(str(error))

    async def _watch_worker(self) -> None:
        """Turn unhealthy soon after the worker hangs, and healthy when it goes on."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._lifecycle.hangs(self._admission.is_hanging)

    def _fail(self, message: str) -> None:
        is_loading = self._lifecycle.state is State.LOADING
        self._failure = StartupError(message) if is_loading else WorkerFailed(message)
        self._lifecycle.fail()
        self._admission.refuse_unfinished(worker_failed())
        self._stop.set()


def connection_limit() -> int:
    """Return how many connections may be open, after allowing as many files as that takes."""
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, files - RESERVED_FILES)
