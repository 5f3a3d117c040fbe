"""Logs: one JSON object a line on standard output. States, questions and options never appear."""

from __future__ import annotations

import datetime
import json
import logging
import os
import select
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("ballot")
# A pipe that is ready takes this much without making its writer wait.
_AT_ONCE_BYTES = select.PIPE_BUF
# How long a reader of the log that has stopped reading is waited for, and for how long it is then
# not waited for again: the event loop waits along.
_PATIENCE_MILLISECONDS = 100
_IMPATIENCE_SECONDS = 10


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON; `fields` given as `extra` come along."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII: a path may hold bytes that no encoding of the output can write.
        return json.dumps(line, default=str)


class LineHandler(logging.Handler):
    """Writes records to a file descriptor, line by line, and stops for nothing.

    What cannot be written, because the disk is full, or the reader gone or asleep, is dropped and
    counted; the next line that can be written comes behind one that says how many are missing.
    """

    def __init__(self, descriptor: int) -> None:
        """Write to `descriptor`, which stays open."""
        super().__init__()
        self.dropped = 0
        self._unreported = 0
        self._patient_from = 0.0
        self._ends_within_line = False
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`, or count it as dropped."""
        try:
            if self._unreported:
                self._write(self.format(_missing(self._unreported)))
                self._unreported = 0
            self._write(self.format(record))
        except Exception:
            # Whatever it is, nobody's request is to fail of it, and there is nowhere to say it.
            self.dropped += 1
            self._unreported += 1

    def _write(self, line: str) -> None:
        """Write `line` and its end.

        Raises:
            OSError: it was not written, or not to its end.
        """
        unwritten = f"{line}\n".encode()
        if self._ends_within_line:
            unwritten = b"\n" + unwritten
        while unwritten:
            if not self._is_ready():
                raise BlockingIOError
            written = os.write(self._descriptor, unwritten[:_AT_ONCE_BYTES])
            unwritten = unwritten[written:]
            self._ends_within_line = bool(unwritten)

    def _is_ready(self) -> bool:
        """Whether something can be written, perhaps after waiting for it."""
        if self._poll.poll(0):
            return True
        now = time.monotonic()
        is_patient = now >= self._patient_from
        self._patient_from = now + _IMPATIENCE_SECONDS
        return is_patient and bool(self._poll.poll(_PATIENCE_MILLISECONDS))


def _missing(lines: int) -> logging.LogRecord:
    fields = {"lines": lines}
    return logging.makeLogRecord(
        {"msg": "log_lines_dropped", "levelname": "WARNING", "fields": fields}
    )


def configure(level: str) -> None:
    """Send the adapter's and uvicorn's records from `level` on to standard output."""
    handler: logging.Handler = logging.NullHandler()
    if sys.stdout is not None:
        handler = LineHandler(sys.stdout.fileno())
        handler.setFormatter(JsonFormatter())
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    LOGGER.setLevel(level.upper())


def dropped_lines() -> int:
    """Return how many lines could not be written."""
    handlers = [item for item in logging.root.handlers if isinstance(item, LineHandler)]
    return sum(handler.dropped for handler in handlers)


def log(level: int, event: str, **fields: Any) -> None:
    """Log `event` with `fields`."""
    LOGGER.log(level, event, extra={"fields": fields})


def origin(error: BaseException) -> str:
    """Return the type of an error and where it was raised, outermost first; its text may quote."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places}"
