"""The log as JSON: one object a line, with the job, epoch, operator and subtask that the message is about."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TextIO

import orjson

__all__ = ["JsonFormatter", "add_log_fields", "log_as_json", "set_process_log_fields"]

_of_thread: ContextVar[Mapping[str, str | int]] = ContextVar("holdfast_log_fields")
_of_process: dict[str, str | int] = {}

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add_log_fields(**fields: str | int) -> None:
    """Add fields to the messages of this thread, such as the job of a driver's thread."""
    _of_thread.set({**_of_thread.get({}), **fields})


def set_process_log_fields(**fields: str | int) -> None:
    """Replace the fields of all messages of this process, such as the task of a task slot."""
    global _of_process
    _of_process = fields


class JsonFormatter(logging.Formatter):
    """Formats messages as JSON objects.

    Their fields are time (UTC), level, logger, message, those of the thread and process, those that the caller passed in
    ``extra``, and the traceback as ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_of_process,
            **_of_thread.get({}),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return orjson.dumps(fields, default=str).decode()


def log_as_json(logger: logging.Logger, stream: TextIO) -> None:
    """Format as JSON wherever messages of the logger go; if nobody handles them, write those from INFO on to the stream.

    Handlers of the loggers above it, which get its messages, too, then write all their messages as JSON.
    """
    handlers: list[logging.Handler] = []
    above: logging.Logger | None = logger
    while above is not None:
        handlers += above.handlers
        above = above.parent if above.propagate else None
    if not handlers:
        handlers = [logging.StreamHandler(stream)]
        logger.addHandler(handlers[0])
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(JsonFormatter())
