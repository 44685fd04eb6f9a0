"""Write-ahead log of records from a source that cannot be read again, kept until a checkpoint covers them.

Records are bytes that end with a delimiter. They are appended in segments, each an immutable file in the job's
storage, and planned only when that file is durable, so a restarted driver finds its predecessor's records. Appending never
waits for the job to catch up: records waiting before the log would be lost with the driver. A job without checkpoints keeps
segments in memory and sends their bytes with the plan; there the appender waits.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.base import JobInfo
from holdfast.connectors.job_files import JobFiles
from holdfast.errors import InputLost, StorageError

__all__ = ["CAPACITY", "WriteAheadLog"]

CAPACITY = 64 << 20
"""Bytes of unread records kept in memory. Beyond it, stored segments are read back, and unstored ones wait."""

_NAME = re.compile(r"(\d{16})-\d{10}")
_log = logging.getLogger(__name__)


@dataclass
class _Segment:
    name: str
    size: int
    data: bytes | None
    """The content; None if it is only in the storage."""
    records: int
    """Number of records not planned yet."""
    offset: int = 0
    """Position up to which the segment is planned."""


class WriteAheadLog:
    """Log of the unread records of one source. One thread appends, another plans."""

    def __init__(self, job: JobInfo, uid: str, delimiter: bytes) -> None:
        self._files = JobFiles(job, "sources", uid) if job.storage_uri is not None else None
        self._generation = job.generation
        self._delimiter = delimiter
        self._appending = threading.Lock()
        """Held while a segment is written."""
        self._changed = threading.Condition()
        self._unread: deque[_Segment] = deque()
        self._records = 0
        """Number of records in them not planned yet."""
        self._held = 0
        """Bytes of them in memory."""
        self._consumed = ""
        """Name of the last fully planned segment; all before it are fully planned, too."""
        self._to_delete: list[str] = []
        self._ended = False
        self._failure: BaseException | None = None

    def restore(self, state: Any | None) -> None:
        """Find records that earlier drivers received and no completed checkpoint covers.

        Raises:
            InputLost: records after the state's position are gone.
        """
        if state is not None:
            self._consumed = state["consumed"]
            self._ended = state["ended"]
        if self._files is None:
            return
        partial, offset = state["partial"] if state is not None else ("", 0)
        for name in self._files.names():
            if not _NAME.fullmatch(name) or name <= self._consumed:
                self._to_delete.append(name)
                continue
            data = self._files.get(name)
            self._add(name, data, offset if name == partial else 0)
        self._check_complete(partial, fresh=state is None)

    def rewind(self, job: JobInfo, state: Any | None) -> bool:
        """Go back to the state of a completed checkpoint while input is received; False: the log is not stored, or failed.

        Raises:
            InputLost: records after the state's position are gone.
        """
        if self._files is None:
            return False
        with self._appending, self._changed:
            if self._failure is not None:
                return False
            ended, self._generation = self._ended, job.generation
            self._unread.clear()
            self._to_delete.clear()
            self._records, self._held, self._consumed = 0, 0, ""
            self.restore(state)
            self._ended = ended
        return True

    def _check_complete(self, partial: str, fresh: bool) -> None:
        assert self._files is not None
        numbers = [_number(segment.name) for segment in self._unread]
        expected = [_number(self._consumed)] if not fresh else numbers[:1]
        gap = any(b - a > 1 for a, b in zip(expected + numbers, numbers, strict=False))
        if gap or (partial and all(segment.name != partial for segment in self._unread)):
            raise InputLost(
                f"records received after {self._files.locate(self._consumed or 'the start')} are gone: a later "
                "checkpoint than the one restored had consumed them. Restore the latest one, or start afresh"
            )

    def append(self, data: bytes) -> None:
        """Append complete records; they are durable on return. Without a storage it waits while too much is unread.

        Raises:
            StorageError: the records cannot be written.
        """
        with self._appending:
            with self._changed:
                if self._files is None:
                    self._changed.wait_for(lambda: self._held < CAPACITY or self._ended)
                last = self._unread[-1].name if self._unread else self._consumed
            name = f"{_number(last) + 1:016d}-{self._generation:010d}"
            if self._files is not None:
                self._files.put(name, data)
            with self._changed:
                self._add(name, data)
                self._changed.notify_all()

    def _add(self, name: str, data: bytes, offset: int = 0) -> None:
        keep = self._files is None or self._held < CAPACITY
        segment = _Segment(name, len(data), data if keep else None, data.count(self._delimiter, offset), offset)
        self._unread.append(segment)
        self._records += segment.records
        self._held += len(data) if keep else 0

    def end(self, failure: BaseException | None = None) -> None:
        """End the log. `take` raises ``failure``, if given."""
        with self._changed:
            self._ended = True
            self._failure = failure
            self._changed.notify_all()

    def take(self, max_records: int, max_bytes: int) -> tuple[int, list[Any]]:
        """Plan the next records: their number, and pieces ``[segment's name, start, end]``, or bytes without storage."""
        pieces: list[Any] = []
        count = 0
        with self._changed:
            if self._failure is not None:
                raise self._failure
            while self._unread and count < max_records and max_bytes > 0:
                segment = self._unread[0]
                start, end = segment.offset, segment.size
                records = min(segment.records, max_records - count)
                if records < segment.records:
                    end -= len(self._data(segment)[start:].split(self._delimiter, records)[-1])
                if end > start:
                    pieces.append([segment.name, start, end] if self._files is not None else self._data(segment)[start:end])
                segment.offset = end
                segment.records -= records
                self._records -= records
                count += records
                max_bytes -= end - start
                if segment.offset == segment.size:
                    self._unread.popleft()
                    self._held -= 0 if segment.data is None else segment.size
                    self._consumed = segment.name
                    self._to_delete.append(segment.name)
            self._changed.notify_all()
        return count, pieces

    def _data(self, segment: _Segment) -> bytes:
        """Return the segment's content, which then stays in memory."""
        if segment.data is None:
            assert self._files is not None
            segment.data = self._files.get(segment.name)
            self._held += segment.size
        return segment.data

    @property
    def unread(self) -> int:
        """The number of records not planned yet."""
        with self._changed:
            return self._records

    @property
    def ended(self) -> bool:
        """Whether the log has ended."""
        with self._changed:
            return self._ended

    def snapshot(self) -> dict[str, Any]:
        """Return the position up to which records are planned."""
        with self._changed:
            first = self._unread[0] if self._unread else None
            partial = [first.name, first.offset] if first is not None and first.offset else ["", 0]
            # With unread segments the end is not final: without them nothing needs to be received again.
            return {"consumed": self._consumed, "partial": partial, "ended": self._ended and not self._failure}

    def completed(self, state: Any) -> None:
        """Delete segments consumed by a completed checkpoint with this state."""
        if self._files is None:
            return
        with self._changed:
            gone = [name for name in self._to_delete if not _NAME.fullmatch(name) or name <= state["consumed"]]
        if not gone:
            return
        try:
            self._files.delete(gone)
        except StorageError as e:
            _log.warning("%s; consumed segments stay until the next checkpoint", e)
            return
        with self._changed:
            self._to_delete = [name for name in self._to_delete if name not in set(gone)]

    def wait(self, timeout: float) -> None:
        """Wait until `take` has records, the end or a failure to report."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread or self._failure or self._ended, timeout)


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else 0
