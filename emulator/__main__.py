"""`python -m emulator`: run an emulator in the foreground and print the variables to use."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from emulator.running import Emulator, EmulatorError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until stopped; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m emulator", description=__doc__)
    parser.add_argument("--workdir", type=Path, help="where to keep files and the log")
    parser.add_argument("--no-iam", action="store_true", help="allow everything to everybody")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Emulator(options.workdir, iam=not options.no_iam) as emulator:
            for name, value in emulator.exports.items():
                print(f"export {name}={shlex.quote(value)}")
            print(f"# log: {emulator.log}", flush=True)
            signal.pause()
    except EmulatorError as error:
        print(f"emulator: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
