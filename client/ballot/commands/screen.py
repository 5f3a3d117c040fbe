"""Writes for people: coloured and fitted on a terminal, plain and uncut in a pipe."""

from __future__ import annotations

import os
import unicodedata
from typing import NoReturn, TextIO

from rich.console import Console
from rich.text import Text

# Nothing that is written for a pipe is ever as wide, so nothing is wrapped or cut.
_UNLIMITED_CELLS = 1_000_000
_LEAST_CELLS = 20
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


class _Console(Console):
    """Rich's own, but it leaves the end of the command to the command."""

    def on_broken_pipe(self) -> NoReturn:
        """Say that nobody reads any more."""
        raise BrokenPipeError


def make_console(stream: TextIO) -> Console:
    """Return a console on `stream`, which obeys NO_COLOR, FORCE_COLOR and TERM."""
    return _Console(
        file=stream,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if stream.isatty() else _UNLIMITED_CELLS,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_hanging(console: Console, head: Text, body: Text) -> None:
    """Print `head` and `body`; where the terminal wraps them, the body stays right of the head."""
    room = max(_LEAST_CELLS, console.width - head.cell_len)
    for number, line in enumerate(body.wrap(console, room)):
        line.rstrip()
        console.print(Text.assemble(" " * head.cell_len if number else head, line), soft_wrap=True)


def printable(text: str, *, keep: str = "") -> str:
    r"""Return `text` with what could steer a terminal escaped, such as `\x1b`; `keep` stays.

    Ids, descriptions and errors come from requests and from servers, and are shown as text.
    """
    return "".join(
        character if character in keep or _is_safe(character) else _escaped(character)
        for character in text
    )


def _is_safe(character: str) -> bool:
    return (
        unicodedata.category(character) not in _UNSAFE_CATEGORIES
        and character not in _BIDI_CONTROLS
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
