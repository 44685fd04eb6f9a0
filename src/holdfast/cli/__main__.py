"""Runs the command line: ``python -m holdfast.cli``, installed as ``holdfast``."""

from __future__ import annotations

from holdfast.cli import checkpoints, doctor, jobs, logs, new, query, run, services  # noqa: F401  (each adds commands)
from holdfast.cli.app import app

__all__ = ["main"]

_ORDER = ["new", "run", "standby", "list", "status", "dashboard", "logs", "query", "savepoint", "stop", "cancel", "rescale"]
_ORDER += ["kafka", "doctor", "token"]
"""The order of `--help`."""

app.registered_commands.sort(key=lambda each: _ORDER.index(each.name or getattr(each.callback, "__name__", "")))


def main() -> None:
    """Run the command that the arguments name."""
    app(prog_name="holdfast")


if __name__ == "__main__":
    main()
