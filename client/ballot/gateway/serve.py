"""Runs a gateway: opens the port, serves, finishes what it has begun, and leaves."""

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
from typing import NoReturn

import uvicorn
from starlette.applications import Starlette

from ballot.gateway.app import create_app
from ballot.gateway.connection import MAX_HEADER_BYTES, Connection
from ballot.gateway.errors import StartupError
from ballot.gateway.logs import configure, log
from ballot.gateway.settings import GatewaySettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """uvicorn's own, but a signal that ended it well is not raised again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop at SIGINT and SIGTERM, at once at the second of them; only on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(settings: GatewaySettings) -> socket.socket:
    """Open the port.

    Raises:
        StartupError: it cannot be opened.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}: {error.strerror or error}") from error
    if os.name == "posix":
        # Elsewhere the option lets two processes have the port at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host} port {port}: {error.strerror or error}"
        ) from error
    listener.listen(socket.SOMAXCONN)
    return listener


def server(application: Starlette, settings: GatewaySettings) -> Server:
    """Return the HTTP server of an application."""
    return Server(
        uvicorn.Config(
            application,
            http=Connection,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=settings.drain_timeout_seconds,
        )
    )


def run(settings: GatewaySettings) -> NoReturn:
    """Serve until SIGINT or SIGTERM, and end the process.

    Raises:
        StartupError: the port cannot be opened.
    """
    configure()
    listener = listen(settings)
    serving = server(create_app(settings), settings)
    host, port = listener.getsockname()[:2]
    log(logging.INFO, "listening", host=host, port=port)
    asyncio.run(serving.serve(sockets=[listener]))
    log(logging.INFO, "stopped")
    logging.shutdown()
    sys.stdout.flush()
    # A thread whose caller is gone may wait for SageMaker for a minute, and the exit for it.
    os._exit(0)
