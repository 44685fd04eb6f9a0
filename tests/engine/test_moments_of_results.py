"""When results come: above the last watermark that was forwarded, and for any cut of the input the same.

The first test finds the operators that emit when event time advances by introspection: a new one needs a program here.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from holdfast.cep import CEP, Pattern
from holdfast.common import Duration, Row, Time, Types, WatermarkStrategy
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    MergingWindowAssigner,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from holdfast.functions.aggregates import Count
from holdfast.runtime.operators.keyed import ChangelogProcess, KeyedBatchReduce
from holdfast.runtime.operators.stateless import _Sink
from holdfast.runtime.plan.operator import Operator
from holdfast.runtime.task import chain
from holdfast.table import BufferConfig, KStream, Suppressed
from holdfast.table.lateness import TimedProcess
from holdfast.table.windowed import _WindowedProcess
from holdfast.testing import InProcessEnvironment, TestSource


def ms(count: int) -> Time:
    return Time.milliseconds(count)


def key_of(value: Any) -> Any:
    return value[0]


class OnTimer:
    """Emits an element five milliseconds later."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    process_element1 = process_element2 = process_element

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        pass

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


class TimerOfKey(OnTimer, KeyedProcessFunction):
    pass


class TimerOfTwo(OnTimer, KeyedCoProcessFunction):
    pass


class TimerOfBroadcast(OnTimer, KeyedBroadcastProcessFunction):
    pass


class Alone(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield (left or right)[0], ctx.get_timestamp()


class Asked(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, context.window().max_timestamp()


Program = Callable[[Any, Any], Any]
"""Two streams of pairs of a key and a timestamp -> the stream of results."""


def windowed(assigner: Any, **options: Any) -> Program:
    def program(stream: Any, other: Any) -> Any:
        windows = stream.key_by(key_of).window(assigner)
        for name, option in options.items():
            windows = getattr(windows, name)(option)
        return windows.process(Listed())

    return program


def table_of(stream: Any) -> Any:
    return KStream.of(stream, key_of, lambda value: value[1]).to_table(history_retention=ms(20))


def with_grace(stream: Any, other: Any) -> Any:
    pairs = KStream.of(stream, key_of, lambda value: value[1])
    return pairs.left_join(table_of(other), lambda a, b: (a, b), grace_period=ms(4)).to_data_stream()


def suppressed(stream: Any, other: Any) -> Any:
    table = KStream.of(stream, key_of, lambda value: value[1]).to_table()
    return table.suppress(Suppressed.until_time_limit(ms(4), BufferConfig.unbounded())).to_changes()


def asked(stream: Any, other: Any) -> Any:
    return AsyncDataStream.unordered_wait(stream, Asked(), ms(10_000), 5, Types.PICKLED_BYTE_ARRAY())


def broadcast(stream: Any, other: Any) -> Any:
    rules = other.broadcast(MapStateDescriptor("rules", Types.STRING(), Types.STRING()))
    return stream.key_by(key_of).connect(rules).process(TimerOfBroadcast())


def outer_join(stream: Any, other: Any) -> Any:
    return stream.key_by(key_of).interval_join(other.key_by(key_of)).between(ms(-2), ms(4)).full_outer().process(Alone())


class TimerOfSpark(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            if row.at > timerValues.getCurrentWatermarkInMs():
                self.handle.registerTimer(row.at + 5)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield SparkRow(key=key[0], at=expiredTimerInfo.getExpiryTimeInMs())


def as_in_spark(call_mode: str) -> Program:
    def program(stream: Any, other: Any) -> Any:
        rows = stream.map(lambda value: Row(key=value[0], at=value[1])).key_by(lambda row: row.key)
        return rows.transform_with_state(TimerOfSpark(), "key string, at long", "EventTime", call_mode=call_mode)

    return program


PROGRAMS: dict[str, Program] = {
    "AlignedWindows": windowed(TumblingEventTimeWindows.of(ms(7))),
    "PanedWindows": windowed(SlidingEventTimeWindows.of(ms(9), ms(4))),
    "ColumnWindows": lambda stream, _: stream.key_by(key_of).window(TumblingEventTimeWindows.of(ms(7))).agg(n=Count()),
    "ColumnPanes": lambda stream, _: stream.key_by(key_of).window(SlidingEventTimeWindows.of(ms(9), ms(4))).agg(n=Count()),
    "TriggeredWindows": windowed(TumblingEventTimeWindows.of(ms(7)), evictor=CountEvictor.of(9)),
    "MergingWindows": windowed(EventTimeSessionWindows.with_gap(ms(3)), evictor=CountEvictor.of(9)),
    "EventTimeSessions": windowed(EventTimeSessionWindows.with_gap(ms(3))),
    "KeyedProcess": lambda stream, _: stream.key_by(key_of).process(TimerOfKey()),
    "KeyedCoProcess": lambda a, b: a.key_by(key_of).connect(b.key_by(key_of)).process(TimerOfTwo()),
    "KeyedBroadcastProcess": broadcast,
    "CepOperator": lambda stream, _: CEP.pattern(stream.key_by(key_of), Pattern.begin("a")).select(
        lambda found: found["a"][0]
    ),
    "_IntervalJoin": outer_join,
    "_TemporalJoin": lambda a, b: a.key_by(key_of).temporal_join(b.key_by(key_of)).left_outer().apply(lambda a, b: (a, b)),
    "_VersionedJoin": with_grace,
    "SuppressProcess": suppressed,
    "_AsyncWait": asked,
    "TransformWithState": as_in_spark("record"),
    "TransformEpochs": as_in_spark("epoch"),
}
"""By operator."""
WITHOUT = {
    chain.Operator: "forwards only",
    KeyedBatchReduce: "emits at the end of the input",
    _Sink: "emits nothing",
    ChangelogProcess: "functions of ours without timers",
    TimedProcess: "its function emits nothing when event time advances",
    _WindowedProcess: "its functions emit nothing when event time advances",
}


def operators(base: type[Operator] = Operator) -> Iterator[type[Operator]]:
    for each in base.__subclasses__():
        if each.__module__.startswith("holdfast."):
            yield each
            yield from operators(each)


def test_each_operator_that_emits_when_event_time_advances_has_a_program():
    for package in ("cep", "datastream", "runtime.operators", "spark", "table"):
        module = importlib.import_module(f"holdfast.{package}")
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            importlib.import_module(found.name)
    advancing = {each.__name__ for each in operators() if each.advance_watermark is not Operator.advance_watermark}
    generators = {"_Timestamps", "_OwnWatermarks"}  # they drop the watermarks of their input
    assert advancing - generators - {each.__name__ for each in WITHOUT} == set(PROGRAMS)


ELEMENTS = [(key, at - back) for seed in [random.Random(3)] for at in range(10, 60, 2)
            for key, back in [(seed.choice("ab"), seed.choice([0, 0, 1, 2, 3]))]]  # fmt: skip


def times(delay: int) -> Any:
    strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(delay))
    return strategy.with_timestamp_assigner(lambda value, _: value[1])


@pytest.mark.parametrize("name", PROGRAMS)
def the_timestamp_of_a_result_is_above_the_last_forwarded_watermark(name, monkeypatch):
    forwarded: dict[Any, int] = {}
    checked: Counter[str] = Counter()
    late: list[Any] = []
    forward, emitting = chain._Node.forward, chain._Node.emitting

    def forwarding(node: Any, watermark: int) -> None:
        forwarded[node] = watermark
        forward(node, watermark)

    def checking(node: Any, emit: Any) -> Any:
        emit = emitting(node, emit)

        def check(batch: Any) -> None:
            if (node.fires or node.holds_watermarks) and batch.values:
                if min(batch.timestamps) <= forwarded.get(node, MIN_TIMESTAMP):
                    late.append((type(node.operator).__name__, batch, forwarded[node]))  # an error would restart the job
                checked[type(node.operator).__name__] += len(batch.values)
            emit(batch)

        return check

    monkeypatch.setattr(chain._Node, "forward", forwarding)
    monkeypatch.setattr(chain._Node, "emitting", checking)
    env = InProcessEnvironment().set_parallelism(2)
    inputs = {"one": ELEMENTS, "two": ELEMENTS[::5]}
    streams = [env.from_source(TestSource(each, epoch=1), times(3), uid).uid(uid) for uid, each in inputs.items()]
    with PROGRAMS[name](*streams).execute_and_collect() as results:
        assert list(results)
    assert late == []
    assert checked[name] > 3


# ---- for any cut the same ---------------------------------------------------------------------------------------------

CUTS: list[dict[str, Any]] = [{"epoch": None}, {"epoch": 3}, {"epoch": 2}, {"epoch": 1}, {"epoch": None, "batch": "1"}]
LATE = OutputTag("late")


def judged(stamps: list[int], windows: Callable[[Any], Any], cut: dict[str, Any]) -> list[Any]:
    """The windows' elements, and those that are late."""
    env = InProcessEnvironment()
    if "batch" in cut:
        env._configuration.set_string("holdfast.batch.records", cut["batch"])
    values = [("k", stamp, str(number)) for number, stamp in enumerate(stamps)]
    stream = env.from_source(TestSource(values, epoch=cut["epoch"]), times(100), "source")
    told = windows(stream.key_by(key_of)).side_output_late_data(LATE).process(Numbers())
    late = told.get_side_output(LATE).map(lambda value: ("late", value[2]))
    with told.union(late).execute_and_collect() as results:
        return sorted(results, key=repr)


class Numbers(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield context.window().start, context.window().end, [element[2] for element in elements]


class Own(WindowAssigner):
    """Tumbling windows of a second, made by a user."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        start = timestamp - timestamp % 1_000
        return [TimeWindow(start, start + 1_000)]

    def get_default_trigger(self, env: Any) -> Any:
        return EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        return None

    def is_event_time(self) -> bool:
        return True


class OwnSessions(Own, MergingWindowAssigner):
    """Sessions with a gap of 250 ms, made by a user."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(timestamp, timestamp + 250)]

    def merge_windows(self, windows: Any, callback: Any) -> None:
        TimeWindow.merge_windows(windows, callback.merge)


GAPS = SlidingEventTimeWindows.of(ms(900), ms(1_500))
JUDGED: dict[str, tuple[list[int], Any, list[Any]]] = {
    "a repeated session": ([300, 1100, 300], lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(ms(250))), ["2"]),
    "a repeated session with an evictor": (
        [300, 1100, 300],
        lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(ms(250))).evictor(CountEvictor.of(9)),
        ["2"],
    ),
    "an own assigner": ([100, 5000, 300, 1200, 6100], lambda keyed: keyed.window(Own()), ["2", "3"]),
    "own sessions": ([300, 1100, 300, 1000, 760], lambda keyed: keyed.window(OwnSessions()), ["2"]),
    "own sessions beside two that stay apart": ([0, 500, 200, 700], lambda keyed: keyed.window(OwnSessions()), []),
    "own sessions that touch the later of two": ([0, 500, 200, 440], lambda keyed: keyed.window(OwnSessions()), []),
    "between two windows": ([100, 1300, 1000, 6100], lambda keyed: keyed.window(GAPS), ["2"]),
    "between two windows with a trigger": (
        [100, 1300, 1000, 6100],
        lambda keyed: keyed.window(GAPS).trigger(CountTrigger.of(1)),
        ["2"],
    ),
}


@pytest.mark.parametrize("what", JUDGED)
def the_same_elements_are_late_for_any_window_however_the_input_is_cut(what):
    stamps, windows, late = JUDGED[what]
    expected, *others = (judged(stamps, windows, cut) for cut in CUTS)
    assert others == [expected] * len(others)
    assert [number for kind, number, *_ in expected if kind == "late"] == late


class Text(AggregateFunction):
    def create_accumulator(self) -> str:
        return ""

    def add(self, value: Any, accumulator: str) -> str:
        return accumulator + value[2]

    def get_result(self, accumulator: str) -> str:
        return accumulator

    def merge(self, first: str, second: str) -> str:
        return first + second


@pytest.mark.parametrize("cut", CUTS, ids=str)
def the_elements_of_one_split_and_pane_keep_their_order_in_windows_that_overlap(cut):
    """The second and the third are late for the first of their windows; by some cuts it has fired between the two."""

    class Start(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
            yield context.window().start, *elements

    env = InProcessEnvironment()
    if "batch" in cut:
        env._configuration.set_string("holdfast.batch.records", cut["batch"])
    values = [("k", 800, "a"), ("k", 151, "b"), ("k", 151, "c"), ("k", 5_000, "d")]
    keyed = env.from_source(TestSource(values, epoch=cut["epoch"]), times(100), "source").key_by(key_of)
    with keyed.window(SlidingEventTimeWindows.of(ms(900), ms(400))).aggregate(Text(), Start()).execute_and_collect() as told:
        (first,) = [text for start, text in told if start == 0]
    assert first == "bca"


class Spans(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, context.window().start, context.window().end, len(list(elements))


@pytest.mark.parametrize("parallelism", [1, 2])
def the_sessions_of_results_that_touch_stay_two_and_those_that_overlap_become_one_however_the_input_is_cut(parallelism):
    """A result comes just before the watermark of its time, and so behind a session that has ended by then."""
    stamps = [5, 15, 19, 28, 60]
    found = set()
    for cut in CUTS:
        env = InProcessEnvironment().set_parallelism(parallelism)
        values = [("k" if number in (0, 1, 3) else "other", stamp, 1) for number, stamp in enumerate(stamps)]
        stream = env.from_source(TestSource(values, epoch=cut["epoch"]), times(0), "source")
        tens = stream.key_by(key_of).window(TumblingEventTimeWindows.of(ms(10))).process(Listed())
        sessions = tens.key_by(key_of).window(EventTimeSessionWindows.with_gap(ms(10))).process(Spans())
        overlapping = tens.key_by(key_of).window(EventTimeSessionWindows.with_gap(ms(11))).process(Spans())
        with sessions.union(overlapping).execute_and_collect() as results:
            found.add(tuple(sorted(result[1:] for result in results if result[0] == "k")))
    assert found == {((9, 19, 1), (9, 40, 3), (19, 29, 1), (29, 39, 1))}
