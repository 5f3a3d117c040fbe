"""`python -m adapter`: read the settings, open the port, load the model, serve, drain, leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator

import uvicorn

from adapter import worker
from adapter.admission import Admission
from adapter.errors import StartupError, Unavailable
from adapter.lifecycle import Lifecycle
from adapter.logs import configure, log
from adapter.metrics import Metrics
from adapter.protocol import MAX_HEADER_BYTES, Protocol
from adapter.server import Adapter
from adapter.settings import Settings, read_settings

EXIT_OK = 0
EXIT_FAILED = 1
# How long the connections, and then the worker, may take to close after the last answer.
CLOSE_SECONDS = 2


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, which close the port before accepted work is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to `Process`."""
        yield


class Process:
    """One run of the adapter: the event loop here, the worker on a thread of its own."""

    def __init__(self, settings: Settings) -> None:
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
        self._failure: str | None = None

    async def run(self, listener: socket.socket) -> int:
        """Serve on `listener` until told to stop or the worker fails; return the exit status."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        thread = threading.Thread(target=self._work, args=(loop, stop), name="worker", daemon=True)
        thread.start()
        server = Server(self._uvicorn_config())
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        host, port = listener.getsockname()[:2]
        log(logging.INFO, "listening", host=host, port=port)
        await stop.wait()
        await self._drain()
        server.should_exit = True
        await serving
        self._admission.stop()
        await asyncio.to_thread(thread.join, CLOSE_SECONDS)
        if self._failure is not None:
            log(logging.ERROR, "startup_failed", message=self._failure)
        return EXIT_OK if self._failure is None else EXIT_FAILED

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

    def _work(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """Run the worker; whatever ends it before its time ends the process."""

        def on_ready(loaded: worker.Loaded) -> None:
            loop.call_soon_threadsafe(self._adapter.model_loaded, loaded)

        try:
            worker.run(self._settings, on_ready=on_ready, work=self._admission.work)
        except StartupError as error:
            self._failure = str(error)
        except BaseException as error:
            self._failure = f"the scoring worker died: {error!r}"
        if self._failure is not None:
            loop.call_soon_threadsafe(self._fail, stop)

    def _fail(self, stop: asyncio.Event) -> None:
        self._lifecycle.fail()
        self._admission.refuse_unfinished(
            Unavailable(
                "the scoring worker has failed", code="worker_failed", retry_after_seconds=5
            )
        )
        stop.set()


def listen(host: str, port: int) -> socket.socket:
    """Open the port.

    Raises:
        StartupError: it cannot be opened.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it, an answer in
    # two writes waits 40 ms for the other end's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; set BALLOT_HOST and "
            "BALLOT_PORT to an address that is free"
        ) from error
    listener.listen(socket.SOMAXCONN)
    return listener


def self_test(settings: Settings) -> int:
    """Load the model, score the self-test decision, log `model_loaded`, and free it all.

    Raises:
        StartupError: a start with these settings would fail.
    """
    worker.run(settings, on_ready=lambda loaded: None, work=lambda engine: None)
    return EXIT_OK


def main(arguments: list[str]) -> int:
    """Run the adapter. SageMaker starts containers with the argument `serve`.

    An image build ends with `selftest`: start-up without a port, and then the end.
    """
    configure("info")
    try:
        if arguments not in ([], ["serve"], ["selftest"]):
            raise StartupError(f"unknown arguments {arguments}; known are: serve, selftest")
        settings = read_settings(os.environ)
        configure(settings.log_level)
        if arguments == ["selftest"]:
            return self_test(settings)
        listener = listen(settings.host, settings.port)
    except StartupError as error:
        log(logging.ERROR, "startup_failed", message=str(error))
        return EXIT_FAILED
    return asyncio.run(Process(settings).run(listener))


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    logging.shutdown()
    # A worker that is still loading or decoding must not meet the interpreter's, or llama.cpp's,
    # own dismantling.
    os._exit(exit_status)
