"""The `holdfast` application, and what all commands share: an exit code, and a sentence if the command failed."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from holdfast import __version__
from holdfast.cli.output import print_error
from holdfast.errors import HoldfastError

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "NOT_FOUND",
    "REFUSED",
    "USAGE",
    "AsJson",
    "CommandFailed",
    "app",
    "command",
    "until_the_end",
]

FAILED = 1
"""The exit code of a command that did not succeed."""
USAGE = 2
"""The exit code for arguments that make no sense."""
NOT_FOUND = 3
"""The exit code if there is no such job, checkpoint or file of a job."""
REFUSED = 4
"""The program cannot restore from the checkpoint or savepoint."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_resources = ExitStack()
"""What the running command uses until it ends."""


class CommandFailed(Exception):
    """Ends a command: what happened and what to do, in short sentences."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


app = typer.Typer(
    name="holdfast",
    help="Run, watch and stop jobs. Jobs on this machine are found by their name or id.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


def _all_commands(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


app.callback()(_all_commands)


def command(target: typer.Typer = app, *, interrupted: str = "", **options: Any) -> Callable[[F], F]:
    """Add a function to the application as a command that ends without a traceback of Holdfast's own.

    Args:
        target: The group of commands.
        interrupted: The sentence after Ctrl-C.
        options: Passed to typer.
    """

    def add(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **given: Any) -> None:
            as_json = bool(given.get("json", False))
            try:
                with _resources:
                    function(*args, **given)
            except CommandFailed as error:
                _end(str(error), error.code, as_json)
            except HoldfastError as error:
                _end(str(error) or repr(error), FAILED, as_json)
            except KeyboardInterrupt:
                _end(interrupted or "Interrupted.", INTERRUPTED, as_json)
            except BrokenPipeError:
                raise  # the reader of the output has gone; click ends quietly
            except OSError as error:
                _end(str(error), FAILED, as_json)
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except Exception as error:
                if os.environ.get("HOLDFAST_TRACEBACK"):
                    traceback.print_exc()
                kind = type(error).__name__
                _end(f"A bug in Holdfast: {kind}: {error}. HOLDFAST_TRACEBACK=1 shows where.", FAILED, as_json)

        target.command(**options)(run)
        return function

    return add


def until_the_end(resource: AbstractContextManager[T]) -> T:
    """Enter a resource, and leave it when the command ends."""
    return _resources.enter_context(resource)


def _end(message: str, code: int, as_json: bool) -> NoReturn:
    print_error(message, code, as_json)
    raise typer.Exit(code)
