"""Options that several of the bulk commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Input = Annotated[
    Path,
    typer.Argument(metavar="INPUT", help="Requests as JSON lines; gzip, where named .gz."),
]
OutputFile = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where the answers go, a line each.")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as submit says it.")]
