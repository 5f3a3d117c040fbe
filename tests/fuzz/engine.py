"""One target under libFuzzer, through Atheris: `python -m tests.fuzz.engine TARGET OPTION...`.

The options are libFuzzer's: https://llvm.org/docs/LibFuzzer.html. It ends this process itself.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

ENGINE_FOLDER = Path(__file__).resolve().parents[2] / ".build" / "fuzz"
# All that reads foreign bytes; what is imported from these guides the search.
INSTRUMENTED = [
    *("adapter", "ballot.commands.inventory", "build_waiter", "gguf_header", "package_model"),
    *("sources", "stacks"),
]


def main() -> None:
    """Fuzz until libFuzzer stops."""
    sys.path.append(str(ENGINE_FOLDER))
    atheris: Any = importlib.import_module("atheris")

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import TARGETS

    # The gguf package warns of what it finds, a line for each of millions of files.
    logging.disable(logging.CRITICAL)
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name].check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
