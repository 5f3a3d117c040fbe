"""Imports llama-cpp-python, also over a llama.cpp that lacks functions which Ballot never calls.

llama-cpp-python looks up all of llama.cpp's functions when it is imported, and one that is missing
fails the import. AWS's CUDA container is older than one of the functions for LoRA adapters; the
bindings that fit it in everything else look that one up too. So functions for LoRA adapters, and
no others, may be missing; a missing one raises when it is called.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import re
import sys
from types import ModuleType
from typing import Any, NoReturn

from adapter.logs import log

_BINDINGS = "llama_cpp.llama_cpp"
_HELPERS = "llama_cpp._ctypes_extensions"
_MAY_BE_MISSING = re.compile(r"\bllama_\w*(lora|adapter)\w*\b")


def import_bindings() -> ModuleType:
    """Return the bindings' module, over the libraries that LLAMA_CPP_LIB_PATH names.

    Raises:
        AttributeError: the libraries lack a function that is not one for LoRA adapters.
        ImportError, OSError, RuntimeError: whatever else importing llama-cpp-python raises.
    """
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
