"""`python -m adapter`: read the settings, open the port, load the model, serve, drain, leave."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import traceback
from contextlib import closing

from adapter.errors import ModelChanged, StartupError, WorkerFailed
from adapter.loading import Loading
from adapter.logs import configure, log
from adapter.settings import Settings, read_settings

EXIT_OK = 0
EXIT_FAILED = 1
# Seconds for which a thread that computes in Python keeps others waiting: llama.cpp says what it
# does, line by line, to a callback in Python, and a decode that ends has somebody waiting for it.
SWITCH_SECONDS = 0.00005


def serve(settings: Settings) -> int:
    """Open the port, load the model and serve; return the exit status.

    The model loads while what serves it is imported, the worker first, and the web server then.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until the event loop takes them over, there is nothing to finish.
        signal.signal(number, lambda *_: os._exit(EXIT_OK))
    listener = listen(settings.host, settings.port)
    loading = Loading(settings)
    from adapter.worker import Worker

    worker = Worker(settings, loading)
    from adapter.process import run_process

    run_process(settings, worker, listener)
    return EXIT_OK


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
    bound_host, bound_port = listener.getsockname()[:2]
    log(logging.INFO, "listening", host=bound_host, port=bound_port)
    return listener


def self_test(settings: Settings) -> int:
    """Load the model, score the self-test decision, log `model_loaded`, and free it all.

    Raises:
        StartupError: a start with these settings would fail.
    """
    from adapter import worker

    loading = Loading(settings)
    with closing(loading.model):
        worker.run(settings, loading, on_ready=lambda loaded: None, work=lambda engine: None)
    return EXIT_OK


def _hold_standard_files() -> None:
    """Let no model or connection become the file that native code writes its last words to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main(arguments: list[str]) -> int:
    """Run the adapter. SageMaker starts containers with the argument `serve`.

    An image build ends with `selftest`: start-up without a port, and then the end.
    """
    _hold_standard_files()
    configure("info")
    if sys.stderr is not None:
        # What llama.cpp cannot survive ends the process: it is at least to say where.
        faulthandler.enable()
    try:
        if arguments not in ([], ["serve"], ["selftest"]):
            raise StartupError(f"unknown arguments {arguments}; known are: serve, selftest")
        settings = read_settings(os.environ)
        configure(settings.log_level)
        if arguments == ["selftest"]:
            return self_test(settings)
        return serve(settings)
    except (StartupError, ModelChanged) as error:
        log(logging.ERROR, "startup_failed", message=str(error))
    except WorkerFailed as error:
        log(logging.ERROR, "worker_failed", message=str(error))
    return EXIT_FAILED


if __name__ == "__main__":
    exit_status = EXIT_FAILED
    try:
        exit_status = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
    logging.shutdown()
    # A worker that is still loading or decoding must not meet the interpreter's, or llama.cpp's,
    # own dismantling.
    os._exit(exit_status)
