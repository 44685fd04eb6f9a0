"""SortedInput: a keyed task's whole input in BATCH mode, sorted by key and, for each key, by timestamp.

An external merge sort: records beyond the memory limit are written to a local file in sorted runs, which are then merged.
"""

from __future__ import annotations

import heapq
import itertools
import os
import pickle
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.values import pickling
from holdfast.runtime.records.frames import Frame
from holdfast.state.keys.key_codec import encode_key

__all__ = ["SortedInput", "sorted_frames"]

_CHUNK = 1024
"""Records of a run to read at once."""
_KEYS = 1 << 16
"""Number of encoded keys to cache."""
_RECORD_BYTES = 400
"""Estimated memory of a record's entry without its value."""
_length = struct.Struct(">q")


class _Entry(NamedTuple):
    key_bytes: bytes
    stamp: int
    sequence: int
    """Keeps the order of the input, and prevents values from being compared."""
    input: int
    """The index of the input."""
    value: Any
    key: Any
    location: str | None


class SortedInput:
    """Sorts records by the bytes of their keys and by timestamp; the sort is stable.

    Args:
        directory: The directory for runs.
        bound: Approximate limit of the records in memory, in bytes.
    """

    def __init__(self, directory: str, bound: int) -> None:
        self._directory = directory
        self._bound = bound
        self._held = 0
        self._entries: list[_Entry] = []
        self._sequence = itertools.count()
        self._encoded: dict[Any, bytes] = {}
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        """The start and end of each run in the file."""

    def add(self, index: int, frame: Frame) -> None:
        """Add the records of a frame of an input."""
        keys, values = frame.keys, frame.values
        assert keys is not None
        stamps = frame.timestamps or itertools.repeat(MIN_TIMESTAMP)
        locations = frame.locations or itertools.repeat(None)
        encoded = map(self._encode, keys)
        self._entries += map(_Entry, encoded, stamps, self._sequence, itertools.repeat(index), values, keys, locations)
        sample = values[:: max(1, len(values) // 4)]
        self._held += len(values) * (_RECORD_BYTES + len(pickling.dumps(sample)) // max(1, len(sample)))
        if self._held > self._bound:
            self._spill()

    def _encode(self, key: Any) -> bytes:
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= _KEYS:
                self._encoded.clear()
            encoded = self._encoded[key] = encode_key(key)
        return encoded

    def _spill(self) -> None:
        """Write the records in memory as a run."""
        if self._file is None:
            os.makedirs(self._directory, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  (closed by close)
        self._entries.sort()
        start = self._file.seek(0, os.SEEK_END)
        for at in range(0, len(self._entries), _CHUNK):
            chunk = pickling.dumps([tuple(entry) for entry in self._entries[at : at + _CHUNK]])
            self._file.write(_length.pack(len(chunk)) + chunk)
        self._runs.append((start, self._file.tell()))
        self._entries.clear()
        self._held = 0

    def _run(self, at: int, end: int) -> Iterator[_Entry]:
        assert self._file is not None
        while at < end:
            self._file.seek(at)
            (length,) = _length.unpack(self._file.read(_length.size))
            chunk = self._file.read(length)
            at = self._file.tell()
            yield from map(_Entry._make, pickle.loads(chunk))

    def frames(self, size: int) -> Iterator[tuple[int, Frame]]:
        """All records in order, in frames of a single input with at most ``size`` records."""
        self._entries.sort()
        merged = heapq.merge(*(self._run(*run) for run in self._runs), self._entries) if self._runs else iter(self._entries)
        for index, entries in itertools.groupby(merged, lambda entry: entry.input):
            while part := list(itertools.islice(entries, size)):
                stamps = [entry.stamp for entry in part]
                yield (
                    index,
                    Frame(
                        watermark=MIN_TIMESTAMP,
                        values=[entry.value for entry in part],
                        timestamps=None if max(stamps) == MIN_TIMESTAMP else stamps,
                        keys=[entry.key for entry in part],
                        locations=None if part[0].location is None else [entry.location or "" for entry in part],
                    ),
                )

    def close(self) -> None:
        """Drop everything."""
        self._entries.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


def sorted_frames(
    frames: Iterable[tuple[Frame | None, int, int]], directory: str, bound: int, size: int
) -> Iterator[tuple[Frame | None, int, int]]:
    """The frames of a task's whole input: first those without keys, then those with keys, sorted; last the watermark.

    Args:
        frames: (frame, input index, watermark after it), as the runtime merges them.
        directory: A local directory for records beyond the memory limit.
        bound: Approximate limit of the records in memory, in bytes.
        size: The most records of a sorted frame.
    """
    records = SortedInput(directory, bound)
    last = MIN_TIMESTAMP
    try:
        for frame, index, watermark in frames:
            last = watermark
            if frame is None:
                continue
            if frame.keys is None:
                yield frame, index, MIN_TIMESTAMP
            else:
                records.add(index, frame)
        for index, frame in records.frames(size):
            yield frame, index, MIN_TIMESTAMP
    finally:
        records.close()
    yield None, 0, last
