"""The checkpoint log of a job as a fold over the records of a topic with one partition. Pure.

A record is for a position of the log, or for a path. *The entry of position n is the first record for n after that of n - 1;
all others are ignored*, so every reader arrives at the same log:

    offset      40         41         42         43         44         45
    for         17         18         19         18         20         19
    written by  A          A          B          A, late    B          A, late
                entry 17   entry 18   entry 19   ignored    entry 20   ignored: A is fenced

Content too large for one record is split into several records, its parts. It exists once its last part exists, together with
all earlier ones.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from holdfast.checkpoint.ids import NO_POSITION, LogPosition
from holdfast.errors import StorageError

__all__ = ["ForeignRecord", "Place", "Record", "RecordKey", "Topic", "TopicFold", "parts_of"]

LARGEST_PART = 768 << 10
"""Limit of the content in a record, in bytes: with the key, less than brokers accept by default (``max.message.bytes``)."""
_FORM = 1
_KEY = struct.Struct(">B16s16sQHH")


class ForeignRecord(StorageError):
    """The topic has a record of another log."""


class RecordKey(NamedTuple):
    """The key of a record."""

    log: bytes
    """The log's name, 16 bytes."""
    attempt: bytes
    """Unique to this attempt to write the content, 16 bytes."""
    position: LogPosition
    """The position of the content; 0: it is for a path."""
    part: int
    """The number of this part, from 0."""
    parts: int
    path: str = ""

    def encode(self) -> bytes:
        """The stored form."""
        return _KEY.pack(_FORM, self.log, self.attempt, self.position, self.part, self.parts) + self.path.encode()

    @classmethod
    def decode(cls, key: bytes) -> RecordKey:
        """Undo `encode`.

        Raises:
            ForeignRecord: it is not the key of a checkpoint log.
        """
        if len(key) < _KEY.size or key[0] != _FORM:
            raise ForeignRecord("a record that is not of a checkpoint log, or of a later release")
        _, log, attempt, position, part, parts = _KEY.unpack_from(key)
        return cls(log, attempt, LogPosition(position), part, parts, key[_KEY.size :].decode())


class Record(NamedTuple):
    """A record of a topic."""

    offset: int
    key: bytes
    value: bytes


class Topic(Protocol):
    """A topic with one partition; its records stay in the order in which they were appended.

    All methods raise `Unavailable` if a retry may help, and another `StorageError` if it will not; a `ConfigurationError`,
    which ends the job, if the brokers refuse the request.
    """

    @property
    def name(self) -> str:
        """The topic's name."""

    def create(self) -> str:
        """Create the topic unless it exists, and check its settings; returns its id."""

    def id(self) -> str:
        """The topic's id, which a topic created anew under the same name does not share; empty if there is none."""

    def append(self, records: list[tuple[bytes, bytes]]) -> int:
        """Append records, by key and value; returns the offset of the last one, once all are replicated.

        They stay in order, but other writers' records may come in between. After `Unavailable`, some may exist, now or
        later.
        """

    def bounds(self) -> tuple[int, int]:
        """The first offset, and the offset after the last replicated record."""

    def read(self, start: int, end: int) -> list[Record]:
        """The records with offsets in ``[start, end)``, without deleted ones."""

    def truncate(self, offset: int) -> None:
        """Delete the records before an offset."""

    def delete(self) -> None:
        """Delete the topic."""


class Place(NamedTuple):
    """Where the parts of some content are."""

    first: int
    """The offset of the first part."""
    last: int
    attempt: bytes


class TopicFold:
    """The meaning of a topic's records, up to an offset.

    Args:
        log: The log's name, 16 bytes.
        begin: The first position of the log that is in the topic.
        start: The offset of the first record.
        whole: Whether that is the first record of the log. If not, older ones were deleted, and it is the first part of an
            entry.
    """

    def __init__(self, log: bytes, begin: LogPosition, start: int, whole: bool) -> None:
        self._log = log
        self._entry = None if whole else start
        """The offset of the first entry until it is complete; None: its position is known."""
        self.next_offset = start
        self.last = LogPosition(begin - 1) if whole else NO_POSITION
        """The last position; 0 if not known yet."""
        self.entries: dict[LogPosition, Place] = {}
        self.files: dict[str, Place] = {}
        self._open: dict[bytes, tuple[int, int]] = {}
        """The offset of the first part, and the number of known parts, by attempt."""

    def add(self, offset: int, key: bytes) -> None:
        """Add the next record.

        Raises:
            ForeignRecord: it belongs to another log.
        """
        found = RecordKey.decode(key)
        if found.log != self._log:
            raise ForeignRecord("a record of another job's checkpoint log")
        self.next_offset = offset + 1
        first, have = self._open.pop(found.attempt, (offset, 0))
        if found.part != have:
            return  # an earlier part was lost or deleted
        if have + 1 < found.parts:
            self._open[found.attempt] = first, have + 1
            return
        place = Place(first, offset, found.attempt)
        if not found.position:
            self.files.setdefault(found.path, place)
        elif found.position == self.last + 1 if self._entry is None else first == self._entry:
            self.last, self._entry = found.position, None
            self.entries[found.position] = place


def parts_of(log: bytes, attempt: bytes, position: LogPosition, path: str, data: bytes) -> list[tuple[bytes, bytes]]:
    """The records of some content, by key and value."""
    cut = [data[at : at + LARGEST_PART] for at in range(0, len(data), LARGEST_PART)] or [b""]
    return [(RecordKey(log, attempt, position, number, len(cut), path).encode(), part) for number, part in enumerate(cut)]
