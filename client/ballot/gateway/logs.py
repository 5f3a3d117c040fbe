"""Logs: one JSON object a line. What callers ask, and what they are answered, never appears."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("ballot.gateway")


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON; `fields` given as `extra` come along."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
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


def configure() -> None:
    """Send the gateway's records to standard output, and uvicorn's where they are warnings."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    LOGGER.setLevel(logging.INFO)


def log(level: int, event: str, **fields: Any) -> None:
    """Log `event` with `fields`."""
    LOGGER.log(level, event, extra={"fields": fields})


def origin(error: BaseException) -> str:
    """Return the type of an error and where it was raised, outermost first; its text may quote."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places}"
