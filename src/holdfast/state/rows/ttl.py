"""Time-to-live: values, list elements and map entries expire individually (Flink's StateTtlConfig).

Content with a time-to-live is stored with the time of its last write, in ms of processing time. A read removes expired
content and, unless configured otherwise, does not return it. If a key is not read any more, a background clean-up removes
its expired content at most a quarter of the time-to-live later. If the time-to-live was longer when a key was written, the
job's start reschedules the clean-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from holdfast.state.cells.entries import LargeList, LargeMap
from holdfast.state.cells.handles import NO_ACCUMULATOR, NO_REDUCED, CurrentRow, Handle
from holdfast.state.cells.row import CHANGED, DIRTY, filled
from holdfast.state.cells.typed import has_one_form
from holdfast.state.rows.table import RowTable
from holdfast.state.timers.timers import Timer, TimerQueue

__all__ = ["TTL_HANDLES", "Expiry", "ExpiringRow", "HasProcessingTime"]

_SWEEP = 20_000
"""The most keys cleaned up per epoch."""
_GRID = 4
"""Clean-up times are multiples of the time-to-live divided by this, so a hot key has few of them."""


class HasProcessingTime(Protocol):
    """The clock for expiry, in ms."""

    processing_time: int


class Expiry:
    """The clock of a space's expiring states, and the clean-up of keys that are no longer read."""

    def __init__(self, clock: HasProcessingTime, due: TimerQueue | None) -> None:
        """``due``: the clean-up times by key; None for spaces that drop their rows themselves, such as those of windows."""
        self.clock = clock
        self._due = due
        self._longest = 0
        self._too_late: Iterator[list[Timer]] | None = None
        """The clean-up times set by an earlier, longer time-to-live that have not been read yet."""
        self._handles: list[_Expiring] = []

    def watch(self, handle: _Expiring) -> None:
        """Include this state in the clean-up."""
        self._handles.append(handle)
        self._longest = max(self._longest, handle.ttl)

    def note(self, table: RowTable) -> None:
        """Schedule the clean-up of the keys written in this epoch, which is ending."""
        if self._due is None or not self._handles:
            return
        due = self._next_clean_up()
        register = self._due.register
        for key, row in table.touched():
            if row[0] & DIRTY and filled(row):
                register(due, key)

    def _next_clean_up(self) -> int:
        """The clean-up time of content written now: when it will have expired."""
        grid = max(self._longest // _GRID, 1)
        return ((self.clock.processing_time + self._longest) // grid + 1) * grid

    def sweep(self, table: RowTable) -> None:
        """Remove the expired content of keys whose clean-up is due; what exceeds the limit is cleaned up in later epochs.

        Content that remains was written again, or had a shorter time-to-live when it was written: its key is scheduled
        again.
        """
        now = self.clock.processing_time
        if not self._due or not self._handles:
            return
        next_one = self._next_clean_up()
        timers = [*islice(self._due.due(now), _SWEEP)]
        if self._too_late is None:
            self._too_late = self._due.later(next_one)
        while len(timers) < _SWEEP and (part := next(self._too_late, None)) is not None:
            planned = [timer for timer in part if timer[0] > next_one]
            for timer in planned:
                self._due.delete(*timer)
            timers += planned
        keys = list({key: None for _, key in timers})
        for key, row in zip(keys, table.load(keys)):
            for handle in self._handles:
                handle.expire(row)
            if any(handle.has_content(row) for handle in self._handles):
                self._due.register(next_one, key)


class ExpiringRow(CurrentRow):
    """The current key and its row, whose states may expire."""

    expiry: Expiry | None


class _Expiring(Handle):
    """A state with expiring content."""

    __slots__ = ("_clock", "_on_read", "_show_expired", "ttl")

    def __init__(self, space: ExpiringRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        config = descriptor.ttl_config
        self.ttl: int = config.ttl_ms
        self._on_read: bool = config.refresh_on_read
        self._show_expired: bool = config.return_expired
        assert space.expiry is not None
        self._clock = space.expiry.clock
        space.expiry.watch(self)

    def _expired(self, stamp: int) -> bool:
        return stamp + self.ttl <= self._clock.processing_time

    def has_content(self, row: list[Any]) -> bool:
        """Whether a row has content of this state, expired or not."""
        return row[self._i] is not None

    def expire(self, row: list[Any]) -> None:
        """Remove expired content from a row."""
        raise NotImplementedError


class _ExpiringOne(_Expiring):
    """A cell that expires as a whole."""

    __slots__ = ()

    def expire(self, row: list[Any]) -> None:
        cell = row[self._i]
        if cell is not None and self._expired(cell[0]):
            row[self._i] = None
            row[0] = CHANGED[row[0]]

    def _read(self) -> Any:
        row = self._space.row
        cell = row[self._i]
        if cell is None:
            return None
        if self._expired(cell[0]):
            self.clear()
            return cell[1] if self._show_expired else None
        if self._on_read:
            self._write(cell[1])
        return cell[1]

    def _unexpired(self) -> Any:
        cell = self._space.row[self._i]
        return None if cell is None or self._expired(cell[0]) else cell[1]

    def _write(self, value: Any) -> None:
        value = self._fitted(value)
        row = self._space.row
        row[self._i] = None if value is None else (self._clock.processing_time, value)
        row[0] = CHANGED[row[0]]


class ExpiringValue(_ExpiringOne):
    """One value per key."""

    __slots__ = ()

    def value(self) -> Any:
        """The value; None when empty or expired."""
        return self._read()

    def update(self, value: Any) -> None:
        """Replace the value; None clears the state."""
        self._write(value)


class ExpiringReducing(_ExpiringOne):
    """One value per key; each added value is reduced into it."""

    __slots__ = ("_reduce",)

    def __init__(self, space: ExpiringRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        self._reduce: Callable[[Any, Any], Any] = descriptor.reduce_function

    def get(self) -> Any:
        """The reduced value; None when empty or expired."""
        return self._read()

    def add(self, value: Any) -> None:
        """Reduce a value into the state; expired state starts over."""
        value = self._fitted(value)
        current = self._unexpired()
        if current is not None:
            value = self._reduce(current, value)
            if value is None:
                raise TypeError(NO_REDUCED)
        self._write(value)


class ExpiringAggregating(_ExpiringOne):
    """One accumulator per key; reading returns the aggregate's result."""

    __slots__ = ("_aggregate",)

    def __init__(self, space: ExpiringRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        self._aggregate = descriptor.agg_function

    def get(self) -> Any:
        """The aggregate's result; None when empty or expired."""
        accumulator = self._read()
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value to the accumulator; an expired accumulator starts over."""
        current = self._unexpired()
        accumulator = self._aggregate.add(value, self._aggregate.create_accumulator() if current is None else current)
        if accumulator is None:
            raise TypeError(NO_ACCUMULATOR)
        self._write(accumulator)


class ExpiringList(_Expiring):
    """A list per key; its elements expire individually."""

    __slots__ = ()

    def expire(self, row: list[Any]) -> None:
        elements = row[self._i]
        if elements is None:
            return
        if type(elements) is LargeList:
            before = elements.marker
            if not elements.keep(lambda each: not self._expired(each[0])):
                self._set(row, None)
            elif elements.marker != before:
                row[0] = CHANGED[row[0]]
            return
        live = [each for each in elements if not self._expired(each[0])]
        if len(live) < len(elements):
            self._set(row, live or None)

    def get(self) -> Iterator[Any]:
        """The elements in order; nothing when empty."""
        row = self._space.row
        before = row[self._i]
        if before is None:
            return iter(())
        shown = list(before) if self._show_expired else None
        self.expire(row)
        live = row[self._i]
        if shown is None:
            shown = [] if live is None else list(live)
        if self._on_read and live is not None:
            now = self._clock.processing_time
            self._set(row, [(now, value) for _, value in live] or None)
        return iter([value for _, value in shown])

    def __iter__(self) -> Iterator[Any]:
        return self.get()

    def add(self, value: Any) -> None:
        """Append an element."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        stamped = self._stamped(values)
        row = self._space.row
        elements = row[self._i]
        if elements is None:
            row[self._i] = stamped or None
        else:
            elements.extend(stamped)
        row[0] = CHANGED[row[0]]

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty list clears the state."""
        self.hold([*values])

    def hold(self, elements: list[Any]) -> None:
        """Replace the list by these elements."""
        self._set(self._space.row, self._stamped(elements) or None)

    def _stamped(self, values: Iterable[Any]) -> list[Any]:
        now = self._clock.processing_time
        return [(now, value) for value in self._all_fitted(values)]


class ExpiringMap(_Expiring):
    """A map per key; its entries expire individually."""

    __slots__ = ("_keys_vary",)

    def __init__(self, space: ExpiringRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        self._keys_vary = not has_one_form(descriptor.key_type_info)

    def expire(self, row: list[Any]) -> None:
        entries = row[self._i]
        if entries is not None:
            gone = [key for key, (stamp, _) in entries.items() if self._expired(stamp)]
            for key in gone:
                self._remove(row, entries, key)

    def _read(self, key: Any) -> Any:
        """The readable entry with its stamp; None if it is missing or hidden."""
        key = self._found(key)
        entries = self._space.row[self._i]
        entry = None if entries is None else entries.get(key)
        if entry is None:
            return None
        if self._expired(entry[0]):
            self.remove(key)
            return entry if self._show_expired else None
        if self._on_read:
            self.put(key, entry[1])
        return entry

    def get(self, key: Any) -> Any:
        """The entry's value; None when missing or expired."""
        entry = self._read(key)
        return None if entry is None else entry[1]

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        self.put_all(((key, value),))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def put_all(self, entries: Any) -> None:
        """Set several entries, from a mapping or pairs."""
        now = self._clock.processing_time
        row = self._space.row
        stamped = {key: (now, value) for key, value in self._entries_fitted(entries).items()}
        if self._keys_vary:
            self._remove_expired(row, stamped)
        held = row[self._i]
        if held is None:
            row[self._i] = stamped or None
        else:
            self._put_in(row, held, stamped)
        row[0] = CHANGED[row[0]]

    def _remove_expired(self, row: list[Any], keys: Iterable[Any]) -> None:
        """Remove expired entries. Otherwise their keys would stay when equal ones are put."""
        for key in keys:
            held = row[self._i]
            entry = None if held is None else held.get(key)
            if entry is not None and self._expired(entry[0]):
                self._remove(row, held, key)

    def remove(self, key: Any) -> None:
        """Remove an entry; no error when it is missing."""
        key = self._found(key)
        row = self._space.row
        entries = row[self._i]
        if entries is not None and key in entries:
            self._remove(row, entries, key)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def contains(self, key: Any) -> bool:
        """Whether the map has the entry."""
        return self._read(key) is not None

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def _entries(self) -> Iterable[tuple[Any, tuple[int, Any]]]:
        """The readable entries as of now, with their stamps; removes expired ones."""
        row = self._space.row
        entries = row[self._i]
        if entries is None:
            return ()
        if type(entries) is LargeMap and not self._on_read:
            return self._one_by_one(row, entries, entries.items(), self._clock.processing_time)
        before = list(entries.items())
        live = [entry for entry in before if not self._expired(entry[1][0])]
        if len(live) < len(before):
            self.expire(row)
        if self._on_read and live:
            self.put_all({key: value for key, (_, value) in live})
        return before if self._show_expired else live

    def _one_by_one(
        self, row: list[Any], entries: LargeMap, stored: Iterable[tuple[Any, tuple[int, Any]]], now: int
    ) -> Iterator[tuple[Any, tuple[int, Any]]]:
        """Like `_entries`, but reads and removes entries lazily. ``now`` is the time of the read."""
        for key, entry in stored:
            if entry[0] + self.ttl > now:
                yield key, entry
                continue
            if row is self._space.row and row[self._i] is entries and entries.get(key) == entry:
                self._remove(row, entries, key)
            if self._show_expired:
                yield key, entry

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The entries as pairs."""
        return ((key, value) for key, (_, value) in self._entries())

    def keys(self) -> Iterator[Any]:
        """The keys."""
        return (key for key, _ in self._entries())

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def values(self) -> Iterator[Any]:
        """The values."""
        return (value for _, (_, value) in self._entries())

    def is_empty(self) -> bool:
        """Whether there is no entry; removes expired ones up to the first that has not expired."""
        row = self._space.row
        while (entries := row[self._i]) is not None and not self._show_expired:
            key, (stamp, _) = entries.any_item() if type(entries) is LargeMap else next(iter(entries.items()))
            if not self._expired(stamp):
                break
            self._remove(row, entries, key)
        return entries is None


TTL_HANDLES: dict[str, type[_Expiring]] = {
    "value": ExpiringValue,
    "list": ExpiringList,
    "map": ExpiringMap,
    "reducing": ExpiringReducing,
    "aggregating": ExpiringAggregating,
}
"""Handle class by the descriptor's kind."""
