"""TopicLog: the entries of a job's checkpoint log, and the manifests, in a topic."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress

from holdfast.checkpoint.ids import NO_POSITION, LogPosition
from holdfast.checkpoint.paths import JobPaths, entry_in
from holdfast.checkpoint.stores.object_store import AlreadyExists, Data, NotFound, ObjectStore
from holdfast.checkpoint.stores.topic import ForeignRecord, Place, RecordKey, Topic, TopicFold, parts_of
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["TopicLog"]


class TopicLog:
    """The log's entries and files as an `ObjectStore`. Thread-safe.

    Args:
        topic: The topic.
        log: The log's name, 16 bytes.
        paths: The job's paths.
        begin: The first position that is in the topic.
        offset: The topic's end when the log began in it.
        store: The store for content that outlives its records.
    """

    def __init__(
        self, topic: Topic, log: bytes, paths: JobPaths, begin: LogPosition, offset: int, store: ObjectStore
    ) -> None:
        self._topic = topic
        self._log = log
        self._paths = paths
        self._job = f"{store.uri}/{paths.directory}"
        self.begin = begin
        self._offset = offset
        self._store = store
        self._lock = threading.Lock()
        """Held while the fold changes; never while records are appended."""
        self._fold: TopicFold | None = None
        self._forgotten: set[str] = set()
        self._doubled: set[str] = set()
        """Files that may be in the store, too: the deletion of their records failed, or its driver died before it."""
        self._kept: set[LogPosition] | None = None
        """Positions whose entries are copied to the store; None if not known yet."""

    @property
    def uri(self) -> str:
        """The topic's name, for error messages."""
        return f"topic {self._topic.name}"

    def last(self) -> LogPosition:
        """The last position; without entries in the topic, the one before the first position."""
        with self._lock:
            return self._caught_up().last

    def known(self, position: LogPosition) -> bool:
        """Whether the position is taken, as far as the topic has been read."""
        return self._fold is not None and position <= self._fold.last

    def files(self) -> list[str]:
        """The paths of files that are not deleted."""
        with self._lock:
            return [path for path in self._caught_up().files if path not in self._forgotten]

    def put(self, path: str, data: Data) -> None:
        """Append a file."""
        self._append(NO_POSITION, path, bytes(data))

    def put_new(self, path: str, data: Data) -> None:
        """Append an entry; raises `AlreadyExists` if its position is taken."""
        position = self._position(path)
        with self._lock:  # the end as this driver knows it; the offset of the appended record shows whether that was right
            last = NO_POSITION if self._fold is None else self._fold.last
            if position != last + 1:
                last = self._caught_up().last
        if position <= last:
            raise AlreadyExists(f"{self.uri}: position {position} is taken")
        if position > last + 1:
            raise StorageError(
                f"{self.uri}: its last entry is that of position {last}, but position {position - 1} was there. Records "
                "were lost: by an unclean leader election, or because they were deleted"
            )
        if not self._append(position, "", bytes(data)):
            raise AlreadyExists(f"{self.uri}: position {position} is taken")

    def get(self, path: str) -> bytes:
        """The content of an entry or a file; raises `NotFound`."""
        place = self._place(path)
        if place is None:
            return self._store.get(self._copy(path))
        records = self._topic.read(place.first, place.last + 1)
        parts = [record.value for record in records if RecordKey.decode(record.key).attempt == place.attempt]
        if not records or (records[0].offset, records[-1].offset) != (place.first, place.last):
            return self._store.get(self._copy(path))  # its records were deleted meanwhile
        return b"".join(parts)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """A part of the content; raises `NotFound`."""
        return self.get(path)[start : start + length]

    def size(self, path: str) -> int:
        """The size of a file's content. For an entry 0, because its content is not read. Raises `NotFound`."""
        found = entry_in(path)
        if found is None:
            return len(self.get(path))
        if found[1] < self.begin or (not self.known(found[1]) and found[1] > self.last()):
            raise NotFound(f"{self.uri}: position {found[1]} is free")
        return 0

    def list(self, prefix: str) -> list[str]:
        """The paths of entries or of files."""
        entries: Sequence[str] = ()
        if self._paths.log_prefix.startswith(prefix) or prefix.startswith(self._paths.log_prefix):
            last, fold = self.last(), self._fold
            first = last if fold is None else min(fold.entries, default=last)
            numbers = range(first, last + 1) if last >= self.begin else ()
            entries = [self._paths.log_entry(LogPosition(n)) for n in numbers]
        return [path for path in (*entries, *self.files()) if path.startswith(prefix)]

    def learn_copies(self, stored: Iterable[str]) -> None:
        """Learn from a listing of the store which files are copied, maybe by a dead driver. Copies go with their files."""
        with self._lock:
            files = self._caught_up().files
            self._doubled.update(path for path in stored if path in files)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; entries are deleted by `trim`."""
        files = {path for path in paths if entry_in(path) is None}
        self._forgotten |= files
        if copies := files & self._doubled:
            self._store.delete(copies)

    def trim(self, oldest: LogPosition, needed: Iterable[LogPosition]) -> None:
        """Delete the records before an entry, after copying those still needed to the store.

        Args:
            oldest: All entries from this one on stay.
            needed: Older entries that are needed, too.
        """
        with self._lock:
            fold = self._caught_up()
            if oldest not in fold.entries:
                return
            bound = fold.entries[oldest].first
            files = {path: place for path, place in fold.files.items() if place.first < bound}
        wanted = {position for position in needed if self.begin <= position < oldest}
        kept = self._copied() if self._kept is None else self._kept
        for position in sorted(wanted - kept):
            self._store.put(self._paths.kept_entry(position), self.get(self._paths.log_entry(position)))
        for path in files:
            if path not in self._forgotten:
                with suppress(NotFound):  # the file was deleted, and a late part made it look complete again
                    data = self.get(path)
                    self._doubled.add(path)  # whether the answer comes or not
                    self._store.put(path, data)
        self._topic.truncate(bound)
        with self._lock:
            self._doubled.difference_update(files)
            self._forgotten.difference_update(files)
            fold.files = {path: place for path, place in fold.files.items() if path not in files}
            fold.entries = {position: place for position, place in fold.entries.items() if position >= oldest}
        # A driver that was cut off unknowingly must leave the copies of its successor, whose entries are newer.
        self._store.delete([self._paths.kept_entry(position) for position in kept - wanted if position < oldest])
        self._kept = wanted

    def _copied(self) -> set[LogPosition]:
        """The positions whose entries drivers have copied to the store."""
        listed = map(self._paths.parse_kept_entry, self._store.list(self._paths.kept_prefix))
        return {position for position in listed if position is not None}

    def clear(self) -> None:
        """Delete the topic, because the job's data is deleted."""
        self._topic.delete()

    def is_copied(self, path: str) -> bool:
        """Whether a file is in the store: stored there under an earlier setting, or copied when its records were deleted."""
        with self._lock:
            return path not in self._caught_up().files

    def _copy(self, path: str) -> str:
        """The path in the store of content whose records are deleted."""
        found = entry_in(path)
        return path if found is None else self._paths.kept_entry(found[1])

    def _position(self, path: str) -> LogPosition:
        found = entry_in(path)
        assert found is not None, path
        return found[1]

    def _place(self, path: str) -> Place | None:
        found = entry_in(path)
        fold = self._fold
        with self._lock:
            for up_to_date in (False, True):
                if up_to_date or fold is None:
                    fold = self._caught_up()
                place = fold.files.get(path) if found is None else fold.entries.get(found[1])
                if place is not None:
                    return place
        return None

    def _append(self, position: LogPosition, path: str, data: bytes) -> bool:
        """Append content; returns whether it became that of its position or path."""
        attempt = uuid.uuid4().bytes
        records = parts_of(self._log, attempt, position, path, data)
        first = self._topic.append(records) - len(records) + 1
        with self._lock:
            fold = self._fold
            if fold is not None and fold.next_offset == first:
                for number, (key, _) in enumerate(records):
                    fold.add(first + number, key)
            else:
                fold = self._caught_up()
            found = fold.files.get(path) if path else fold.entries.get(position)
        return found is not None and found.attempt == attempt

    def _caught_up(self) -> TopicFold:
        """Read the topic to its end. The caller holds the lock."""
        while True:
            first, end = self._topic.bounds()
            fold = self._fold
            if fold is None or fold.next_offset < first:
                fold = TopicFold(self._log, self.begin, max(first, self._offset), first <= self._offset)
            elif end < fold.next_offset:
                raise StorageError(
                    f"{self.uri}: it ends at offset {end}, but had {fold.next_offset}: records were lost, by an unclean "
                    "leader election or because the topic was made anew"
                )
            records = self._topic.read(fold.next_offset, end) if fold.next_offset < end else []
            if fold.next_offset >= end or self._topic.bounds()[0] <= fold.next_offset:
                break  # otherwise the job's driver has deleted some of the records before they were read
        try:
            for record in records:
                fold.add(record.offset, record.key)
        except ForeignRecord as error:
            raise ConfigurationError(
                f"{self.uri}, where the checkpoint log of {self._job} is, has {error}. Two jobs of one name, "
                "with checkpoints in different storages, need topics of their own: set execution.checkpointing.log.topic"
            ) from error
        fold.next_offset = max(fold.next_offset, end)
        if not fold.last and first > self._offset:
            raise StorageError(f"{self.uri}: it has lost the checkpoint log of {self._job}: its records were deleted")
        self._fold = fold
        return fold
