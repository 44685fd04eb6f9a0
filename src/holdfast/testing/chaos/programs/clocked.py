"""The clocked job: late records, watermarks in mid-chain, idle splits, windows and timers of processing time, TTL.

Its input is numbered by key. Late records and event-time windows depend on the input alone. For results of processing
time, every record must take effect exactly once, and the reported times must be consistent.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.source.source import KafkaSource
from holdfast.datastream import (
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from holdfast.testing.chaos.topics import Given

__all__ = ["EVENTS_PARTITIONS", "LULLS_PARTITIONS", "Events", "Lulls", "build", "problems", "sent"]

EVENTS_PARTITIONS, LULLS_PARTITIONS = 3, 2
_KEYS = 30
_SPEED = 10
"""Event time runs this many times faster than the clock."""
_DELAY_MS = 2_000
_SIZE_MS = 5_000
_HOUR_MS = 3_600_000
_TICK_MS = 20
_TTL_MS = 300
_LOUD, _ALARM = 40, 5
"""One in this many of a key's records passes the filter, or sets a timer."""
_QUIET = 100
"""The first records never pass the filter: drivers come and go before the watermark generator sees a record."""
_SLOWER = 100
"""The event time of the watermark generator in mid-chain is this many times slower than the source's."""
_FIRST_MS = 1
"""The first timestamp that the sink can write: for its client, 0 means now."""
_END = "end"

Event = tuple[str, int, int, int]
"""Key, number (1, 2, 3, ... per key), event time in ms, send time (wall clock, ms)."""

_LATE = OutputTag("late")


# ---- the job -------------------------------------------------------------------------------------------------------------


class _Timed(KeyedProcessFunction):
    """Emits the content of its expiring state, and sets processing-time timers."""

    def open(self, runtime_context: Any) -> None:
        last = ValueStateDescriptor("last", Types.LONG())
        last.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(_TTL_MS)).build())
        self.last = runtime_context.get_state(last)
        self.alarms = runtime_context.get_map_state(MapStateDescriptor("alarms", Types.LONG(), Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Event, ctx: Any) -> Iterator[Any]:
        key, number, _, _ = value
        now = ctx.timer_service().current_processing_time()
        yield "ttl", key, number, now, self.last.value()
        self.last.update(number)
        if number % _ALARM == 0:
            due = now + 50 + 37 * (number % 7)
            self.alarms.put(due, [*(self.alarms.get(due) or ()), number])
            ctx.timer_service().register_processing_time_timer(due)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        now = ctx.timer_service().current_processing_time()
        yield "alarm", ctx.get_current_key(), timestamp, now, self.alarms.get(timestamp)
        self.alarms.remove(timestamp)


class _Named(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits the records of a window."""

    def __init__(self, what: str) -> None:
        self._what = what

    def process(self, key: str, context: Any, elements: Iterable[Event]) -> Iterator[Any]:
        members = list(elements)
        numbers = [[record[0], record[1]] for record in members]
        yield self._what, key, context.window().start, numbers, max(record[3] for record in members)


def _event(data: bytes) -> Event:
    key, number, event_time, sent_at = orjson.loads(data)
    return key, number, event_time, sent_at


def _is_loud(number: int) -> bool:
    return number > _QUIET and number % _LOUD == 0


def _slow_time(record: Event, _: int) -> int:
    return 24 * _HOUR_MS if record[0].startswith(_END) else record[2] // _SLOWER


def build(env: StreamExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Add the job to an environment.

    Settings: ``events``, ``lulls`` and ``out`` are the topics, ``source`` and ``sink`` the properties of the Kafka clients.
    """
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(_DELAY_MS))
    bounded = bounded.with_timestamp_assigner(lambda record, _: record[2])
    sources = {
        name: KafkaSource(
            properties=settings["source"],
            group_id=f"chaos-{name}",
            topics=settings[name],
            value_only_deserializer=_event,
        )
        for name in ("events", "lulls")
    }
    events = env.from_source(sources["events"], bounded, "events").uid("events")
    lulls = env.from_source(sources["lulls"], bounded.with_idleness(Duration.of_millis(500)), "lulls").uid("lulls")

    def windows(stream: Any, what: str, size: int) -> list[Any]:
        keyed = stream.key_by(lambda record: record[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(size)))
        fired = keyed.side_output_late_data(_LATE).process(_Named(what)).uid(what).name(what)
        return [fired, fired.get_side_output(_LATE).map(lambda record: (f"late {what}", record[0], record[1]))]

    loud = events.filter(lambda record: _is_loud(record[1]) or record[0].startswith(_END))
    own_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(600_000))
    slow = loud.assign_timestamps_and_watermarks(own_time.with_timestamp_assigner(_slow_time))
    ticking = TumblingProcessingTimeWindows.of(Time.milliseconds(_TICK_MS))
    ticks = events.key_by(lambda record: record[0][-1]).window(ticking).process(_Named("tick")).uid("tick")
    timed = events.key_by(lambda record: record[0]).process(_Timed()).uid("timed")
    parts = [
        timed,
        ticks,
        *windows(events, "window", _SIZE_MS),
        *windows(slow, "slow", 1000),
        *windows(lulls, "lull", _SIZE_MS),
    ]
    serializer = RecordSerializer(settings["out"], value_schema=orjson.dumps, key_schema=lambda output: output[1].encode())
    sink = KafkaSink(
        properties=settings["sink"],
        record_serializer=serializer,
        delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
        transactional_id_prefix=settings["out"],
    )
    parts[0].union(*parts[1:]).sink_to(sink).uid("out").name("out")


# ---- the input -----------------------------------------------------------------------------------------------------------


class Events:
    """Input with event time from 0; some records are out of bound, and one partition pauses now and then."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers: Counter[int] = Counter()
        self._time = 0

    def next(self, seconds: float) -> Given:
        """The next record."""
        draw = self._random
        key = draw.randrange(_KEYS)
        while key % EVENTS_PARTITIONS == EVENTS_PARTITIONS - 1 and seconds % 5 > 3:
            key = draw.randrange(_KEYS)
        self._numbers[key] += 1
        self._time = int(seconds * 1000 * _SPEED)
        behind = draw.randrange(_DELAY_MS) if draw.random() < 0.95 else draw.randrange(_DELAY_MS, 8 * _SIZE_MS)
        return _given(f"k{key}", self._numbers[key], max(0, self._time - behind), key % EVENTS_PARTITIONS)

    def last(self) -> Iterator[Given]:
        """One record per partition, an hour later."""
        for partition in range(EVENTS_PARTITIONS):
            yield _given(f"{_END}{partition}", 1, self._time + _HOUR_MS, partition)


class Lulls:
    """Input with one steady partition, and one with only occasional records."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers: Counter[int] = Counter()
        self._time = 0

    def next(self, seconds: float) -> Given:
        """The next record."""
        partition = int(self._random.random() < 0.01)
        self._numbers[partition] += 1
        self._time = int(seconds * 1000 * _SPEED)
        return _given(f"q{partition}", self._numbers[partition], self._time, partition)

    def last(self) -> Iterator[Given]:
        """One record per partition, an hour later."""
        for partition in range(LULLS_PARTITIONS):
            yield _given(f"{_END}{partition}", 1, self._time + _HOUR_MS, partition)


def _given(key: str, number: int, event_time: int, partition: int) -> Given:
    return Given(partition, orjson.dumps((key, number, event_time, time.time_ns() // 1_000_000)))


def sent(output: Sequence[Any]) -> tuple[str, int] | None:
    """The kind of an output and its input's send time; None if the output lacks it."""
    return (output[0], output[4]) if output[0] in ("tick", "lull") else None


# ---- the model -----------------------------------------------------------------------------------------------------------


def problems(
    events: Sequence[Sequence[Event]], lulls: Sequence[Sequence[Event]], written: Iterable[tuple[Sequence[Any], int]]
) -> list[str]:
    """Check the visible outputs with their timestamps, per partition in order of offset; returns the problems found."""
    outputs: dict[str, list[tuple[Sequence[Any], int]]] = defaultdict(list)
    for output, timestamp in written:
        outputs[output[0]].append((output, timestamp))
    return [
        *_event_time(events, outputs),
        *_once("windows of the generator in mid-chain", _loud(events), _members(outputs["slow"])),
        *_none("late behind the generator in mid-chain", outputs["late slow"]),
        *_once("windows with idle splits", _names(lulls), _members(outputs["lull"]) + _late(outputs["late lull"])),
        *_once("windows of processing time", _names(events), _members(outputs["tick"])),
        *_each_once("results of windows of processing time", [(o[1], o[2]) for o, _ in outputs["tick"]]),
        *_alarms(events, outputs["alarm"]),
        *_ttl(events, outputs["ttl"]),
    ]


def _event_time(events: Sequence[Sequence[Event]], outputs: dict[str, list[tuple[Sequence[Any], int]]]) -> list[str]:
    """A record is late if an earlier one of its split is far enough ahead; windows contain all others."""
    windows: dict[tuple[str, int], list[list[Any]]] = defaultdict(list)
    late: Counter[tuple[str, int]] = Counter()
    watermark = min(max((event[2] for event in part), default=0) for part in events) - _DELAY_MS - 1
    for part in events:
        newest = -1
        for key, number, event_time, _ in part:
            start = event_time - event_time % _SIZE_MS
            if newest >= start + _SIZE_MS + _DELAY_MS:
                late[key, number] += 1
            elif start + _SIZE_MS - 1 <= watermark:
                windows[key, start].append([key, number])
            newest = max(newest, event_time)
    found = Counter((o[1], o[2], repr(o[3])) for o, _ in outputs["window"])
    expected = Counter((key, start, repr(members)) for (key, start), members in windows.items())
    stamped = [(o, at) for o, at in outputs["window"] if at != o[2] + _SIZE_MS - 1]
    return [
        *_difference("windows of event time", expected, found),
        *_difference("late records", late, _late(outputs["late window"])),
        *_none("windows of event time with another timestamp than their end's", stamped),
    ]


def _alarms(events: Sequence[Sequence[Event]], found: list[tuple[Sequence[Any], int]]) -> list[str]:
    expected = Counter({name: n for name, n in _names(events).items() if name[1] % _ALARM == 0})
    fired = Counter((o[1], number) for o, _ in found for number in o[4] or [None])
    early = [(o, at) for o, at in found if o[3] < o[2]]
    return [*_once("timers of processing time", expected, fired), *_none("timers that fired early", early)]


def _ttl(events: Sequence[Sequence[Event]], found: list[tuple[Sequence[Any], int]]) -> list[str]:
    """Expired content must not show, all other content must; a key's records keep order and timestamps."""
    times = {(event[0], event[1]): event[2] for part in events for event in part}
    before: dict[str, tuple[int, int]] = {}
    wrong = []
    stamped = []
    for (_, key, number, now, shown), timestamp in found:
        last, at = before.get(key, (0, 0))
        if number != last + 1 or now < at or shown != (last if last and now < at + _TTL_MS else None):
            wrong.append(((key, number, now, shown, "after", last, at), 0))
        if timestamp != max(times.get((key, number), 0), _FIRST_MS):
            stamped.append(((key, number, timestamp), 0))
        before[key] = number, now
    return [
        *_once("records with expiring state", _names(events), Counter((o[1], o[2]) for o, _ in found)),
        *_none("records whose expiring state shows what it must not", wrong),
        *_none("records with another timestamp than that of their input", stamped),
    ]


def _names(parts: Sequence[Sequence[Event]]) -> Counter[tuple[str, int]]:
    return Counter((event[0], event[1]) for part in parts for event in part if not event[0].startswith(_END))


def _loud(parts: Sequence[Sequence[Event]]) -> Counter[tuple[str, int]]:
    return Counter({name: n for name, n in _names(parts).items() if _is_loud(name[1])})


def _members(found: list[tuple[Sequence[Any], int]]) -> Counter[tuple[str, int]]:
    return Counter((key, number) for output, _ in found for key, number in output[3])


def _late(found: list[tuple[Sequence[Any], int]]) -> Counter[tuple[str, int]]:
    return Counter((output[1], output[2]) for output, _ in found)


def _once(what: str, expected: Counter[tuple[str, int]], found: Counter[Any]) -> list[str]:
    return _difference(what, expected, Counter({name: n for name, n in found.items() if not name[0].startswith(_END)}))


def _each_once(what: str, found: list[Any]) -> list[str]:
    return _none(f"{what}, more than one each", [(name, n) for name, n in Counter(found).items() if n > 1])


def _none(what: str, found: Sequence[tuple[Any, int]]) -> list[str]:
    return [f"{len(found)} {what}: {', '.join(repr(one) for one, _ in found[:4])}"] if found else []


def _difference(what: str, expected: Counter[Any], found: Counter[Any]) -> list[str]:
    told = []
    for kind, difference in (("lost", expected - found), ("twice or never due", found - expected)):
        if difference:
            examples = ", ".join(map(repr, sorted(difference, key=repr)[:4]))
            told.append(f"{what}: {difference.total()} {kind}: {examples}")
    return told
