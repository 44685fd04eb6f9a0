"""All commands of the application, in the order of `--help`."""

from __future__ import annotations

from holdfast.cli import checkpoints, doctor, jobs, logs, new, query, run, services  # noqa: F401  (each adds commands)
from holdfast.cli.app import app

__all__ = ["app"]

_ORDER = ["new", "run", "standby", "list", "status", "dashboard", "logs", "query", "savepoint", "stop", "cancel", "rescale"]
_ORDER += ["pace", "kafka", "doctor", "token"]

app.registered_commands.sort(key=lambda each: _ORDER.index(each.name or getattr(each.callback, "__name__", "")))
