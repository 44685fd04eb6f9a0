"""State with a time-to-live that ends while the program runs, judged by the function that has it.

When content ends depends on the processing time of the run. So the function keeps beside each state, in a state without a
time-to-live, what docs/state.md says of it: each value with the time of its last write. An element comes through as it is,
or with another number if a read has given something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

from .drawing import Drawing, keyed
from .functions import MergingSum, key_of
from .models import Stream

WRONG = -999_999
MANY = 300
"""So many elements of a list or entries of a map have rows of their own."""

Entry = tuple[Any, int, Any]
"""A key, or None; the time of the last write; the value."""


class Expiring(KeyedProcessFunction):
    """Uses a state with a time-to-live of `ttl` ms.

    The program may have run with one of `least` ms meanwhile: what had ended by that may be gone.
    """

    def __init__(self, kind: str, typed: bool, ttl: int, least: int, on_read: bool, shown: bool, many: bool) -> None:
        self.kind, self.typed, self.ttl, self.least = kind, typed, ttl, least
        self.on_read, self.shown, self.many = on_read, shown, many

    def open(self, runtime_context: Any) -> None:
        long = Types.LONG() if self.typed else None
        descriptor: Any = {
            "value": lambda: ValueStateDescriptor("expiring", long),
            "list": lambda: ListStateDescriptor("expiring", long),
            "map": lambda: MapStateDescriptor(
                "expiring", long or Types.PICKLED_BYTE_ARRAY(), long or Types.PICKLED_BYTE_ARRAY()
            ),
            "reducing": lambda: ReducingStateDescriptor("expiring", lambda a, b: (a * 31 + b) % 9973, long),
            "aggregating": lambda: AggregatingStateDescriptor("expiring", MergingSum(), None),
        }[self.kind]()
        updates, visible = StateTtlConfig.UpdateType, StateTtlConfig.StateVisibility
        descriptor.enable_time_to_live(
            StateTtlConfig.new_builder(Time.milliseconds(self.ttl))
            .set_update_type(updates.OnReadAndWrite if self.on_read else updates.OnCreateAndWrite)
            .set_state_visibility(visible.ReturnExpiredIfNotCleanedUp if self.shown else visible.NeverReturnExpired)
            .build()
        )
        self.state = getattr(runtime_context, f"get_{self.kind}_state" if self.kind != "value" else "get_state")(descriptor)
        self.beside = runtime_context.get_state(ValueStateDescriptor("beside"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        now, number = ctx.timer_service().current_processing_time(), value[2]
        entries: list[Entry] = self.beside.value() or []
        if number % 4 == 3:
            ctx.timer_service().register_processing_time_timer(now + self.ttl)
        right, entries = getattr(self, f"_{self.kind}")(now, number, entries)
        if number % 11 == 0:
            self.state.clear()
            entries = []
        self.beside.update(entries)
        yield value[0], value[1], value[2] if right else WRONG

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        right, entries = self._read(ctx.timer_service().current_processing_time(), self.beside.value() or [])
        self.beside.update(entries)
        if not right:
            yield ctx.get_current_key(), -1, WRONG

    def _there(self, entry: Entry, now: int) -> bool:
        """Whether an entry has not ended."""
        return entry[1] + self.least > now

    def _may_be(self, entry: Entry, now: int) -> bool:
        """Whether a read may give an entry."""
        return self.shown or entry[1] + self.ttl > now

    def _read(self, now: int, entries: list[Entry]) -> tuple[bool, list[Entry]]:
        """Read all: whether it is what may be there, and what is there now."""
        found: list[tuple[Any, Any]] = {
            "value": lambda: [(None, self.state.value())],
            "list": lambda: [(None, each) for each in self.state.get() or []],
            "map": lambda: list(self.state.items()),
            "reducing": lambda: [(None, self.state.get())],
            "aggregating": lambda: [(None, self.state.get())],
        }[self.kind]()
        return self._compared(now, entries, [each for each in found if each[1] is not None])

    def _compared(self, now: int, entries: list[Entry], found: list[tuple[Any, Any]]) -> tuple[bool, list[Entry]]:
        """Compare what a read of these entries has given. What had ended is gone then."""
        rest = found if self.kind == "list" else sorted(found)
        right, left = True, []
        # From the end: of equal elements of a list, the later ones are there for longer.
        for entry in reversed(entries if self.kind == "list" else sorted(entries)):
            given = bool(rest) and rest[-1] == (entry[0], self._shown(entry[2]))
            if given:
                rest.pop()
            right = right and (self._may_be(entry, now) if given else not self._there(entry, now))
            if given and entry[1] + self.ttl > now:
                left.append((entry[0], now if self.on_read else entry[1], entry[2]))
        return right and not rest, left[::-1]

    def _shown(self, held: Any) -> Any:
        return tuple(MergingSum().get_result([*held])) if self.kind == "aggregating" else held

    def _value(self, now: int, number: int, entries: list[Entry]) -> tuple[bool, list[Entry]]:
        right = True
        if number % 3:
            right, entries = self._read(now, entries)
        if number % 5:
            self.state.update(number)
            entries = [(None, now, number)]
        return right, entries

    def _list(self, now: int, number: int, entries: list[Entry]) -> tuple[bool, list[Entry]]:
        right = True
        if number % 3:
            right, entries = self._read(now, entries)
        added = [number, *range(1000, 1000 + MANY * (self.many and number % 4 == 0))]
        if number % 7 == 1:
            self.state.update(added)
            entries = []
        elif number % 2:
            self.state.add_all(added)
        else:
            for each in added:
                self.state.add(each)
        return right, [*entries, *((None, now, each) for each in added)]

    def _map(self, now: int, number: int, entries: list[Entry]) -> tuple[bool, list[Entry]]:
        right, state, key = True, self.state, number % 4
        mine, others = [each for each in entries if each[0] == key], [each for each in entries if each[0] != key]
        how = number % 6
        if how == 0:
            right, mine = self._compared(now, mine, [(key, each) for each in [state.get(key)] if each is not None])
        elif how == 1:
            given = state.contains(key)
            right, mine = self._compared(now, mine, [(key, each[2]) for each in mine if given])
            right = right and (given or not mine)
        elif how == 2:
            right, mine = self._read(now, entries)
            others = []
        elif how == 3:
            keys = set(state.keys())
            right, mine = self._compared(now, entries, [(each[0], each[2]) for each in entries if each[0] in keys])
            right, others = right and keys <= {each[0] for each in entries}, []
        elif how == 4 and not self.shown:
            empty = state.is_empty()
            right = (
                not any(self._there(each, now) for each in entries)
                if empty
                else any(self._may_be(each, now) for each in entries)
            )
        left = {each[0]: each for each in (*mine, *others)}
        put = {key: number}
        if self.many and number % 4 == 0:
            put |= {each: number for each in range(1000, 1000 + MANY)}
        if number % 5 == 0:
            state.remove(key)
            left.pop(key, None)
        elif number % 2:
            state.put_all(put)
            left |= {each: (each, now, held) for each, held in put.items()}
        else:
            for each, held in put.items():
                state.put(each, held)
                left[each] = (each, now, held)
        return right, list(left.values())

    def _reducing(self, now: int, number: int, entries: list[Entry]) -> tuple[bool, list[Entry]]:
        return self._added(now, number, number, number, lambda held: (held * 31 + number) % 9973, entries)

    def _aggregating(self, now: int, number: int, entries: list[Entry]) -> tuple[bool, list[Entry]]:
        element, add = ("", 3, number), MergingSum().add
        return self._added(now, number, element, add(element, [0, 0, 0]), lambda held: add(element, held), entries)

    def _added(
        self, now: int, number: int, element: Any, first: Any, combined: Any, entries: list[Entry]
    ) -> tuple[bool, list[Entry]]:
        """Add an element: to what is there, or as the first one."""
        right = True
        if number % 3 == 1:
            right, entries = self._read(now, entries)
        self.state.add(element)
        found = self.state.get()
        may_be = [combined(held) for _, stamp, held in entries if stamp + self.ttl > now]
        if not any(self._there(each, now) for each in entries):
            may_be.append(first)
        same = [held for held in may_be if self._shown(held) == found]
        return right and bool(same), [(None, now, held) for held in same[:1]]


def expiring(d: Drawing, of: str) -> Any:
    by, key = keyed(d, of)
    kind = d.one_of("value", "list", "map", "reducing", "aggregating")
    ttl = d.one_of(1, 5, 30, 100, 10_000, 10**7)
    least = d.one_of(ttl, ttl, max(1, ttl // 4))
    flags = ", ".join(str(d.one_of(False, True)) for _ in range(3))
    text = f"{by}.process(Expiring({kind!r}, {d.one_of(True, False)}, {ttl}, {least}, {flags}))"
    stream, own = d.input_of(of), key is key_of
    return d.add(text, Stream(stream.elements, stream.ordered and own, own, stream.elements_of_windows), of)


OPERATIONS = [expiring]
