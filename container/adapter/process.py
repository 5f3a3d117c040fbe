"""One run of the adapter: the event loop, the signals, and the worker that they outlive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator

import uvicorn

from adapter.admission import Admission
from adapter.engine import Engine
from adapter.errors import Unavailable
from adapter.lifecycle import Lifecycle
from adapter.logs import log
from adapter.metrics import Metrics
from adapter.protocol import MAX_HEADER_BYTES, Protocol
from adapter.server import Adapter
from adapter.settings import Settings
from adapter.worker import Loaded, Worker

# How long the connections, and then the worker, may take to close after the last answer.
CLOSE_SECONDS = 2


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, which close the port before accepted work is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to `Process`."""
        yield


def run_process(settings: Settings, worker: Worker, listener: socket.socket) -> str | None:
    """Serve on `listener` until told to stop or `worker` ends; return why it failed, if it did."""

    async def run() -> str | None:
        return await Process(settings).run(worker, listener)

    return asyncio.run(run())


class Process:
    """What the event loop runs; a `Service` to the worker, which is on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        """Prepare to run on the event loop that runs now."""
        self._settings = settings
        self._lifecycle = Lifecycle()
        metrics = Metrics()
        self._admission = Admission(
            self._lifecycle,
            metrics,
            max_queue=settings.max_queue,
            timeout_seconds=settings.request_timeout_seconds,
        )
        self._adapter = Adapter(
            settings, lifecycle=self._lifecycle, admission=self._admission, metrics=metrics
        )
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._failure: str | None = None

    async def run(self, worker: Worker, listener: socket.socket) -> str | None:
        """Do what `run_process` says."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        server = Server(self._uvicorn_config())
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        worker.serve(self)
        await self._stop.wait()
        await self._drain()
        server.should_exit = True
        await serving
        self._admission.stop()
        await asyncio.to_thread(worker.join, CLOSE_SECONDS)
        return self._failure

    def loaded(self, loaded: Loaded) -> None:
        """Take requests from now on."""
        self._loop.call_soon_threadsafe(self._adapter.model_loaded, loaded)

    def work(self, engine: Engine) -> None:
        """Score requests until the process stops."""
        self._admission.work(engine)

    def failed(self, message: str) -> None:
        """Refuse what is not answered yet, and stop."""
        self._failure = message
        self._loop.call_soon_threadsafe(self._fail)

    def _uvicorn_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._adapter.application(),
            http=Protocol,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
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
            self._admission.refuse_unfinished(
                Unavailable(
                    "this container is shutting down", code="draining", retry_after_seconds=1
                )
            )

    def _fail(self) -> None:
        self._lifecycle.fail()
        self._admission.refuse_unfinished(
            Unavailable(
                "the scoring worker has failed", code="worker_failed", retry_after_seconds=5
            )
        )
        self._stop.set()
