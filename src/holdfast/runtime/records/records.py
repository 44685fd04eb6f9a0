"""RecordBatch: the records that pass from operator to operator at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast import compiled
from holdfast.common.formats.columns import Fields, key_columns
from holdfast.common.formats.scans import are_timestamps
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo.base import TypeInformation, shown
from holdfast.common.typeinfo.batches import Misfit, fitted
from holdfast.runtime.records.getters import Getter, read_all
from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.state.keys.key_codec import comparable_keys

__all__ = ["Emit", "RecordBatch", "read_timestamps", "select_keys", "whole_milliseconds", "whole_timestamps"]


@dataclass(slots=True)
class RecordBatch:
    """Records with their timestamps and keys, in parallel lists of the same length."""

    values: list[Any]
    """A list, or `holdfast.common.formats.columns.Columns` instead."""
    timestamps: list[int] | None = None
    """In ms; None: no record has one. With columns it may be a packed array instead of a list."""
    keys: list[Any] | None = None
    """Set for operators with keyed state."""

    def part(self, first: int, end: int) -> RecordBatch:
        """The records from ``first`` up to ``end``."""
        return RecordBatch(
            self.values[first:end],
            None if self.timestamps is None else self.timestamps[first:end],
            None if self.keys is None else self.keys[first:end],
        )

    def stamps(self) -> Sequence[int]:
        """The timestamps; the minimum timestamp for records without one."""
        return [MIN_TIMESTAMP] * len(self.values) if self.timestamps is None else self.timestamps

    def untimed(self) -> int | None:
        """The position of a record without a timestamp; None if each has one."""
        if self.timestamps is None:
            return 0
        return self.timestamps.index(MIN_TIMESTAMP) if min(self.timestamps) == MIN_TIMESTAMP else None


Emit = Callable[[RecordBatch], None]
"""Takes the output of an operator."""


def select_keys(
    select: Callable[[Any], Any],
    declared: TypeInformation | None,
    values: list[Any],
    owner: OperatorName,
    read: Getter | None = None,
) -> list[Any]:
    """Select the key of each value and convert it to the declared type. The keys of columns are columns.

    ``read``: reads the field that ``select`` returns, if it does nothing else.

    Raises:
        UserCodeError: the selector failed, or a key has another type; the message names the value and ``owner``.
    """
    columnar = key_columns(select, declared, values)
    if columnar is not None:
        return columnar.as_list()
    keys = read_all(read, values)
    if keys is None:
        keys = _selected(select, values, owner)
    keys = comparable_keys(keys)
    if declared is None:
        return keys
    try:
        return fitted(declared, keys)
    except Misfit as error:
        key = keys[error.position]
        refusal = TypeError(f"the key {shown(key)} does not fit {declared!r}, which key_by() declares: {error}")
        raise user_error(refusal, *owner, values[error.position], key) from error


def _selected(select: Callable[[Any], Any], values: list[Any], owner: OperatorName) -> list[Any]:
    try:
        return [select(value) for value in values]
    except (Exception, SystemExit):
        for value in values:
            try:
                select(value)
            except (Exception, SystemExit) as error:
                raise user_error(error, *owner, value) from error
        raise


def read_timestamps(assign: Callable[[Any, int], int], values: list[Any], read: Getter | None) -> list[int] | None:
    """The timestamps of records or columns, if the assigner only reads a field; None if it must be called per record.

    ``read``: reads the field that ``assign`` returns, if it does nothing else.
    """
    if isinstance(assign, Fields):
        return assign.stamps(values)
    stamps = read_all(read, values)
    try:
        return None if stamps is None else whole_timestamps(stamps)
    except TypeError:
        return None  # the calls will find the record


def whole_timestamps(stamps: list[Any]) -> list[int]:
    """Check the results of a timestamp assigner.

    Raises:
        TypeError: a result is not a whole number of ms in 64 bits; the message names the first.
    """
    if compiled.IN_USE and are_timestamps(stamps):  # in plain Python, three calls for the whole list are faster
        return stamps
    try:
        if type(sum(stamps)) is int and max(stamps, default=0) <= MAX_TIMESTAMP and min(stamps, default=0) >= MIN_TIMESTAMP:
            return stamps
    except TypeError:
        pass  # not numbers: the loop below finds the first one
    return [_whole_timestamp(stamp) for stamp in stamps]


def _whole_timestamp(stamp: Any) -> int:
    return whole_milliseconds(stamp, "the timestamp assigner returned", "timestamp")


def whole_milliseconds(value: Any, who: str, what: str) -> int:
    """Check a timestamp or watermark from user code.

    Args:
        value: The timestamp or watermark.
        who: The start of the message, e.g. "the timestamp assigner returned".
        what: What the value should be.

    Raises:
        TypeError: it is not a whole number of ms in 64 bits.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = MAX_TIMESTAMP + 1
    if not MIN_TIMESTAMP <= whole <= MAX_TIMESTAMP:
        raise TypeError(f"{who} {value!r:.80}; a {what} is a whole number, in ms since 1970, of 64 bits")
    return whole
