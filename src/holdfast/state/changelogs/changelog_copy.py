"""ChangelogCopy: the rows of a changelog on this host's disk, up to known offsets.

The copy is a RocksDB in the form of the local store, so a new local store is just hard links to its files. Rows and offsets
are written together: after a crash the copy is older but consistent, and continues from its offsets.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from holdfast.checkpoint.changelog import ChangelogReader, LogRecord, LogTruncated, Marker, MarkerKey, Row
from holdfast.errors import CorruptFile
from holdfast.state.changelogs.changelog import partition_of, partitions_of
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.store.host_lock import renewed
from holdfast.state.store.store import RocksDBStore
from holdfast.state.stored.layout import END, FIRST, META

__all__ = ["COPY", "ChangelogCopy"]

COPY = "changelog"
"""The copy's name in the directory of its operator and subtask (`holdfast.state.store.host_lock.path_of`)."""

_logger = logging.getLogger(__name__)

_REFRESH_MS = 3_600_000
"""Interval in ms at which a copy without changes records that it is up to date."""


class _Meta(msgspec.Struct, array_like=True):
    """What a copy contains."""

    log: str
    """The log's id."""
    first: int
    last: int
    """Its key groups."""
    offsets: dict[int, int]
    """By partition: the offset after the last record that it holds."""
    markers: list[tuple[MarkerKey, Marker]]
    seen_ms: int
    """When it was last complete, in ms since 1970. The log keeps later tombstones for a limited time only."""
    whole: bool
    """False while it is ahead of the log."""


class ChangelogCopy:
    """The copy of one subtask's key groups.

    Args:
        path: The copy's directory.
        settings: Settings of RocksDB.
        log: The log.
        groups: The key groups; rows of others are left out.
        max_parallelism: The number of key groups.
    """

    def __init__(
        self, path: str, settings: Mapping[str, str], log: ChangelogReader, groups: KeyGroupRange, max_parallelism: int
    ) -> None:
        self.path = path
        self._settings = settings
        self._log = log
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._partitions = list(partitions_of(groups, log.partitions, max_parallelism))
        self.found = os.path.exists(os.path.join(path, "CURRENT"))
        """Whether the host had a copy that can be continued."""
        try:
            self.store = RocksDBStore(path, settings)
        except Exception as error:  # rocksdict raises plain exceptions for any damage
            _logger.warning("cannot open the copy of a changelog in %s, reading the changelog anew: %s", path, error)
            self.found = False
            self.path = renewed(path)
            self.store = RocksDBStore(self.path, settings)
        self._wanted: Mapping[int, int] = {}
        """The last known end of the log, by partition."""
        meta = self.store.meta
        self._meta = self._new_meta() if meta is None else msgspec.msgpack.decode(meta, type=_Meta)
        if meta is None or not self._can_continue():
            self.clear()
        self.markers: dict[MarkerKey, Marker] = dict(self._meta.markers)
        """The markers in the partitions."""
        self._noted_ms = self._meta.seen_ms

    def _new_meta(self) -> _Meta:
        groups = self._groups
        return _Meta(self._log.id, groups.first, groups.last, dict.fromkeys(self._partitions, 0), [], _now(), True)

    def _can_continue(self) -> bool:
        meta = self._meta
        age = _now() - meta.seen_ms
        return (
            meta.whole
            and meta.log == self._log.id
            and (meta.first, meta.last) == (self._groups.first, self._groups.last)
            and list(meta.offsets) == self._partitions
            and 0 <= age < self._log.tombstone_ms // 2  # the clocks of hosts and brokers differ
        )

    def clear(self) -> None:
        """Begin with an empty copy."""
        self.found = False
        self.store.close()
        self.path = renewed(self.path)
        self.store = RocksDBStore(self.path, self._settings)
        self._meta = self._new_meta()
        self.markers = {}

    @property
    def offsets(self) -> Mapping[int, int]:
        """By partition: the offset after the last record that it holds."""
        return self._meta.offsets

    @property
    def begun(self) -> bool:
        """Whether it has read anything of the log."""
        return any(self._meta.offsets.values())

    @property
    def empty(self) -> bool:
        """Whether it holds no rows."""
        return self.store.first_key(FIRST, END) is None

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows in ``[start, end)``, in order."""
        return self.store.scan(start, end)

    def catch_up(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Read the log up to its present end, keeping what was read; False if ``stopped`` became true before."""
        if not self._can_continue():  # the process was paused for half a day
            self.clear()
        try:
            return self._read(stopped)
        except LogTruncated:
            self.clear()
            return self._read(stopped)

    def _read(self, stopped: Callable[[], bool]) -> bool:
        before, began = self._seeds(), _now()
        self._wanted = self._log.ends(self._partitions)
        for records in self._log.read(self._meta.offsets):
            if records:
                self._take(records, before)
            if stopped():
                return False
        self._saw_all(began)
        return True

    def _seeds(self) -> dict[tuple[int, ...], set[str]]:
        """The seeds that the copy knows, by partition and key groups."""
        seeds: dict[tuple[int, ...], set[str]] = {}
        for key, marker in self.markers.items():
            seeds.setdefault(key[:3], set()).add(marker.seed)
        return seeds

    @property
    def behind(self) -> int:
        """The number of records that the copy lacks up to the log's last known end."""
        return sum(max(0, end - self._meta.offsets[partition]) for partition, end in self._wanted.items())

    def _take(self, records: Iterable[LogRecord], before: Mapping[tuple[int, ...], set[str]]) -> None:
        rows: dict[bytes, bytes | None] = {}
        offsets, count = self._meta.offsets, self._log.partitions
        for partition, offset, content in records:
            if isinstance(content, Row):
                if not FIRST <= content.key < END:  # it would overwrite the metadata of the copy
                    raise CorruptFile(
                        f"changelog {self._log.id}, partition {partition}, offset {offset}",
                        f"{content.key!r} is the key of no row",
                    )
                # Rows from before a change of the number of key groups stay in the partitions of that time.
                if content.group in self._groups and partition == partition_of(content.group, count, self._max_parallelism):
                    rows[content.key] = content.value
            elif content is not None:
                key, marker = content
                if marker is not None and marker.seed not in before.get(key[:3], (marker.seed,)):
                    # Do not write: the marker would vouch for rows that the log may have lost.
                    raise LogTruncated("the log was filled anew from a checkpoint")
                self._mark(key, marker)
            offsets[partition] = offset + 1
        self._write(rows)

    def _mark(self, key: MarkerKey, marker: Marker | None) -> None:
        if marker is None:
            self.markers.pop(key, None)
        else:
            self.markers[key] = marker

    def _write(self, rows: Mapping[bytes, bytes | None]) -> None:
        meta = self._meta
        meta.markers = list(self.markers.items())
        puts = [(key, value) for key, value in rows.items() if value is not None]
        deletes = [key for key, value in rows.items() if value is None]
        self.store.write([*puts, (META, msgspec.msgpack.encode(meta))], deletes)
        self._noted_ms = meta.seen_ms

    # in step with the subtask that writes the log

    def run_ahead(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write rows that are not committed in the log yet. The copy is worthless unless `completed` follows."""
        self._meta.whole = False
        self._write(rows)

    def completed(
        self,
        rows: Mapping[bytes, bytes | None],
        markers: Mapping[MarkerKey, Marker | None],
        ends: Mapping[int, int],
    ) -> None:
        """Write the rows that the subtask has written to the log in a completed epoch."""
        for key, marker in markers.items():
            self._mark(key, marker)
        self._meta.offsets.update(ends)
        self._meta.whole = True
        self._meta.seen_ms = _now()
        self._write(rows)

    def unchanged(self) -> None:
        """Record that the copy holds everything in the log."""
        self._saw_all(_now())

    def _saw_all(self, now: int) -> None:
        self._meta.seen_ms = now
        if now - self._noted_ms > _REFRESH_MS:
            self._write({})

    def link(self, directory: str) -> None:
        """Create a local store with the copy's rows: hard links to its files."""
        self.store.checkpoint(directory)

    def close(self) -> None:
        """Close the copy; it stays for the host's next process."""
        store, self.store = self.store, None  # type: ignore[assignment]
        if store is not None:
            store.close()
            if store.damaged:
                RocksDBStore.remove(store.path)


def _now() -> int:
    return time.time_ns() // 1_000_000
