"""The functions of drawn programs. An element is (key, time, number), a tuple or a list.

With ``in_place`` a function changes what it is given, as functions of Flink may: the elements are lists then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.common import Time, Types, WatermarkGenerator
from holdfast.datastream import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListState,
    ListStateDescriptor,
    MapFunction,
    MapState,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    ReducingState,
    ReducingStateDescriptor,
    StateTtlConfig,
    TimeDomain,
    ValueState,
    ValueStateDescriptor,
)

END = 10**15
KEYS_OF_ROWS = ("x", "y", "z")
"""Keys of global tables, by the remainders of numbers."""
"""Only the end of the input brings time here."""
LATE = OutputTag("late")
ODD = OutputTag("odd")


def key_of(element: Any) -> Any:
    return element[0]


def remainder_of(element: Any) -> int:
    return element[2] % 3


def key_and_time_of(element: Any) -> Any:
    return element[0], element[1]


def time_of(element: Any, _: int) -> int:
    return element[1]


def made(in_place: bool, *fields: Any) -> Any:
    """An element that the next function may change, or not."""
    return list(fields) if in_place else fields


def digest(elements: Iterable[Any], ordered: bool | str) -> int:
    """A number that tells which elements there are; with `ordered`, in which order. "by time": that of each time."""
    found = [(element[1], element[2]) for element in elements]
    if ordered is not True:
        found.sort(key=(lambda each: each[0]) if ordered else None)
    result = 7
    for time, number in found:
        result = (result * 31 + time * 5 + number) % 9973
    return result


def gap_of(element: Any) -> int:
    """The gap of a session after an element, of which none is a multiple of the grid."""
    return 15 + element[2] % 2 * 10


def difference(one: Any, other: Any) -> int:
    return abs(one[2] - other[2])


def shared(splits: dict[str, list[Any]]) -> list[Any]:
    """All elements; those that are equal are one object."""
    found: dict[Any, Any] = {}
    return [found.setdefault(tuple(element), element) for some in splits.values() for element in some]


def partition_of(key: Any, partitions: int) -> int:
    return sum(str(key).encode()) % partitions


# ---- element by element -----------------------------------------------------------------------------------------------


class Plus(MapFunction):
    """Adds to the number."""

    def __init__(self, by: int, in_place: bool = False) -> None:
        self.by, self.in_place = by, in_place

    def map(self, value: Any) -> Any:
        if self.in_place and type(value) is list:
            value[2] += self.by
            return value
        return value[0], value[1], value[2] + self.by


class Kept(MapFunction):
    """The element: for those that are equal one object, which the function keeps."""

    def open(self, runtime_context: Any) -> None:
        self.kept: dict[Any, Any] = {}

    def map(self, value: Any) -> Any:
        return self.kept.setdefault(tuple(value), value)


class Twice(FlatMapFunction):
    """The element, and the element with another number."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def flat_map(self, value: Any) -> Iterator[Any]:
        yield value
        if self.in_place and type(value) is list:
            value[2] += 50
            yield value
        else:
            yield value[0], value[1], value[2] + 50


class NoMultiple(FilterFunction):
    def __init__(self, of: int) -> None:
        self.of = of

    def filter(self, value: Any) -> bool:
        return value[2] % self.of != 0


class Split(ProcessFunction):
    """Odd numbers go to a side output; all numbers to the main output, one larger."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value[2] % 2:
            yield ODD, value
        if self.in_place and type(value) is list:
            value[2] += 1
            yield value
        else:
            yield value[0], value[1], value[2] + 1


class InFirstSubtask(ProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.first = runtime_context.get_index_of_this_subtask() == 0

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.first:
            yield value


class Told(ProcessFunction):
    """Names the stream and the timestamp of each element, for the judge."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield self.stream, ctx.timestamp(), tuple(value)


# ---- by key: state and timers -----------------------------------------------------------------------------------------


class Add(ReduceFunction):
    """Sums up numbers; the first key, the latest time."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def reduce(self, one: Any, other: Any) -> Any:
        if self.in_place and type(one) is type(other) is list:
            one[1] = max(one[1], other[1])
            one[2] += other[2]
            other[2] = -999
            return one
        return one[0], max(one[1], other[1]), one[2] + other[2]


class Follow(ReduceFunction):
    """Combines numbers so that their order shows."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def reduce(self, one: Any, other: Any) -> Any:
        if self.in_place and type(one) is type(other) is list:
            one[2] = (one[2] * 31 + other[2]) % 9973
            one[1] = other[1]
            other[2] = -999
            return one
        return one[0], other[1], (one[2] * 31 + other[2]) % 9973


class Sum(AggregateFunction):
    """Sums up [numbers, latest time, elements]; in place, and so that the result takes the accumulator apart."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def create_accumulator(self) -> Any:
        return [0, 0, 0]

    def add(self, value: Any, accumulator: Any) -> Any:
        changed = accumulator if self.in_place else [*accumulator]
        changed[0] += value[2]
        changed[1] = max(changed[1], value[1])
        changed[2] += 1
        if self.in_place and type(value) is list:
            value[2] = -999
        return changed

    def get_result(self, accumulator: Any) -> Any:
        number, time, count = accumulator
        if self.in_place:
            accumulator[:] = [-999, -999, -999]
        return "sum", time, number * 10 + count


class MergingSum(Sum):
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        changed = acc_a if self.in_place else [*acc_a]
        changed[0] += acc_b[0]
        changed[1] = max(acc_a[1], acc_b[1])
        changed[2] += acc_b[2]
        return changed


class Numbered(KeyedProcessFunction):
    """Numbers the elements of a key, with a state of each kind for what has come before."""

    def __init__(self, kind: str, typed: bool, ttl: bool = False) -> None:
        self.kind, self.typed, self.ttl = kind, typed, ttl

    def open(self, runtime_context: Any) -> None:
        long = Types.LONG() if self.typed else None
        descriptor: Any = {
            "value": lambda: ValueStateDescriptor("value", long),
            "list": lambda: ListStateDescriptor("list", long),
            "map": lambda: MapStateDescriptor("map", long or Types.PICKLED_BYTE_ARRAY(), long or Types.PICKLED_BYTE_ARRAY()),
            "reducing": lambda: ReducingStateDescriptor("reducing", lambda a, b: (a * 31 + b) % 9973, long),
            "aggregating": lambda: AggregatingStateDescriptor("aggregating", Sum(), None),
        }[self.kind]()
        if self.ttl:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(10**5)).build())
        self.state = getattr(runtime_context, f"get_{self.kind}_state" if self.kind != "value" else "get_state")(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        state, number = self.state, value[2]
        if self.kind == "value":
            result = ((state.value() or 0) * 31 + number) % 9973
            state.update(result)
        elif self.kind == "list":
            before = list(state.get() or [])
            if len(before) == 3:
                state.update(before[1:])
            state.add(number)
            result = sum(before) + number
        elif self.kind == "map":
            state.put(number % 3, (state.get(number % 3) or 0) + number)
            if number % 5 == 0:
                state.remove(number % 2)
            result = sum(state.values())
        elif self.kind == "reducing":
            state.add(number)
            result = state.get()
        else:
            state.add([*value])
            result = state.get()[2]
        if number % 11 == 0:
            state.clear()
        yield value[0], value[1], result


class Declared(Numbered):
    """Numbers the elements of a key by states that the class declares."""

    value = ValueState("value", int)
    list = ListState("list", int)
    map = MapState("map", int, int)
    reducing = ReducingState("reducing", lambda a, b: (a * 31 + b) % 9973, int)
    aggregating = AggregatingState("aggregating", Sum())

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, runtime_context: Any) -> None:
        self.state = getattr(self, self.kind)


class DeclaredExpiring(Declared):
    """Replaces the states by others, which have no type and expire."""

    ttl = StateTtlConfig.new_builder(Time.hours(10**5)).build()
    value = ValueState("of its own", ttl=ttl)
    list = ListState("list", ttl=ttl)
    map = MapState("map", ttl=ttl)


class Timers(KeyedProcessFunction):
    """At `delay` behind the end of each stretch of `size`: what came in it; each timer rings `again` times more.

    What has come in a stretch is kept in one of several kinds of state; a timer that is deleted must not ring; at the end of
    all time each key tells all that it has seen.
    """

    def __init__(self, size: int, delay: int, again: int, kind: str, in_place: bool = False) -> None:
        self.size, self.delay, self.again, self.kind, self.in_place = size, delay, again, kind, in_place

    def open(self, runtime_context: Any) -> None:
        self.stretches = runtime_context.get_map_state(
            MapStateDescriptor("stretches", Types.LONG(), Types.PICKLED_BYTE_ARRAY())
        )
        self.rings = runtime_context.get_map_state(MapStateDescriptor("rings", Types.LONG(), Types.LONG()))
        self.total: Any = None
        if self.kind == "list":
            self.total = runtime_context.get_list_state(ListStateDescriptor("all"))
        elif self.kind == "reducing":
            self.total = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        stretch = ctx.timestamp() // self.size
        found = self.stretches.get(stretch) or []
        due = (stretch + 1) * self.size + self.delay
        self.stretches.put(stretch, [*found, (value[1], value[2])])
        timers.register_event_time_timer(due)
        timers.register_event_time_timer(due + 3)
        timers.delete_event_time_timer(due + 3)
        if self.total is not None:
            self.total.add([value[1], value[2]] if self.kind == "list" else value[2])
            timers.register_event_time_timer(END)
        if self.in_place and type(value) is list:
            value[2] = -999
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        if timestamp == END:
            if self.kind == "list":
                yield made(self.in_place, key, -1, digest([(key, *each) for each in self.total.get()], False))
            else:
                yield made(self.in_place, key, -1, self.total.get())
            self.total.clear()
            return
        first = self.rings.get(timestamp)
        if first is None:
            stretch = (timestamp - self.delay) // self.size - 1
            found = self.stretches.get(stretch) or []
            yield made(self.in_place, key, stretch, digest([(key, *each) for each in found], False))
            self.stretches.remove(stretch)
            left = self.again
        else:
            self.rings.remove(timestamp)
            yield made(self.in_place, key, -2, first)
            left = first - 1
        if left:
            self.rings.put(timestamp + self.size * 1000 + 1, left)
            ctx.timer_service().register_event_time_timer(timestamp + self.size * 1000 + 1)


class Last(KeyedProcessFunction):
    """At the end of all time, the largest number of each key: the last of several results of one window."""

    def open(self, runtime_context: Any) -> None:
        self.best = runtime_context.get_state(ValueStateDescriptor("best"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.best.value() is None or value[2] > self.best.value()[2]:
            self.best.update(tuple(value))
        ctx.timer_service().register_event_time_timer(END)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self.best.value()
        self.best.clear()


# ---- processing time --------------------------------------------------------------------------------------------------


class Gathered(KeyedProcessFunction):
    """At the end of all time, all elements of a key; those that are alike once, or each."""

    def __init__(self, once: bool = False) -> None:
        self.once = once

    def open(self, runtime_context: Any) -> None:
        self.all = runtime_context.get_list_state(ListStateDescriptor("all"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.all.add((value[1], value[2]))
        ctx.timer_service().register_event_time_timer(END)
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        found = list(self.all.get())
        yield key, -1, digest([(key, *each) for each in (set(found) if self.once else found)], False)
        self.all.clear()


class Totals(KeyedProcessFunction):
    """At the end of all time, the sum of each key's numbers; or nothing, if it is told what it may be at most."""

    def __init__(self, most: dict[Any, int] | None) -> None:
        self.most = most

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_reducing_state(
            ReducingStateDescriptor("total", lambda one, other: one + other, Types.LONG())
        )

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.add(value[2])
        if self.most is None:
            ctx.timer_service().register_event_time_timer(END)
        elif self.total.get() > self.most[value[0]]:
            raise ValueError(f"{self.total.get()} of {value[0]} have come")
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), -1, self.total.get()
        self.total.clear()


class Waits(KeyedProcessFunction):
    """Elements wait for some processing time. At the end of all time, each key tells which have come.

    A timer that rings early, twice, or although it was deleted is an error.
    """

    def __init__(self, delay: int, in_place: bool = False) -> None:
        self.delay, self.in_place = delay, in_place

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", Types.LONG(), Types.PICKLED_BYTE_ARRAY()))
        self.rung = runtime_context.get_list_state(ListStateDescriptor("rung"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        due = timers.current_processing_time() // 2 * 2 + self.delay * 2  # even; odd ones are deleted
        self.waiting.put(due, [*(self.waiting.get(due) or []), (value[1], value[2])])
        timers.register_processing_time_timer(due)
        timers.register_processing_time_timer(due + 1)
        timers.delete_processing_time_timer(due + 1)
        timers.register_event_time_timer(END)
        if self.in_place and type(value) is list:
            value[2] = -999
        return iter(())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key, found, timers = ctx.get_current_key(), self.waiting.get(timestamp), ctx.timer_service()
        ended = timers.current_watermark() > END  # in BATCH mode they ring then, whatever their time
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            found = [each for some in self.waiting.values() for each in some]
            yield made(self.in_place, key, -1, digest([(key, *each) for each in [*found, *self.rung.get()]], False))
        elif found is None or (timestamp > timers.current_processing_time() and not ended):
            raise ValueError(f"the timer {timestamp} of {key} rings at {timers.current_processing_time()}")
        else:
            self.waiting.remove(timestamp)
            self.rung.add_all(found)


# ---- event time -------------------------------------------------------------------------------------------------------


class Punctuated(WatermarkGenerator):
    """The user's own watermarks: behind each even number."""

    def __init__(self) -> None:
        self.latest = 0

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.latest = max(self.latest, timestamp)
        if event[2] % 2 == 0:
            output.emit_watermark(self.latest - 1)


Selector = Callable[[Any], Any]
