"""Frames: the unit in which records, barriers and reports travel between tasks, as bytes through Spark's shuffle.

A data frame holds up to a few thousand records of one channel. Plain records travel as columns if the loops that pack them
are compiled (`holdfast.runtime.records.frame_columns`), others as one pickle of parallel lists. Records that are columns
already travel as an Arrow record batch within the pickle.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from holdfast import compiled
from holdfast.checkpoint.ids import Epoch
from holdfast.common.formats.columns import ColumnKeys, columns_of
from holdfast.common.formats.positions import picker
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.values import pickling
from holdfast.runtime.records.frame_columns import PACKED, pack_columns, unpack_columns
from holdfast.runtime.records.frame_header import BARRIER, DATA, HEADER_SIZE, REPORT, Header, pack_frame, unpack_header
from holdfast.runtime.records.records import RecordBatch

__all__ = [
    "BARRIER",
    "DATA",
    "HEADER_SIZE",
    "REPORT",
    "Barrier",
    "Frame",
    "Header",
    "decode_data",
    "encode_data",
    "pack_frame",
    "unpack_header",
]


_BARRIER = struct.Struct("<qIq??")
_BY_COLUMNS = compiled.IN_USE
"""Whether plain records are packed as columns: only if compiled, because in plain Python a pickle is as fast. Both can be
read.
"""
_MOST_FIELDS = 4096
"""Fields of tuples or dictionaries in a frame: about 700 dictionaries of six fields, which take half a megabyte."""


class Barrier(NamedTuple):
    """Ends a channel's epoch: tells the receiver how many frames it must have, and the sender's attempt.

    An epoch has one for every pair of subtasks connected by a channel, so it is encoded without pickle.
    """

    epoch: Epoch
    attempt: str
    frames: int
    watermark: int
    idle: bool
    held: bool = False
    """Whether the sender holds back records for a later epoch."""


@dataclass
class Frame:
    """Records of one channel, and the sender's watermark after them."""

    watermark: int
    values: list[Any]
    timestamps: list[int] | None
    keys: list[Any] | None
    locations: list[str] | None = None
    """The origin of each record, in traced epochs."""
    late: list[tuple[int, int, int]] = field(default_factory=list)
    """Runs of records that are late by their own split's watermark (`event_time.Run`)."""

    @staticmethod
    def of(values: Any, timestamps: Any, keys: Any, locations: list[str] | None) -> Frame:
        """Open a frame with its first records."""
        if columns_of(values) is None:
            values, keys = list(values), None if keys is None else list(keys)
            timestamps = None if timestamps is None else list(timestamps)
        else:
            timestamps = None if timestamps is None else array("q", timestamps)
        return Frame(0, values, timestamps, keys, locations)

    def extend(self, values: Any, timestamps: Any, keys: Any) -> bool:
        """Add records; False if they do not fit: columns and rows do not mix, nor do records with and without timestamps."""
        held, given = columns_of(self.values), columns_of(values)
        if (self.timestamps is None) != (timestamps is None) or (held is None) != (given is None):
            return False
        if held is not None and given is not None:
            joined = held.joined([given])
            if joined is None:
                return False
            self.values = joined.as_list()
            self.keys = None if keys is None else ColumnKeys(joined, keys.fields).as_list()
        else:
            self.values.extend(values)
            if self.keys is not None:
                self.keys.extend(keys)
        if self.timestamps is not None:
            self.timestamps.extend(timestamps)
        return True

    def is_full(self, most: int) -> bool:
        """Whether it has ``most`` records, or as many tuples or dictionaries as stay in the cache until they are packed."""
        count = len(self.values)
        if count >= most or type(self.values) is not list:
            return count >= most
        first = self.values[0]
        return (type(first) is tuple or type(first) is dict) and count * len(first) >= _MOST_FIELDS

    def batch(self) -> RecordBatch:
        """The records as a batch."""
        return RecordBatch(self.values, self.timestamps, self.keys)

    def part(self, first: int, end: int) -> Frame:
        """The records from ``first`` up to ``end``."""
        part = slice(first, end)
        return Frame(
            self.watermark,
            self.values[part],
            None if self.timestamps is None else self.timestamps[part],
            None if self.keys is None else self.keys[part],
            None if self.locations is None else self.locations[part],
            [(max(a, first) - first, min(b, end) - first, at) for a, b, at in self.late if a < end and b > first],
        )

    def chosen(self, positions: list[int]) -> Frame:
        """The records at these positions, in order."""
        pick = picker(positions)
        late = dict.fromkeys(range(len(self.values)), MIN_TIMESTAMP)
        for first, end, watermark in self.late:
            late.update(dict.fromkeys(range(first, end), watermark))
        return Frame(
            self.watermark,
            list(pick(self.values)),
            None if self.timestamps is None else list(pick(self.timestamps)),
            None if self.keys is None else list(pick(self.keys)),
            None if self.locations is None else list(pick(self.locations)),
            [(n, n + 1, late[at]) for n, at in enumerate(positions) if late[at] > MIN_TIMESTAMP],
        )


def encode_data(frame: Frame) -> bytes:
    """Encode the payload of a data frame.

    Raises:
        TypeError: a value cannot be pickled.
    """
    if _BY_COLUMNS and frame.locations is None and not frame.late and type(frame.values) is list:
        packed = pack_columns(frame.watermark, frame.values, frame.timestamps, frame.keys)
        if packed is not None:
            return packed
    timestamps = None if frame.timestamps is None else array("q", frame.timestamps).tobytes()
    content = (frame.watermark, frame.values, timestamps, frame.keys, frame.locations, frame.late)
    try:
        return pickle.dumps(content, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return pickling.dumps(content)  # by value for classes of the program's main module, which tasks cannot import


def decode_data(payload: memoryview | bytes) -> Frame:
    """Decode the payload of a data frame."""
    if payload[0] in PACKED:
        return Frame(*unpack_columns(payload))
    watermark, values, stamps, keys, locations, late = pickling.loader()(payload)  # it may come from a checkpoint
    timestamps = None
    if stamps is not None:
        flat = array("q")
        flat.frombytes(stamps)
        timestamps = flat.tolist() if columns_of(values) is None else cast("list[int]", flat)
    return Frame(watermark, values, timestamps, keys, locations, late)


def encode_barrier(barrier: Barrier) -> bytes:
    """Encode the payload of a barrier."""
    epoch, attempt, frames, watermark, idle, held = barrier
    return _BARRIER.pack(epoch, frames, watermark, idle, held) + attempt.encode()


def decode_barrier(payload: memoryview | bytes) -> Barrier:
    """Decode the payload of a barrier."""
    epoch, frames, watermark, idle, held = _BARRIER.unpack_from(payload)
    return Barrier(epoch, str(payload[_BARRIER.size :], "ascii"), frames, watermark, idle, held)
