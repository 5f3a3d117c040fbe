"""The command `ballot`: its subcommands, and how each of them ends."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from ballot import __version__
from ballot.commands.batch import app as batch
from ballot.commands.bench import bench
from ballot.commands.calibrate import calibrate
from ballot.commands.chat import chat
from ballot.commands.compare import compare
from ballot.commands.decide import decide
from ballot.commands.doctor import doctor
from ballot.commands.endpoints import endpoints
from ballot.commands.evaluate import evaluate
from ballot.commands.explain import explain
from ballot.commands.gateway import gateway
from ballot.commands.report import report
from ballot.commands.screen import printable
from ballot.commands.status import Status
from ballot.commands.threshold import threshold

_DEBUG = "BALLOT_DEBUG"


class _Commands(TyperGroup):
    """Runs a subcommand, and tells whatever happens to it in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except (typer.TyperException, typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            _say("interrupted")
            return Status.INTERRUPTED
        except BrokenPipeError:
            _abandon(sys.stdout)
            return Status.BROKEN_PIPE
        except Exception as error:
            return _tell(error)
        return status


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def ballot(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int | None:
    """Ask decision endpoints, see what is deployed, find out what is wrong.

    \b
    Exit status: 0 done; 1 the answer is an error, or a check failed; 2 wrong
    usage or request; 3 not reached, or refused; 130 interrupted.
    """
    if version:
        typer.echo(f"ballot {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Status.USAGE)
    return None


for _command in (
    decide,
    chat,
    evaluate,
    bench,
    report,
    compare,
    calibrate,
    threshold,
    endpoints,
    doctor,
    gateway,
):
    app.command()(_command)
app.add_typer(batch, name="batch")


def main() -> int:
    """Run the command line, and return the exit status."""
    _prepare_outputs()
    try:
        status = app(prog_name="ballot", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _say(_usage(error))
        return Status.USAGE
    except BrokenPipeError:
        _abandon(sys.stdout)
        return Status.BROKEN_PIPE
    except OSError as error:
        return _tell(error)
    return int(status or Status.OK)


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "ballot"
    message = " ".join(error.format_message().split()).removesuffix(".")
    return f"{printable(message)}; see `{where} --help`"


def _tell(error: Exception) -> Status:
    """Say what went wrong, and return how the command ends."""
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
    fault = explain(error)
    _say(fault.line)
    if isinstance(error, OSError):
        _abandon(sys.stdout)
    return fault.status


def _say(line: str) -> None:
    print(f"ballot: {line}", file=sys.stderr)


def _prepare_outputs() -> None:
    """Have both outputs there, and write what their encoding lacks as an escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        else:
            stream.reconfigure(errors="backslashreplace")


def _abandon(stream: TextIO) -> None:
    """Send what is left in `stream` nowhere, so that the interpreter's end does not fail on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
