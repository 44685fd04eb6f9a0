"""LogRouter: an object store whose checkpoint logs are in topics.

A job's log itself records where it is. To move it, an object that names the topic, the log and the position is put, if free,
at the log's next position in the store; this position is the first one in the topic. A driver that keeps the log in the
store finds the position taken, and is fenced. A release that does not know topics refuses the object by its version.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.ids import NO_POSITION, LogPosition
from holdfast.checkpoint.milestones import find_tail
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.paths import JobPaths, entry_in, manifest_in
from holdfast.checkpoint.stores.object_store import AlreadyExists, Data, NotFound, ObjectStore
from holdfast.checkpoint.stores.topic import Topic
from holdfast.checkpoint.stores.topic_log import TopicLog
from holdfast.errors import ConfigurationError, CorruptFile, IncompatibleState

__all__ = ["MOVED_VERSION", "LogRouter", "Moved", "moved_to"]

MOVED_VERSION = 4
"""The version of metadata that records where the log is; entries have a lower one."""


class Moved(msgspec.Struct, frozen=True):
    """Records that the log continues in a topic."""

    format_version: int
    topic: str
    topic_id: str
    log: bytes
    """The log's name, which is part of all its records."""
    begin: LogPosition
    """The first position in the topic."""
    offset: int
    """The topic's end when the log began in it."""


_decoder = msgspec.msgpack.Decoder(Moved)


def moved_to(payload: bytes) -> Moved | None:
    """Where the log has moved, if an entry's payload records that."""
    try:
        with parsing("an entry", "the place of a log"):
            return _decoder.decode(payload)
    except CorruptFile:
        return None


class LogRouter:
    """An object store, with checkpoint logs in topics. Thread-safe.

    Args:
        store: The store.
        open_topic: Opens the topic with this name.
        name_topic: Names the topic of the job with this directory.
        signed: Signs what goes into the topic, if the store signs, too.
    """

    def __init__(
        self,
        store: ObjectStore,
        open_topic: Callable[[str], Topic],
        name_topic: Callable[[str], str],
        signed: Callable[[ObjectStore], ObjectStore] = lambda log: log,
    ) -> None:
        self._store = store
        self._open_topic = open_topic
        self._name_topic = name_topic
        self._signed = signed
        self._lock = threading.RLock()
        self._logs: dict[str, tuple[TopicLog, ObjectStore]] = {}
        """The log, and the store that signs for it, by the job's directory."""
        self._unmoved: set[str] = set()
        """The directories of jobs whose logs were found in the store."""

    @property
    def uri(self) -> str:
        """The base URI of all paths."""
        return self._store.uri

    def in_topic(self, path: str) -> bool:
        """Whether an object with this path goes into a topic, and costs no request to the store."""
        found = entry_in(path)
        directory = manifest_in(path) if found is None else found[0]
        if not directory or directory not in self._logs:
            return False
        return found is None or found[1] >= self._logs[directory][0].begin

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        self._of(path).put(path, data)

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free; otherwise raise `AlreadyExists`."""
        found = entry_in(path)
        if found is not None and self._log(found[0]) is None:
            self._move(*found)
        self._of(path).put_new(path, data)

    def get(self, path: str) -> bytes:
        """The object's content; raises `NotFound`."""
        data = self._of(path).get(path)
        found = entry_in(path)
        if found is not None and found[0] in self._unmoved and self._parsed(path, data) is not None:
            with self._lock:  # another driver has just moved the log
                self._unmoved.discard(found[0])
            return self._of(path).get(path)
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes of the object from ``start`` on, fewer at its end; raises `NotFound`."""
        return self._of(path).get_range(path, start, length)

    def size(self, path: str) -> int:
        """The object's size in bytes; raises `NotFound`."""
        found = entry_in(path)
        if found is not None and self._log(found[0]) is None:
            return len(self.get(path))
        return self._of(path).size(path)

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with ``prefix``, without the objects that record where a log is."""
        listed: Sequence[str] = self._store.list(prefix)
        directories = {found[0] for found in map(entry_in, listed) if found is not None}
        if "/" in prefix:
            directories.add(prefix.partition("/")[0])
        for directory in directories:
            listed = self._with_log(directory, prefix, listed)
        return [*listed]

    def _with_log(self, directory: str, prefix: str, listed: Sequence[str]) -> Sequence[str]:
        """The paths, with those of a job's log in a topic, and without the object that records where it is."""
        entries = {path: found[1] for path in listed if (found := entry_in(path)) is not None and found[0] == directory}
        log = self._log(directory)
        if log is None and entries:
            with suppress(NotFound):
                self.size(max(entries))  # by now it may record that the log is in a topic
            log = self._log(directory)
        if log is None:
            return listed
        own = [path for path in listed if entries.get(path, NO_POSITION) < log[0].begin]
        log[0].learn_copies(own)
        there = set(own)
        return [*own, *(path for path in log[0].list(prefix) if path not in there)]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        stored = []
        for path in paths:
            found = entry_in(path)
            directory = manifest_in(path) if found is None else found[0]
            log = self._log(directory) if directory else None
            if log is None or (found is None and log[0].is_copied(path)):
                stored.append(path)
            elif found is None:
                log[0].delete([path])
            elif found[1] < log[0].begin:
                stored.append(path)
        if stored:
            self._store.delete(stored)

    def clear(self, directory: str) -> None:
        """Delete a job's log in the topic, and the object that records where it is."""
        found = self._log(directory)
        if found is not None:
            found[0].clear()
            self._store.delete([_entry(directory, found[0].begin)])
            with self._lock:
                self._logs.pop(directory, None)

    def trim(self, directory: str, oldest: LogPosition, needed: Iterable[LogPosition]) -> None:
        """Delete the log's records before an entry; see `TopicLog.trim`."""
        found = self._log(directory)
        if found is not None:
            found[0].trim(oldest, needed)

    def _of(self, path: str) -> ObjectStore:
        """The store that holds the object with this path: the topic's log, or the underlying store."""
        found = entry_in(path)
        directory = manifest_in(path) if found is None else found[0]
        log = self._log(directory) if directory else None
        if log is None or (found is not None and found[1] < log[0].begin):
            return self._store
        return log[1]

    def _log(self, directory: str) -> tuple[TopicLog, ObjectStore] | None:
        """The job's log in a topic; None: it is in the store."""
        found = self._logs.get(directory)
        if found is not None or directory in self._unmoved:
            return found
        with self._lock:
            moved = self._moved(directory, self._tail(directory))
            if moved is None:
                self._unmoved.add(directory)
                return None
            return self._begin(directory, moved)

    def _tail(self, directory: str) -> LogPosition:
        """The last position in the store."""

        def exists(position: LogPosition) -> bool:
            try:
                self._store.size(_entry(directory, position))
            except NotFound:
                return False
            return True

        listed = (entry_in(path) for path in self._store.list(JobPaths(directory).log_prefix))
        return find_tail(exists, max((found[1] for found in listed if found is not None), default=NO_POSITION))

    def _moved(self, directory: str, tail: LogPosition) -> Moved | None:
        if not tail:
            return None
        path = _entry(directory, tail)
        try:
            return self._parsed(path, self._store.get(path))
        except (CorruptFile, NotFound):
            return None  # whoever reads the log will meet the error

    def _parsed(self, path: str, data: bytes) -> Moved | None:
        try:
            return moved_to(unpack(data, f"{self.uri}/{path}"))
        except (CorruptFile, IncompatibleState):
            return None

    def _move(self, directory: str, position: LogPosition) -> None:
        """Continue the log in the topic, from this position on; raises `AlreadyExists` if the position is taken."""
        with self._lock:
            self._unmoved.discard(directory)
            name = self._name_topic(directory)
            topic = self._open_topic(name)
            identity = topic.create()
            first, end = topic.bounds()
            if (moved := self._moved(directory, self._tail(directory))) is not None:
                self._begin(directory, moved)
                return
            if first < end:
                raise ConfigurationError(
                    f"topic {name} is to have the checkpoint log of {self.uri}/{directory}, but has records: those of a job "
                    "of this name with checkpoints elsewhere? Name a topic of this job's own by "
                    "execution.checkpointing.log.topic, or delete this one if nobody needs it"
                )
            moved = Moved(MOVED_VERSION, name, identity, uuid.uuid4().bytes, position, end)
            try:
                self._store.put_new(_entry(directory, position), pack(msgspec.msgpack.encode(moved)))
            except AlreadyExists:
                ours = self._moved(directory, position)
                if ours is None:
                    raise  # an entry of a driver that keeps its log in the store
                moved = ours
            self._begin(directory, moved)

    def _begin(self, directory: str, moved: Moved) -> tuple[TopicLog, ObjectStore]:
        wanted = self._name_topic(directory)
        where = f"the checkpoint log of {self.uri}/{directory}"
        if moved.topic != wanted:
            raise ConfigurationError(
                f"{where} is in topic {moved.topic}, not in {wanted}: set execution.checkpointing.log.topic to {moved.topic}"
            )
        topic = self._open_topic(moved.topic)
        identity = topic.id()
        if identity != moved.topic_id:
            what = "was deleted" if not identity else "was deleted and created anew"
            raise ConfigurationError(
                f"topic {moved.topic}, where {where} is, {what}, or is on other brokers. Check "
                "execution.checkpointing.log.kafka.bootstrap.servers. If the topic is lost, so are the job's checkpoints: "
                "start from a savepoint under another name (pipeline.name)"
            )
        log = TopicLog(topic, moved.log, JobPaths(directory), moved.begin, moved.offset, self._store)
        self._logs[directory] = log, self._signed(log)
        return self._logs[directory]


def _entry(directory: str, position: LogPosition) -> str:
    return JobPaths(directory).log_entry(position)
