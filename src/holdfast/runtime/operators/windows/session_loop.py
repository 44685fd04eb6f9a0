"""The innermost loop of event-time sessions: elements that begin or extend a session. Compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.common.windows import Bounds
from holdfast.state.cells.row import DIRTY, Row

__all__ = ["OpenSession", "extend_each"]


class OpenSession:
    """A session to which a batch adds elements. Its window in the key's set is updated after the batch."""

    __slots__ = ("end", "high", "key", "known", "low", "row", "set_row", "span", "start", "state")

    key: Any
    set_row: Row
    """The row with the key's set of windows."""
    row: Row
    """The row with the content."""
    state: Bounds
    """The state window."""
    span: Bounds
    """The window in the key's set."""
    known: bool
    """Whether `span` has timers."""
    start: int
    end: int
    low: int
    """The end of the key's previous window: a session that begins there or earlier merges with it."""
    high: int
    """The start of the key's next window."""

    def __init__(
        self, key: Any, set_row: Row, row: Row, state: Bounds, span: Bounds, known: bool, low: int, high: int
    ) -> None:
        self.key = key
        self.set_row = set_row
        self.row = row
        self.state = state
        self.span = span
        self.known = known
        self.start, self.end = span
        self.low = low
        self.high = high


def extend_each(
    begin: int,
    keys: Sequence[Any],
    values: Sequence[Any],
    stamps: Sequence[int],
    ends: Sequence[int],
    sets: list[Row],
    cell: int,
    fired: int,
    over: int,
    load_one: Callable[[Any], Row],
    load_new: Callable[[Any], Row],
    opened: dict[int, OpenSession],
    rows: list[Row],
    added: list[Any],
) -> int:
    """Find the session of each element, up to one that merges sessions or is late; returns that one's index.

    Args:
        begin: The index of the first element.
        keys: The elements' keys.
        values: The elements.
        stamps: The elements' timestamps.
        ends: For each element, when its session ends if no other element comes.
        sets: For each element, the row with its key's set of windows.
        cell: The set's cell in the rows.
        fired: The time up to which sessions have fired, or fire with every element.
        over: The time up to which sessions have been removed or are about to be.
        load_one: Loads the row of a content.
        load_new: Creates the row of a new content.
        opened: Gets the open session of each set, by the id of the set's row.
        rows: Gets the row of each element's content.
        added: Gets the elements.
    """
    for at in range(begin, len(stamps)):
        set_row, start, end = sets[at], stamps[at], ends[at]
        if end - 1 <= fired:
            return at
        session = opened.get(id(set_row))
        if session is None:
            windows = set_row[cell]
            low, high = -(1 << 63), (1 << 63) - 1
            span = None
            if windows:
                for each in windows:
                    first, last = each
                    if last - 1 <= over:
                        continue
                    if first <= end and last >= start:
                        if span is not None or last - 1 <= fired:
                            return at
                        span = each
                    elif last < start:
                        if last > low:
                            low = last
                    elif first < high:
                        high = first
            else:
                windows = set_row[cell] = {}
            key = keys[at]
            if span is None:
                span = (start, end)
                if span in windows.values():
                    return at
                windows[span] = span
                set_row[0] |= DIRTY
                session = OpenSession(key, set_row, load_new((key, span)), span, span, False, low, high)
            else:
                state = windows[span]
                session = OpenSession(key, set_row, load_one((key, state)), state, span, True, low, high)
            opened[id(set_row)] = session
        if start > session.end or end < session.start:
            return at
        if start < session.start:
            if start <= session.low:
                return at
            session.start = start
        if end > session.end:
            if end >= session.high:
                return at
            session.end = end
        rows.append(session.row)
        added.append(values[at])
    return len(stamps)
