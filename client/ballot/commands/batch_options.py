"""Options that several of the bulk commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ballot.commands.explain import Unusable

Input = Annotated[
    Path,
    typer.Argument(metavar="INPUT", help="Requests as JSON lines; gzip, where named .gz."),
]
OutputFile = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where the answers go, a line each.")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as submit says it.")]


def check_output_name(path: Path) -> None:
    """Refuse an output that its name says is packed.

    Raises:
        Unusable: it ends in `.gz`.
    """
    if path.suffix == ".gz":
        raise Unusable(f"{path} would not be gzip", advice="name a file without .gz")
