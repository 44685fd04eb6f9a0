"""Runs the command line: ``python -m holdfast.cli``, installed as ``holdfast``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from holdfast.cli.commands import app  # takes half a second, in which Ctrl-C is no reason for a traceback
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    app(prog_name="holdfast")


if __name__ == "__main__":
    main()
