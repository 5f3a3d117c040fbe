"""Writes what a command made to a file of its own, and never over another."""

from __future__ import annotations

from pathlib import Path

from ballot.commands.explain import Unusable


def check_new(path: Path) -> None:
    """Check that there is nothing at `path` yet, before the work is done.

    Raises:
        Unusable: there is.
    """
    if path.exists():
        raise _taken(path)


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        Unusable: it is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError as error:
        raise Unusable(
            f"cannot write {path}: {error.strerror or error}", advice="name another file"
        ) from error


def _taken(path: Path) -> Unusable:
    return Unusable(f"{path} is there already", advice="name another file, or delete it")
