"""Rows in Redis, exactly once.

Writers store the commands of an epoch's rows in Redis, under keys of their own. When the checkpoint is complete, the
committer lets Redis carry them out, a chunk at a time, each by one script that also deletes the chunk: so the commit can be
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, get_args

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.serialization import SerializationSchema
from holdfast.common.time import Duration
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.common.types import Row
from holdfast.connectors.base import Committable, JobInfo, WriterContext, check_form
from holdfast.connectors.redis.commands import Command, RowCommands, Structure
from holdfast.connectors.redis.server import RedisServer, redis
from holdfast.connectors.redis.staging import Attempt, Staging
from holdfast.errors import ConfigurationError, HoldfastError, UserCodeError

__all__ = ["RedisSink"]

_VERSION = 2
_ROWS = 1000
_BYTES = 1 << 20
"""A chunk has at most so many rows, and is stored when it has so many bytes: the server does nothing else meanwhile."""


class RedisSink:
    """A sink that writes rows to Redis (version 5 or later, without cluster mode), exactly once.

    Rows become visible when their checkpoint is complete. Until then they wait in keys ``holdfast:...``.

    As strings and hashes, rows are written by their kind: ``INSERT`` and ``UPDATE_AFTER`` replace what the key holds,
    ``DELETE`` deletes the key, ``UPDATE_BEFORE`` does nothing. Let ``key_by`` bring the rows of a key to one subtask: only
    there they have an order. To a stream each row is added, with an id of the server's, which is higher than all before.

    Args:
        url: ``redis://user@host:6379/0``, ``rediss://`` for TLS, or ``unix://``, with redis-py's parameters.
        type_info: The rows, ``Types.ROW_NAMED([...], [...])``.
        key: A row's key, text or bytes: ``lambda row: f"total:{row.name}"``. For a stream also its name.
        structure: What a key holds: ``string``, ``hash`` with the row's fields, or ``stream`` with an entry for each row.
            Fields that are None are not there; others are text as in JSON, bytes are as they are.
        value: The string for a row: a schema, or a callable to text or bytes. None: the row as JSON.
        ttl: How long a key lives after its row was written; not for streams.
        max_length: How many entries a stream keeps, about.
        password: The password; None: that in the URL.
        timeout: How long to wait for the server's answer.

    Raises:
        ConfigurationError: an argument is invalid.

    >>> from holdfast.common import Types
    >>> totals = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
    >>> sink = RedisSink("redis://localhost:6379/0", totals, lambda row: f"total:{row.name}", structure="hash")
    """

    def __init__(
        self,
        url: str,
        type_info: RowTypeInfo,
        key: Callable[[Row], str | bytes] | str,
        structure: Structure = "string",
        *,
        value: SerializationSchema[Row] | Callable[[Row], str | bytes] | None = None,
        ttl: Duration | None = None,
        max_length: int | None = None,
        password: str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigurationError("the url of a RedisSink is redis://user@host:6379/0, rediss://... or unix://...")
        if not isinstance(type_info, RowTypeInfo):
            raise ConfigurationError(
                f"the rows of a RedisSink are a Types.ROW_NAMED([names], [types]), not {type_info!r:.80}"
            )
        if structure not in get_args(Structure):
            raise ConfigurationError(f"structure is one of {', '.join(get_args(Structure))}, not {structure!r:.80}")
        if not callable(key) and not (structure == "stream" and isinstance(key, str) and key):
            raise ConfigurationError(f"key is a callable from a row to its key, or the name of a stream, not {key!r:.80}")
        for name, given, wanted in (("value", value, "string"), ("max_length", max_length, "stream")):
            if given is not None and structure != wanted:
                raise ConfigurationError(f"{name} belongs to the structure {wanted!r}, not to {structure!r}")
        if ttl is not None and structure == "stream":
            raise ConfigurationError("ttl deletes keys, and a stream is one key: bound it with max_length")
        if max_length is not None and (type(max_length) is not int or max_length < 1):
            raise ConfigurationError(f"max_length is a whole number from 1, not {max_length!r:.80}")
        write: Any = getattr(value, "serialize", value)
        if value is not None and not callable(write):
            raise ConfigurationError(f"value is a schema or a callable, not {value!r:.80}")
        redis()
        self._url, self._password = url, password
        self._timeout_s = _millis("timeout", timeout or Duration.of_seconds(10)) / 1000
        ttl_ms = None if ttl is None else _millis("ttl", ttl)
        self._rows = (type_info, structure, key, write, ttl_ms, max_length)
        RowCommands(*self._rows)  # refuses types that JSON does not have

    def validate(self) -> None:
        """Check that the server can be written to.

        Raises:
            ConfigurationError: it cannot; names the remedy.
            ServiceUnavailable: the server does not answer.
        """
        with closing(self._server("")) as server:
            server.check()

    def create_writer(self, context: WriterContext) -> _RedisWriter:
        """Create a writer, in a task slot."""
        return _RedisWriter(self._server(context.uid), RowCommands(*self._rows), context)

    def check_prepared(self, data: Any) -> None:
        """Check that output waits in Redis.

        Raises:
            IncompatibleState: it does not.
        """
        check_form(data, ("version", "prefix", "attempt", "chunks"), "RedisSink", [1, _VERSION])

    def create_committer(self, job: JobInfo, uid: str) -> _RedisCommitter:
        """Create the committer, which has prepared rows written."""
        return _RedisCommitter(self._server(uid), job, uid)

    def _server(self, uid: str) -> RedisServer:
        return RedisServer(self._url, self._password, "Redis sink" + (f", uid {uid!r}" if uid else ""), self._timeout_s)


def _millis(name: str, duration: Any) -> int:
    if not isinstance(duration, Duration) or duration.to_millis() < 1:
        raise ConfigurationError(f"{name} is a Duration of a millisecond or more, not {duration!r:.80}")
    return duration.to_millis()


class _RedisWriter:
    """Stores the commands of rows in chunks."""

    def __init__(self, server: RedisServer, commands: RowCommands, context: WriterContext) -> None:
        self._server = server
        self._staging = Staging(server, context.job, context.uid)
        self._commands = commands
        self._context = context
        self._attempt = Attempt(0, 0, 0, "")
        self._chunks = 0
        self._waiting: list[Command] = []
        self._rows = self._bytes = 0

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        self._attempt = Attempt(self._context.job.generation, self._context.subtask, epoch, attempt)
        self._chunks = 0
        self._drop()

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        of = self._commands.of
        for value in values:
            with self._told(value):
                made = of(value)
            self._waiting += made
            self._rows += 1
            self._bytes += sum(map(len, made[0])) if made else 0
            if self._rows >= _ROWS or self._bytes >= _BYTES:
                self._store()

    def prepare_commit(self) -> list[Any]:
        if self._waiting:
            self._store()
        if not self._chunks:
            return []
        made = {"version": _VERSION, "prefix": self._staging.prefix, "attempt": str(self._attempt)}
        return [{**made, "chunks": self._chunks}]

    def abort_epoch(self) -> None:
        self._drop()  # the committer deletes the chunks

    def close(self) -> None:
        self._server.close()

    def _store(self) -> None:
        if self._waiting:
            self._staging.put(self._attempt, self._chunks, self._waiting)
            self._chunks += 1
        self._drop()

    def _drop(self) -> None:
        self._waiting = []
        self._rows = self._bytes = 0

    @contextmanager
    def _told(self, row: Any) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:  # also of the program's functions
            uid = self._context.uid
            raise UserCodeError(
                f"{type(error).__name__}: {error}\n  in operator 'RedisSink' (uid {uid!r})\n  row: {row!r:.1000}",
                operator="RedisSink",
                uid=uid,
                record=f"{row!r:.1000}",
            ) from error


class _RedisCommitter:
    """Has prepared commands carried out."""

    def __init__(self, server: RedisServer, job: JobInfo, uid: str) -> None:
        self._server = server
        self._staging = Staging(server, job, uid)
        self._generation = job.generation

    def recover(self, committables: Sequence[Committable]) -> None:
        own = [each.data for each in committables if each.data["prefix"] == self._staging.prefix]
        keep = {Attempt.parse(data["attempt"]): data["chunks"] for data in own}
        if keep:  # what failed attempts left may fill the memory that these need
            self._staging.clean(self._generation, keep=keep)
        self._apply(committables)
        self._staging.clean(self._generation)

    def commit(self, committables: Sequence[Committable]) -> None:
        attempts = self._apply(committables)
        if attempts:
            self._staging.clean(0, self._generation, max(each.epoch for each in attempts))

    def close(self) -> None:
        self._server.close()

    def _apply(self, committables: Sequence[Committable]) -> list[Attempt]:
        attempts = []
        for each in committables:
            attempts.append(Attempt.parse(each.data["attempt"]))
            self._staging.apply(each.data["prefix"], attempts[-1], each.data["chunks"], told=each.data["version"] > 1)
        return attempts
