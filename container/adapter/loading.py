"""Loads the model on a thread of its own, while the process imports what is to serve it.

Importing takes as long as loading a small model does. So this module and what it imports leave
numpy, Jinja and the web server to others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from adapter.artifact import Artifact, find_artifact
from adapter.llama import Library, Model
from adapter.seal import Seal
from adapter.settings import Settings

ResultT = TypeVar("ResultT")


class Loading:
    """A model that is being loaded, and its checksum, which is being computed beside it."""

    def __init__(self, settings: Settings) -> None:
        """Find the model's files, load llama.cpp, and start to load what `settings` name.

        Raises:
            StartupError: the files are not there or not whole, or llama.cpp does not load.
        """
        self.artifact: Artifact = find_artifact(settings.model_dir, settings.gguf_path)
        self._seal = Seal(self.artifact)
        self._sha256 = in_background("checksum", self._seal.sha256)
        library, path = Library(settings.llama_lib_dir), self.artifact.path
        self._model = in_background(
            "loading", lambda: Model(library, path, gpu_layers=settings.gpu_layers)
        )

    @property
    def model(self) -> Model:
        """The model, once it is loaded; whoever takes it closes it.

        Raises:
            StartupError: it cannot be loaded as the settings say.
        """
        return self._model.result()

    @property
    def sha256(self) -> str:
        """The checksum of the model's file, in hexadecimal, once it is computed.

        Raises:
            ModelChanged: the file is out of reach.
        """
        return self._sha256.result()

    @property
    def is_touched(self) -> bool:
        """Whether something was done to the model's files that `verify` has not looked into.

        Raises:
            ModelChanged: they are out of reach.
        """
        return self._seal.is_touched

    def verify(self) -> None:
        """Do nothing while the model's files hold what was loaded. Any thread may call this.

        Raises:
            ModelChanged: they hold something else, or are out of reach.
        """
        self._seal.verify(lambda: self.sha256)


def in_background(name: str, work: Callable[[], ResultT]) -> Future[ResultT]:
    """Return what `work` will return, or raise, on a thread of its own."""
    result: Future[ResultT] = Future()

    def settle() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=settle, name=name, daemon=True).start()
    return result
