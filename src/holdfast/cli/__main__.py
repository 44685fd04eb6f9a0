"""Runs the command line: ``python -m holdfast.cli``, installed as ``holdfast``."""

from __future__ import annotations

# Each module adds its commands; `--help` lists them in this order.
from holdfast.cli import checkpoints, doctor, jobs, logs, new, run, services  # noqa: F401
from holdfast.cli.app import app

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name."""
    app(prog_name="holdfast")


if __name__ == "__main__":
    main()
