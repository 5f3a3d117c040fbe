"""Tells whether the model's files still hold what was loaded.

llama.cpp maps them into memory, and reads from there whenever it decodes: whoever writes to them
changes the answers, and whoever cuts them off ends the process. To read them into memory instead
would take a third of a second more for each gigabyte at every start.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from adapter.artifact import Artifact, digest
from adapter.errors import ModelChanged
from adapter.logs import log


class Seal:
    """An artifact's files, held open: to remove or replace them changes nothing for us."""

    def __init__(self, artifact: Artifact) -> None:
        """Note what the files are now, before anything is read."""
        self._artifact = artifact
        with ExitStack() as opened:
            self._files = [opened.enter_context(path.open("rb")) for path in artifact.shards]
            self._kept_open = opened.pop_all()
        self._lock = threading.Lock()
        self._looks = self._look()

    @property
    def is_touched(self) -> bool:
        """Whether something was done to the files, if only to their names. Takes microseconds.

        Raises:
            ModelChanged: they are out of reach.
        """
        return self._look() != self._looks

    def sha256(self) -> str:
        """Return the SHA-256, in hex, of what the files hold.

        Raises:
            ModelChanged: they are out of reach.
        """
        with self._lock, self._in_reach():
            return digest(self._files)

    def verify(self, sha256: Callable[[], str]) -> None:
        """Do nothing while the files hold what has the checksum `sha256`. Any thread may call this.

        A write shows from before its first byte on: what was read between two calls is what was
        loaded. Only files that were touched are read again, once, and others wait for that.

        Raises:
            ModelChanged: they hold something else, or are out of reach.
        """
        if not self.is_touched:
            return
        expected = sha256()
        with self._lock, self._in_reach():
            looks, began = self._look(), time.monotonic()
            if looks == self._looks:
                return
            if digest(self._files) != expected:
                raise ModelChanged(
                    f"the model's file was written to while it was in use: {self._artifact.path}; "
                    "put a new model beside it, and start with that"
                )
            self._looks = looks
        log(logging.INFO, "model_touched", seconds=round(time.monotonic() - began, 3))

    def _look(self) -> list[tuple[int, int, int]]:
        with self._in_reach():
            stats = [os.fstat(file.fileno()) for file in self._files]
        return [(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]

    @contextmanager
    def _in_reach(self) -> Iterator[None]:
        """Take files that cannot be read for changed: nothing says that they are not."""
        try:
            yield
        except OSError as error:
            raise ModelChanged(
                f"the model's file cannot be read any more: {self._artifact.path} "
                f"({error.strerror}); mend its disk or mount, and start again"
            ) from error
