"""Imports llama-cpp-python, also over a llama.cpp that lacks functions which Ballot never calls.

llama-cpp-python looks up all of llama.cpp's functions when it is imported, and one that is missing
fails the import. AWS's CUDA container is older than one of the functions for LoRA adapters; the
bindings that fit it in everything else look that one up too. So functions for LoRA adapters, and
no others, may be missing; a missing one raises when it is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

from adapter.logs import log

_PACKAGE = "llama_cpp"
_BINDINGS = "llama_cpp.llama_cpp"
_HELPERS = "llama_cpp._ctypes_extensions"
_MAY_BE_MISSING = re.compile(r"\bllama_\w*(lora|adapter)\w*\b")


def import_bindings() -> ModuleType:
    """Return the bindings' module, over the libraries that LLAMA_CPP_LIB_PATH names.

    Raises:
        AttributeError: the libraries lack a function that is not one for LoRA adapters.
        ImportError, OSError, RuntimeError: whatever else importing llama-cpp-python raises.
    """
    with _package_unread():
        return _import_tolerantly()


def _import_tolerantly() -> ModuleType:
    try:
        return importlib.import_module(_BINDINGS)
    except AttributeError as error:
        if not _MAY_BE_MISSING.search(str(error)):
            raise
    # The import that failed has left the module behind whose decorator looks functions up.
    helpers: Any = sys.modules[_HELPERS]
    decorator_for = helpers.ctypes_function_for_shared_library
    helpers.ctypes_function_for_shared_library = lambda library: decorator_for(_Tolerant(library))
    try:
        return importlib.import_module(_BINDINGS)
    finally:
        helpers.ctypes_function_for_shared_library = decorator_for


@contextlib.contextmanager
def _package_unread() -> Iterator[None]:
    """Let modules of the package be imported without what the package itself imports.

    That is a Python API for whole applications, and takes longer to import than a small model to
    load. Whoever imports the package later gets it whole, over the same bindings.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if _PACKAGE in sys.modules or spec is None:
        yield
        return
    stand_in = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        if sys.modules.get(_PACKAGE) is stand_in:
            del sys.modules[_PACKAGE]


class _Tolerant:
    """A shared library in which some functions may be missing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError as error:
            if not _MAY_BE_MISSING.fullmatch(name):
                raise
            log(logging.INFO, "function_missing", name=name)
            return _raises_when_called(str(error))


def _raises_when_called(message: str) -> Any:
    def missing(*_: Any) -> NoReturn:
        raise AttributeError(message)

    return missing
