"""The functions of drawn programs with two inputs, tables, patterns, requests and columns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from holdfast.cep import Pattern, PatternProcessFunction
from holdfast.common import Row, Time, Types
from holdfast.datastream import (
    AsyncFunction,
    AsyncRetryStrategy,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FlatJoinFunction,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessJoinFunction,
    ValueStateDescriptor,
)

from .functions import END, Timers, digest

RULES = MapStateDescriptor("rules", Types.PICKLED_BYTE_ARRAY(), Types.LONG())
COUNTS = MapStateDescriptor("counts", Types.PICKLED_BYTE_ARRAY(), Types.PICKLED_BYTE_ARRAY())
ELEMENT = Types.TUPLE([Types.PICKLED_BYTE_ARRAY(), Types.LONG(), Types.LONG()])
"""Declared, elements may travel as columns."""
KEY_TYPES = {"text": Types.STRING(), "truth": Types.BOOLEAN(), "decimal": Types.BIG_DEC()}
FIELDS = {
    kind: Types.ROW_NAMED(["key", "time", "number"], [key_type, Types.LONG(), Types.LONG()])
    for kind, key_type in KEY_TYPES.items()
}
NO_RETRY = AsyncRetryStrategy.fixed_delay(2, 1, None, None)


def changed(*values: Any) -> None:
    for each in values:
        if type(each) is list:
            each[2] = -999


def raised(value: Any, by: int, in_place: bool) -> Any:
    """The element with a larger number: the same object, or another."""
    if in_place and type(value) is list:
        value[2] += by
        return value
    return value[0], value[1], value[2] + by


# ---- two inputs -------------------------------------------------------------------------------------------------------


class PlusBoth(CoMapFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def map1(self, value: Any) -> Any:
        return raised(value, 1, self.in_place)

    def map2(self, value: Any) -> Any:
        return raised(value, 2, self.in_place)


class TwiceOne(CoFlatMapFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def flat_map1(self, value: Any) -> Iterator[Any]:
        yield value
        yield raised(value, 50, self.in_place)

    def flat_map2(self, value: Any) -> Iterator[Any]:
        yield value


class PassBoth(CoProcessFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield raised(value, 1, self.in_place)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield raised(value, 2, self.in_place)


class TimersOfBoth(KeyedCoProcessFunction):
    """`Timers` for the elements of both inputs, which it tells apart."""

    def __init__(self, *arguments: Any) -> None:
        self.timers = Timers(*arguments)

    def open(self, runtime_context: Any) -> None:
        self.timers.open(runtime_context)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.timers.process_element((value[0], value[1], value[2] * 2), ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.timers.process_element((value[0], value[1], value[2] * 2 + 1), ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return self.timers.on_timer(timestamp, ctx)


class RulesAtEnd(KeyedBroadcastProcessFunction):
    """At the end of all time: a key's elements, and the rules that the broadcast stream has brought."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.add(tuple(value))
        ctx.timer_service().register_event_time_timer(END)
        if self.in_place:
            changed(value)
        return iter(())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(COUNTS)
        rule = tuple(value)
        count = [(rules.get(rule) or [0])[0] + 1]
        rules.put(rule, count)
        if self.in_place:
            changed(value)
            count[0] = -999
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        counts = ctx.get_broadcast_state(COUNTS).items()
        rules = [(key, time, number * 10 + count) for (key, time, number), (count,) in counts]
        yield ctx.get_current_key(), digest(rules, False), digest(self.seen.get(), False)
        self.seen.clear()


class PastRules(BroadcastProcessFunction):
    """The elements; the rules only fill the state."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield raised(value, 1, self.in_place)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(tuple(value), 1)
        if self.in_place:
            changed(value)
        return iter(())


def both(one: Any, other: Any) -> Any:
    """A pair, of which one may be missing."""
    there = one or other
    times = [each[1] for each in (one, other) if each is not None]
    return there[0], max(times), (0 if one is None else one[2]) * 100 + (99 if other is None else other[2])


def both_changed(one: Any, other: Any) -> Any:
    """The same, by a function that changes what it is given."""
    result = both(one, other)
    changed(one, other)
    return result


class Paired(JoinFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def join(self, first: Any, second: Any) -> Any:
        result = both(first, second)
        if self.in_place:
            changed(first, second)
        return result


class PairedTwice(FlatJoinFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def join(self, first: Any, second: Any) -> Iterator[Any]:
        yield both(first, second)
        yield both(second, first)
        if self.in_place:
            changed(first, second)


class Grouped(CoGroupFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def co_group(self, first: Any, second: Any) -> Iterator[Any]:
        one, other = list(first), list(second)
        yield (one or other)[0][0], digest(one, False), digest(other, False)
        if self.in_place:
            changed(*one, *other)


class PairedInTime(ProcessJoinFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        result = both(left, right)
        if self.in_place:
            changed(left, right)
        yield result


# ---- tables and rankings ----------------------------------------------------------------------------------------------


def number_or_none(element: Any) -> Any:
    """The value of a table's row; a multiple of four deletes it."""
    return None if element[2] % 4 == 0 else element[2]


def boxed_or_none(element: Any) -> Any:
    """The same as a list, which functions of tables may change in place."""
    number = number_or_none(element)
    return None if number is None else [number]


def unboxed(value: Any) -> Any:
    return value[0]


def joined(left: int, right: int) -> Any:
    """A joiner of two numbers, with these in place of missing ones."""
    return lambda one, other: (one or left) * 100 + (other or right)


class Boxed:
    """A joiner of two lists of a number, which changes and returns one, and changes the other."""

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right

    def __call__(self, one: Any, other: Any) -> Any:
        one = [self.left] if one is None else one
        one[0] = one[0] * 100 + (self.right if other is None else other[0])
        if other is not None:
            other[0] = -999
        return one


def left_of(one: Any, other: Any) -> Any:
    return one


def add(group: Any, value: Any, total: Any) -> Any:
    return total + value


def subtract(group: Any, value: Any, total: Any) -> Any:
    return total - value


def new_box() -> Any:
    return [0]


def add_box(group: Any, value: Any, total: Any) -> Any:
    total[0] += value[0]
    value[0] = -999
    return total


def subtract_box(group: Any, value: Any, total: Any) -> Any:
    total[0] -= value[0]
    value[0] = -999
    return total


def add_tenfold(key: Any, value: Any, total: Any) -> Any:
    return total + value * 10


def add_box_tenfold(key: Any, value: Any, total: Any) -> Any:
    value[0] *= 10
    return add_box(key, value, total)


def sum_of_both(one: Any, other: Any) -> Any:
    return one + other


def sum_of_boxes(one: Any, other: Any) -> Any:
    """Adds the second list of a number to the first, and changes both."""
    return add_box(None, other, one)


def merge(key: Any, one: Any, other: Any) -> Any:
    return one + other


def merge_boxes(key: Any, one: Any, other: Any) -> Any:
    """Merges two lists of a number into the second one, and changes the first."""
    other[0] += one[0]
    one[0] = -999
    return other


def of_window(pair: Any) -> Any:
    """A row of a windowed table, with the window in the key."""
    key, start, end = pair[0]
    return f"{key} {start} {end}", pair[1]


class Newest(KeyedProcessFunction):
    """At the end of all time, the newest change of each key, unless it deletes."""

    def open(self, runtime_context: Any) -> None:
        self.newest = runtime_context.get_state(ValueStateDescriptor("newest"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.newest.update((value[1],))
        ctx.timer_service().register_event_time_timer(END)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        (value,) = self.newest.value()
        self.newest.clear()
        if value is not None:
            yield ctx.get_current_key(), 0, value


def of_pair(pair: Any) -> Any:
    return pair[0], 0, pair[1]


def boxed_number(element: Any) -> Any:
    return [element[2]]


def of_joined(pair: Any) -> Any:
    """A pair of a number, or of a list of one."""
    return pair[0], 0, pair[1][0] if type(pair[1]) is list else pair[1]


def of_change(change: Any) -> Any:
    key, new, old = change
    return key, old or 0, new


def of_changelog(row: Any) -> Any:
    return row[0], row.get_row_kind().value, row[1]


def number_of(element: Any) -> Any:
    return element[2]


def of_windowed(pair: Any) -> Any:
    """An element of the row of a windowed table: a pair, or what `Newest` tells of it."""
    key, start, _ = pair[0]
    return key, start, pair[-1]


def of_row(row: Any) -> Any:
    """An element of a changelog's row, which tells its kind."""
    return row[0], row[1], row[2] * 10 + row.get_row_kind().value


# ---- patterns ---------------------------------------------------------------------------------------------------------


def lettered(element: Any) -> Any:
    """An event: its letter by the number, and the element."""
    return "abc"[element[2] % 3], element[0], element[1], element[2]


def listed(element: Any) -> Any:
    return list(lettered(element))


def key_of_event(event: Any) -> Any:
    return event[1]


def pattern(text: str, within: int) -> Pattern:
    from cep.patterns import build, parse

    return build(parse(text), None, within)


def matched(match: Any) -> Any:
    """The events of a match by the names of its patterns."""
    events = [(name, event) for name, events in match.items() for event in events]
    key = events[0][1][1]
    return key, len(events), digest([(key, event[2] + len(name), event[3]) for name, event in events], False)


def matched_changed(match: Any) -> Any:
    """The same, by a function that changes the events."""
    result = matched(match)
    for events in match.values():
        for event in events:
            event[3] = -999
    return result


class Matched(PatternProcessFunction):
    def process_match(self, match: Any, ctx: Any) -> Iterator[Any]:
        listed = any(type(event) is list for events in match.values() for event in events)
        yield matched_changed(match) if listed else matched(match)


# ---- requests and columns ---------------------------------------------------------------------------------------------


class Asked(AsyncFunction):
    """Answers odd numbers only after a moment, so that epochs end before."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    async def async_invoke(self, value: Any) -> Any:
        if value[2] % 2:
            await asyncio.sleep(0.005)
        return [raised(value, 3, self.in_place)]


def field_of(element: Any, kind: str) -> Any:
    """The key of a row, of a type."""
    key = str(element[0])
    return {"text": key, "truth": key > "a", "decimal": Decimal(len(key)) / 4}[kind]


def as_row(kind: str) -> Any:
    return lambda element: Row(key=field_of(element, kind), time=element[1], number=element[2])


def of_columns(row: Any) -> Any:
    return str(row.key), row.window_start, row.total * 1000 + row.most * 100 + row.least * 10 + row.several


def of_fields(row: Any) -> Any:
    return str(row.key), row.time, row.number


def times_two(batch: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [batch.column("key"), batch.column("time"), pc.multiply(batch.column("number"), 2)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "time", "number"])


def above_two(batch: Any) -> Any:
    import pyarrow.compute as pc

    return pc.greater(batch.column("number"), 2)


def row_times_two(row: Any) -> Any:
    return Row(key=row.key, time=row.time, number=row.number * 2)


def row_above_two(row: Any) -> Any:
    return bool(row.number > 2)


TEN_SECONDS = Time.seconds(10)
