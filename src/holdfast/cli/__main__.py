"""Runs the command line: ``python -m holdfast.cli``, installed as ``holdfast``."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from holdfast.cli.commands import app  # takes half a second, in which Ctrl-C is no reason for a traceback
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    if "--json" not in sys.argv[1:]:
        app(prog_name="holdfast")
    import typer

    from holdfast.cli.output import print_error

    usage_error: Any = typer.BadParameter.__base__
    try:
        code = app(prog_name="holdfast", standalone_mode=False)
    except usage_error as error:
        code = error.exit_code
        print_error(error.format_message(), code, as_json=True)
    except typer.Abort:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
