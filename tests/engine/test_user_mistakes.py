"""Mistakes in users' functions that only show when they run: the message says what is wrong and what to do."""

from __future__ import annotations

import os
import re
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    EventTimeSessionWindows,
    EventTimeTrigger,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    SessionWindowTimeGapExtractor,
    StateTtlConfig,
    Trigger,
    TriggerResult,
    WindowAssigner,
)
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.testing import InProcessEnvironment

from .inprocess import LEDGERS, Lab, LedgerSink

BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)


def results(build: Any) -> list[Any]:
    """What the stream that ``build(stream of 1, 2)`` returns holds."""

    def program(env: Any) -> None:
        build(env.from_collection([1, 2]).assign_timestamps_and_watermarks(BY_VALUE)).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    with tempfile.TemporaryDirectory() as directory:
        job = Lab(program, Path(directory), parallelism=1)
        try:
            job.run([])
        finally:
            job.close()
    return list(LEDGERS["out"].values)


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value


class Keyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value


class OnTimer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return timestamp


class Window(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return elements[0]


@pytest.mark.parametrize(
    ("build", "where"),
    [
        (lambda ds: ds.flat_map(lambda v: v), "'FlatMap'"),
        (lambda ds: ds.process(Plain()), "'Process'"),
        (lambda ds: ds.key_by(lambda v: v).flat_map(lambda v: v), "'FlatMap'"),
        (lambda ds: ds.key_by(lambda v: v).process(Keyed()), "'KeyedProcess'"),
        (lambda ds: ds.key_by(lambda v: v).process(OnTimer()), "'KeyedProcess'"),
        (
            lambda ds: ds.key_by(lambda v: v).window(TumblingEventTimeWindows.of(Time.seconds(1))).process(Window()),
            "'Window",
        ),
    ],
    ids=["flat_map", "process", "keyed flat_map", "keyed process", "on_timer", "window"],
)
def test_a_function_that_returns_one_element_instead_of_several_is_advised_to_yield_it(build, where):
    with pytest.raises(UserCodeError) as failure:
        results(build)
    message = str(failure.value)
    assert "TypeError: the function returned 1 of type int, which is not iterable: yield each element" in message
    assert f"in operator {where}" in message
    assert "holdfast" not in message.split("in operator")[0]


def test_an_error_within_a_generator_is_reported_unchanged():
    def broken(value: int) -> Any:
        yield value
        yield from value  # type: ignore[misc]

    with pytest.raises(UserCodeError, match=r"yield from value[\s\S]*TypeError: 'int' object is not iterable"):
        results(lambda ds: ds.flat_map(broken))


def test_a_side_outputs_tag_goes_with_one_value():
    tag = OutputTag("side")
    with pytest.raises(UserCodeError, match=r"a side output takes pairs \(tag, value\), got \(OutputTag\('side'\), 1, 2\)"):
        results(lambda ds: ds.flat_map(lambda v: [(tag, v, 2)]).get_side_output(tag))


def test_a_list_state_may_grow_while_it_is_read():
    class Doubling(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.seen.add(value)
            for each in islice(self.seen.get(), 10):
                self.seen.add(each * 10)
            yield list(self.seen.get())

    assert results(lambda ds: ds.key_by(lambda v: 0).process(Doubling())) == [[1, 10], [1, 10, 2, 10, 100, 20]]


class Breaking(LedgerSink):
    def create_writer(self, context: Any) -> Any:
        writer = super().create_writer(context)
        write = writer.write

        def breaking(values: Any, timestamps: Any) -> None:
            write([100 // (value - 2) for value in values], timestamps)

        writer.write = breaking
        return writer


def test_a_record_that_a_sink_cannot_write_is_named():
    def program(env: Any) -> None:
        env.from_collection([1, 2, 3]).sink_to(Breaking("out"))

    LEDGERS["out"].committed.clear()
    with tempfile.TemporaryDirectory() as directory:
        job = Lab(program, Path(directory), parallelism=1)
        with pytest.raises(UserCodeError, match="ZeroDivisionError") as failure:
            job.run([])
        job.close()
    assert "element: 2" in str(failure.value)


@pytest.mark.parametrize("target", [0.5, "0", None, 1, -1])
def test_a_partitioner_without_a_valid_partition_is_reported_with_its_record(target):
    with pytest.raises(UserCodeError) as failure:
        results(lambda ds: ds.partition_custom(lambda key, n: 0 if key == 1 else target, lambda v: v).map(lambda v: v))
    message = str(failure.value)
    assert f"the partitioner returned {target!r} for the key 2; it must return a whole number from 0 to 0" in message
    assert "record: collection, value 1" in message


@pytest.mark.parametrize("spread", ["key_by", "partition_custom"])
def test_a_function_between_operators_that_exits_is_an_error_like_any_other(spread):
    def leave(value: Any, count: int = 0) -> Any:
        raise SystemExit(3)

    def build(ds: Any) -> Any:
        return (ds.key_by(leave) if spread == "key_by" else ds.partition_custom(leave, lambda v: v)).map(lambda v: v)

    with pytest.raises(UserCodeError, match=r"in leave[\s\S]*SystemExit: 3\n  in operator"):
        results(build)


def test_an_error_is_reported_with_its_cause():
    def parse(value: int) -> Any:
        try:
            return {}[value]
        except KeyError as error:
            raise ValueError("no such thing") from error

    with pytest.raises(UserCodeError) as failure:
        results(lambda ds: ds.map(parse))
    message = str(failure.value)
    assert message.index("KeyError: 1") < message.index("direct cause") < message.index("ValueError: no such thing")
    assert message.startswith("Traceback (most recent call last):")
    assert "stateless.py" not in message


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no text")


def test_an_element_that_has_no_text_does_not_hide_the_error():
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError[\s\S]*element: <Unprintable without a text>"):
        results(lambda ds: ds.map(lambda v: Unprintable()).map(lambda v: 1 / 0))


class Forgetful(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> None:
        accumulator.append(value)

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator


class Aggregating(KeyedProcessFunction):
    def __init__(self, time_to_live: bool) -> None:
        self.time_to_live = time_to_live

    def descriptor(self) -> Any:
        return AggregatingStateDescriptor("seen", Forgetful())

    def open(self, runtime_context: Any) -> None:
        descriptor = self.descriptor()
        if self.time_to_live:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        reducing = isinstance(descriptor, ReducingStateDescriptor)
        get = runtime_context.get_reducing_state if reducing else runtime_context.get_aggregating_state
        self.seen = get(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.add(value)
        yield self.seen.get()


class Reducing(Aggregating):
    def descriptor(self) -> Any:
        return ReducingStateDescriptor("seen", lambda a, b: None)


SECONDS = TumblingEventTimeWindows.of(Time.seconds(1))


@pytest.mark.parametrize(
    ("build", "method"),
    [
        (lambda ds: ds.window(SECONDS).aggregate(Forgetful()), r"add\(\)"),
        (lambda ds: ds.window(SECONDS).reduce(lambda a, b: None), "the reduce function"),
        (lambda ds: ds.process(Aggregating(False)), r"add\(\)"),
        (lambda ds: ds.process(Aggregating(True)), r"add\(\)"),
        (lambda ds: ds.process(Reducing(False)), "the reduce function"),
        (lambda ds: ds.process(Reducing(True)), "the reduce function"),
    ],
    ids=["window aggregate", "window reduce", "aggregating", "aggregating ttl", "reducing", "reducing ttl"],
)
def test_an_aggregation_without_a_return_is_advised_to_return_its_result(build, method):
    with pytest.raises(UserCodeError, match=rf"{method} returned None[\s\S]*record: collection, value"):
        results(lambda ds: build(ds.key_by(lambda v: 0)))


class Nonsense(Trigger):
    """A trigger whose method of this name returns a value that is none."""

    def __init__(self, method: str, value: Any) -> None:
        self.method = method
        self.value = value

    def _result(self, method: str) -> Any:
        return self.value if method == self.method else TriggerResult.CONTINUE

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(window.max_timestamp())
        return self._result("on_element")

    def on_event_time(self, time: int, window: Any, ctx: Any) -> Any:
        return self._result("on_event_time")

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> Any:
        return self._result("on_processing_time")

    def on_merge(self, window: Any, ctx: Any) -> None:
        pass

    def can_merge(self) -> bool:
        return True

    def clear(self, window: Any, ctx: Any) -> None:
        pass


class NoWindows(WindowAssigner):
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return self.returned

    def get_default_trigger(self, env: Any) -> Any:
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        return True


class NoTime(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer("soon")


class NoGap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> Any:
        return "long"


class One(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        return left


SESSIONS = EventTimeSessionWindows.with_gap(Time.seconds(1))
ELEMENT = "element: 1\n  record: collection, value 0"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda ds: ds.window(SECONDS).trigger(Nonsense("on_element", True)).reduce(max),
            f"on_element() of the trigger .* returned True; it must return a TriggerResult|{ELEMENT}",
        ),
        (
            lambda ds: ds.window(SESSIONS).trigger(Nonsense("on_event_time", None)).reduce(max),
            "on_event_time() of the trigger .* returned None; it must return a TriggerResult|element: 'timer 1001 of",
        ),
        (
            lambda ds: ds.window(NoWindows(None)).reduce(max),
            f"assign_windows() of .*NoWindows.* returned None; it must return a list of windows|{ELEMENT}",
        ),
        (
            lambda ds: ds.window(NoWindows([7])).reduce(max),
            f"the assigner returned 7; windows are TimeWindow, CountWindow and GlobalWindow objects|{ELEMENT}",
        ),
        (
            lambda ds: ds.window(EventTimeSessionWindows.with_dynamic_gap(NoGap())).reduce(max),
            f"the gap extractor returned 'long'; a session's gap must be a positive number of ms|{ELEMENT}",
        ),
        (
            lambda ds: ds.interval_join(ds).between(Time.seconds(0), Time.seconds(1)).process(One()),
            "the function returned 1 of type int, which is not iterable: yield each element, or return a list|element: 1",
        ),
        (
            lambda ds: ds.process(NoTime()),
            f"a timer's time must be an integer, in ms since the epoch; got 'soon'|{ELEMENT}",
        ),
    ],
    ids=["trigger", "trigger at a timer", "no windows", "other windows", "session gap", "join", "timer"],
)
def a_mistake_that_is_recognised_is_told_in_few_lines(build, message):
    with pytest.raises(UserCodeError) as failure:
        results(lambda ds: build(ds.key_by(lambda v: "k")).uid("mine"))
    found, place = str(failure.value), message.split("|")
    assert re.search(re.escape(place[0]).replace(r"\.\*", ".*"), found), found
    assert place[1] in found
    assert "(uid 'mine')\n  key: 'k'\n" in found
    assert os.path.dirname(holdfast.__file__) not in found, found


def an_error_within_holdfast_is_told_with_all_its_frames():
    with pytest.raises(UserCodeError, match=r"aggregations.py[\s\S]*TypeError: unsupported operand") as failure:
        results(lambda ds: ds.map(lambda v: (v, None)).key_by(lambda v: 0).sum(1))
    assert "in operator 'Sum'" in str(failure.value)


def test_rules_without_timestamps_may_be_broadcast_to_a_stream_of_event_time() -> None:
    limits = MapStateDescriptor("limits", Types.STRING(), Types.LONG())

    class Above(BroadcastProcessFunction):
        def process_broadcast_element(self, value: Any, ctx: Any) -> None:
            ctx.get_broadcast_state(limits).put(*value)

        def process_element(self, value: Any, ctx: Any) -> Any:
            if value[1] > ctx.get_broadcast_state(limits)[value[0]]:
                yield value

    env = InProcessEnvironment().set_parallelism(1)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda element, _: element[2])
    rules = env.from_collection([("food", 5)]).broadcast(limits)
    payments = env.from_collection([("food", 10, 1000), ("food", 3, 2000)]).assign_timestamps_and_watermarks(times)
    windows = payments.connect(rules).process(Above()).key_by(lambda payment: payment[0])
    sums = windows.window(TumblingEventTimeWindows.of(Time.minutes(1))).reduce(lambda a, b: a)
    with sums.execute_and_collect() as results:
        assert list(results) == [("food", 10, 1000)]
    untimed = env.from_collection([("food", 10)]).connect(rules).process(Above()).key_by(lambda payment: payment[0])
    untimed.window(TumblingEventTimeWindows.of(Time.minutes(1))).reduce(lambda a, b: a).print()
    with pytest.raises(ConfigurationError, match="have no timestamps"):
        env.execute("untimed")
