"""The numbered job: counts records numbered by key, with all kinds of state, timers, windows and a side output.

It writes to two exactly-once sinks. The expected output depends on the input alone.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.source.source import KafkaSource
from holdfast.datastream import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from holdfast.errors import HoldfastError
from holdfast.testing.chaos.topics import Given

__all__ = ["Expected", "Numbers", "Record", "Track", "build", "compare", "sent", "sparse"]

PARTITIONS = 4
MINUTE_MS = 60_000
DELAY_MS = 3_000
"""How far timestamps may go back within a partition, in ms."""
_SPEED = 10
"""Event time runs this many times faster than the clock."""
_START = 1_700_000_000_000
_RECENT = 3
_ASIDE = 7
_SLOW = "k1"
"""The key whose records take time, if any do."""

Record = tuple[str, int, int, int]
"""Key, number (1, 2, 3, ... per key), event time in ms, send time (wall clock, ms)."""
Output = tuple[Any, ...]
"""Kind (``seen``, ``timer``, ``window``, ``side``), key, position in the key's order, and further values."""

_SIDE = OutputTag("every-seventh")


class Track(KeyedProcessFunction):
    """Keeps per key the count, the last number, the last three numbers, a sum per minute, and perhaps a large value.

    The value is replaced by each record, and only every seventh one reads it, so that RocksDB leaves it on the disk.

    Args:
        slow_ms: How long it waits for each record of one key.
        value_bytes: The size of a large value of each key; 0: there is none.
    """

    def __init__(self, slow_ms: int, value_bytes: int) -> None:
        self.slow_ms = slow_ms
        self.value_bytes = value_bytes

    def open(self, runtime_context: Any) -> None:
        """Open the states."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", Types.LONG()))
        self.minutes = runtime_context.get_map_state(MapStateDescriptor("minutes", Types.LONG(), Types.LONG()))
        if self.value_bytes:
            self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE())))

    def process_element(self, value: Record, ctx: Any) -> Iterator[Any]:
        """Emit what is known of the record's key; every seventh record goes to the side output, too."""
        key, number, event_time, sent = value
        if self.slow_ms and key == _SLOW:
            time.sleep(self.slow_ms / 1000)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        last = self.last.value() or 0
        self.last.update(number)
        if self.value_bytes:
            if number % _ASIDE == 0:
                self._check_value(key, last)
            self.value.update(_value(key, number, self.value_bytes))
        recent = [*self.recent.get(), number][-_RECENT:]
        self.recent.update(recent)
        minute = event_time - event_time % MINUTE_MS
        self.minutes.put(minute, (self.minutes.get(minute) or 0) + number)
        ctx.timer_service().register_event_time_timer(minute + MINUTE_MS)
        yield "seen", key, number, count, last, recent, sent
        if number % _ASIDE == 0:
            yield _SIDE, ("side", key, number)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        """Emit the sum of the minute that ends."""
        minute = timestamp - MINUTE_MS
        yield "timer", ctx.get_current_key(), minute, self.minutes.get(minute)
        self.minutes.remove(minute)

    def _check_value(self, key: str, number: int) -> None:
        """Refuse a value that is not the one of this record."""
        found = self.value.value()
        if found != _value(key, number, self.value_bytes):
            held = "none" if found is None else f"another one, {found[:8].hex()}..."
            raise HoldfastError(f"key {key} has not the large value of record {number}, but {held}")


def _value(key: str, number: int, size: int) -> bytes:
    """The large value that a record leaves behind; it does not compress."""
    return hashlib.shake_128(f"{key} {number}".encode()).digest(size)


class _Named(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterator[Any]:
        numbers = [record[1] for record in elements]
        yield "window", key, context.window().start, len(numbers), sum(numbers)


def _record(data: bytes) -> Record:
    key, number, time, sent = orjson.loads(data)
    return key, number, time, sent


def build(env: StreamExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Add the job to an environment.

    Settings: ``input``, ``elements`` and ``totals`` are the topics, ``source`` and ``sink`` the properties of the Kafka
    clients; ``every`` other than 1 makes the elements sparse; ``slow_ms`` is the time that a record of one key takes;
    ``value_bytes`` is the size of the large value that each key has beside its other states, if any.
    """
    source = KafkaSource(
        properties=settings["source"], group_id="chaos", topics=settings["input"], value_only_deserializer=_record
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DELAY_MS))
    strategy = strategy.with_timestamp_assigner(lambda record, _: record[2])
    keyed = env.from_source(source, strategy, "numbers").uid("numbers").key_by(lambda record: record[0])
    tracked = keyed.process(Track(settings.get("slow_ms", 0), settings.get("value_bytes", 0))).uid("track").name("track")
    windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1))).process(_Named()).uid("windows").name("windows")
    totals = windows.union(tracked.get_side_output(_SIDE))
    every = settings.get("every", 1)
    elements = tracked if every == 1 else tracked.filter(lambda output: sparse(output, every))
    for stream, name in ((elements, "elements"), (totals, "totals")):
        topic = settings[name]
        serializer = RecordSerializer(topic, value_schema=orjson.dumps, key_schema=_key)
        sink = KafkaSink(
            properties=settings["sink"],
            record_serializer=serializer,
            delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
            transactional_id_prefix=topic,
        )
        stream.sink_to(sink).uid(f"{name}-sink").name(f"{name}-sink")


def sparse(output: Output, every: int) -> bool:
    """Whether sparse output contains an element: a few of one key, so that most epochs write none."""
    return bool(output[0] == "seen" and output[1] == "k0" and output[2] % every == 0)


def _key(output: Output) -> bytes:
    return str(output[1]).encode()


# ---- the input -----------------------------------------------------------------------------------------------------------


class Numbers:
    """The input: records numbered by key, each key in one partition, with event time slightly out of order.

    Args:
        keys: The number of keys.
        seed: Seed of the choice of keys and of the disorder.
    """

    def __init__(self, keys: int, seed: int) -> None:
        self._keys = keys
        self._random = random.Random(seed)
        self._numbers: Counter[int] = Counter()
        self._time = _START

    def next(self, seconds: float) -> Given:
        """The next record."""
        self._time = _START + int(seconds * 1000 * _SPEED)
        key = self._random.randrange(self._keys)
        self._numbers[key] += 1
        return _given(f"k{key}", self._numbers[key], self._time - self._random.randrange(DELAY_MS), key % PARTITIONS)

    def last(self) -> Iterator[Given]:
        """One record per partition, an hour later."""
        for partition in range(PARTITIONS):
            yield _given(f"end-{partition}", 1, self._time + 60 * MINUTE_MS, partition)


def _given(key: str, number: int, event_time: int, partition: int) -> Given:
    return Given(partition, orjson.dumps((key, number, event_time, time.time_ns() // 1_000_000)))


def sent(output: Sequence[Any]) -> tuple[str, int] | None:
    """The kind of an output and its input's send time; None if the output lacks it."""
    return ("seen", output[6]) if output[0] == "seen" else None


# ---- the model -----------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """The expected output."""

    elements: Counter[Output] = field(default_factory=Counter)
    totals: Counter[Output] = field(default_factory=Counter)

    @classmethod
    def of(cls, partitions: Sequence[Sequence[Record]], every: int = 1) -> Expected:
        """The output for an input, given per partition in order of offset.

        A record may be there twice: brokers that are killed forget what an idempotent producer has sent them.

        Raises:
            HoldfastError: the input itself is not numbered.
        """
        expected = cls()
        if not all(partitions):
            return expected
        watermark = min(max(record[2] for record in part) for part in partitions) - DELAY_MS - 1
        for part in partitions:
            by_key: dict[str, list[Record]] = defaultdict(list)
            for record in part:
                before = by_key[record[0]]
                if record[1] != (before[-1][1] if before else 0) + 1 and record not in before:
                    raise HoldfastError(f"the input is not numbered: {record} after {before[-1:]}")
                before.append(record)
            for key, records in by_key.items():
                expected._add(key, records, watermark)
        if every > 1:
            expected.elements = Counter({o: n for o, n in expected.elements.items() if sparse(o, every)})
        return expected

    def _add(self, key: str, records: Sequence[Record], watermark: int) -> None:
        minutes: dict[int, list[int]] = defaultdict(list)
        numbers: list[int] = []
        for _, number, event_time, sent_at in records:
            last = numbers[-1] if numbers else 0
            numbers.append(number)
            minutes[event_time - event_time % MINUTE_MS].append(number)
            self.elements[("seen", key, number, len(numbers), last, tuple(numbers[-_RECENT:]), sent_at)] += 1
            if number % _ASIDE == 0:
                self.totals[("side", key, number)] += 1
        for minute, members in minutes.items():
            if minute + MINUTE_MS <= watermark:
                self.elements[("timer", key, minute, sum(members))] += 1
            if minute + MINUTE_MS - 1 <= watermark:
                self.totals[("window", key, minute, len(members), sum(members))] += 1


def compare(topic: str, expected: Counter[Output], written: Iterable[Sequence[Any]]) -> list[str]:
    """Compare a topic's committed records (per partition, in order of offset) with the expected ones; returns problems."""
    seen: Counter[Output] = Counter()
    places: dict[tuple[Any, Any], Any] = {}
    problems: list[str] = []
    disordered = 0
    for values in written:
        output = tuple(tuple(v) if isinstance(v, list) else v for v in values)
        seen[output] += 1
        what, key, place = output[:3]
        before = places.get((what, key))
        if before is not None and place < before:
            disordered += 1
            if disordered <= 3:
                problems.append(f"{topic}: out of order: {what} {place} of key {key} comes after {before}")
        places[what, key] = place
    for kind, difference in (("lost", expected - seen), ("twice or never due", seen - expected)):
        if difference:
            examples = ", ".join(map(repr, sorted(difference, key=repr)[:5]))
            problems.append(f"{topic}: {sum(difference.values())} {kind}: {examples}")
    if disordered > 3:
        problems.append(f"{topic}: {disordered} records out of order in all")
    return problems
