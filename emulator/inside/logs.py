"""Writes to CloudWatch Logs as the role that a build or a container runs as."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from botocore.exceptions import ClientError

_FLUSH_SECONDS = 0.2
_BATCH = 1000
_LINE_LIMIT = 8192
_TAIL = 200


class LogStream:
    """One log stream: lines are sent in batches by a thread of its own."""

    def __init__(self, client: Any, *, group: str, stream: str) -> None:
        """Make the group and the stream where they are missing.

        Raises:
            ClientError: the role may not.
        """
        self._client, self._group, self._stream = client, group, stream
        for make, names in (
            (client.create_log_group, {"logGroupName": group}),
            (client.create_log_stream, {"logGroupName": group, "logStreamName": stream}),
        ):
            if make == client.create_log_group and self._group_is_there():
                continue
            try:
                make(**names)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ResourceAlreadyExistsException":
                    raise
        self._lines: list[dict[str, Any]] = []
        self.tail: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {stream}", daemon=True)
        self._thread.start()

    def _group_is_there(self) -> bool:
        # Whoever may write into a group need not be allowed to create it or to list groups.
        from ministack.services import cloudwatch_logs

        return self._group in cloudwatch_logs._log_groups

    def write(self, line: str) -> None:
        """Append a line; an empty one becomes a blank, which CloudWatch Logs asks for."""
        event = {"timestamp": int(time.time() * 1000), "message": line[:_LINE_LIMIT] or " "}
        with self._lock:
            self._lines.append(event)
            self.tail = [*self.tail[-_TAIL:], line]

    def close(self) -> None:
        """Send what is left."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while True:
            with self._lock:
                batch, self._lines = self._lines[:_BATCH], self._lines[_BATCH:]
            if not batch:
                return
            # The group may be gone: a stack deletes it while its container still drains.
            with contextlib.suppress(ClientError):
                self._client.put_log_events(
                    logGroupName=self._group, logStreamName=self._stream, logEvents=batch
                )
