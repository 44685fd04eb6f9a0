"""A topic with one partition in memory, for tests."""

from __future__ import annotations

import threading
import uuid

from holdfast.checkpoint.stores.topic import Record

__all__ = ["MemoryTopic"]


class MemoryTopic:
    """A `Topic` in a list. Calls are atomic, as on a partition's leader."""

    def __init__(self, name: str = "log") -> None:
        self.name = name
        self.records: list[Record] = []
        self.end = 0
        self.identity = ""
        self._lock = threading.Lock()

    def create(self) -> str:
        """Create the topic unless it is there; returns its id."""
        self.identity = self.identity or uuid.uuid4().hex
        return self.identity

    def id(self) -> str:
        """The topic's id; empty if there is none."""
        return self.identity

    def append(self, records: list[tuple[bytes, bytes]]) -> int:
        """Append records; returns the offset of the last."""
        with self._lock:
            for key, value in records:
                self.records.append(Record(self.end, key, value))
                self.end += 1
            return self.end - 1

    def bounds(self) -> tuple[int, int]:
        """The first offset, and the one after the last record."""
        with self._lock:
            return (self.records[0].offset if self.records else self.end), self.end

    def read(self, start: int, end: int) -> list[Record]:
        """The records with offsets from ``start`` on, before ``end``."""
        with self._lock:
            return [record for record in self.records if start <= record.offset < end]

    def truncate(self, offset: int) -> None:
        """Delete the records before an offset."""
        with self._lock:
            self.records = [record for record in self.records if record.offset >= offset]

    def delete(self) -> None:
        """Delete the topic."""
        with self._lock:
            self.records, self.end, self.identity = [], 0, ""
