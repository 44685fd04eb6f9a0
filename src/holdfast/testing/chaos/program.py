"""The job under test, and the same in a few lines of plain Python: the judge of what came out.

Input records are numbered by key. The job keeps all kinds of state about them, sets timers, builds windows, has a side
output, and writes to two exactly-once sinks. What it must write depends on the input alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.serializer import RecordSerializer
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.kafka.source import KafkaSource
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

__all__ = ["DELAY_MS", "ELEMENTS", "INPUT", "MINUTE_MS", "TOTALS", "Expected", "Record", "build", "compare"]

INPUT, ELEMENTS, TOTALS = "numbers", "elements", "totals"
"""The topics: the input, and those of the two sinks."""
MINUTE_MS = 60_000
DELAY_MS = 3_000
"""How far timestamps may go back within a partition."""
_RECENT = 3
_ASIDE = 7

Record = tuple[str, int, int, int]
"""Key, number (1, 2, 3, ... for each key), event time in ms, when it was sent (wall clock, ms)."""
Output = tuple[Any, ...]
"""What it is (``seen``, ``timer``, ``window``, ``side``), the key, its place in the key's order, and the rest."""

_SIDE = OutputTag("every-seventh")


class _Track(KeyedProcessFunction):
    """Remembers, per key, how many there were, which was the last, the last three, and a sum for each minute."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", Types.LONG()))
        self.minutes = runtime_context.get_map_state(MapStateDescriptor("minutes", Types.LONG(), Types.LONG()))

    def process_element(self, value: Record, ctx: Any) -> Iterator[Any]:
        key, number, time, sent = value
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        last = self.last.value() or 0
        self.last.update(number)
        recent = [*self.recent.get(), number][-_RECENT:]
        self.recent.update(recent)
        minute = time - time % MINUTE_MS
        self.minutes.put(minute, (self.minutes.get(minute) or 0) + number)
        ctx.timer_service().register_event_time_timer(minute + MINUTE_MS)
        yield "seen", key, number, count, last, recent, sent
        if number % _ASIDE == 0:
            yield _SIDE, ("side", key, number)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        minute = timestamp - MINUTE_MS
        yield "timer", ctx.get_current_key(), minute, self.minutes.get(minute)
        self.minutes.remove(minute)


class _Named(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterator[Any]:
        numbers = [record[1] for record in elements]
        yield "window", key, context.window().start, len(numbers), sum(numbers)


def _record(data: bytes) -> Record:
    key, number, time, sent = orjson.loads(data)
    return key, number, time, sent


def build(env: StreamExecutionEnvironment, bootstrap_servers: str) -> None:
    """Add the job to an environment."""
    clients = {"bootstrap.servers": bootstrap_servers}
    source = KafkaSource({**clients, "group.id": "chaos"}, (INPUT,), deserializer=_record)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DELAY_MS))
    strategy = strategy.with_timestamp_assigner(lambda record, _: record[2])
    keyed = env.from_source(source, strategy, "numbers").uid("numbers").key_by(lambda record: record[0])
    tracked = keyed.process(_Track()).uid("track").name("track")
    windows = keyed.window(TumblingEventTimeWindows.of(Time.minutes(1))).process(_Named()).uid("windows").name("windows")
    totals = windows.union(tracked.get_side_output(_SIDE))
    for stream, topic in ((tracked, ELEMENTS), (totals, TOTALS)):
        serializer = RecordSerializer(topic, value_schema=orjson.dumps, key_schema=_key)
        sink = KafkaSink(clients, serializer, DeliveryGuarantee.EXACTLY_ONCE, f"chaos-{topic}")
        stream.sink_to(sink).uid(f"{topic}-sink").name(f"{topic}-sink")


def _key(output: Output) -> bytes:
    return str(output[1]).encode()


# ---- the model -----------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What the job must have written."""

    elements: Counter[Output] = field(default_factory=Counter)
    totals: Counter[Output] = field(default_factory=Counter)

    @classmethod
    def of(cls, partitions: Sequence[Sequence[Record]]) -> Expected:
        """For an input, partition by partition in the order of its offsets."""
        expected = cls()
        if not all(partitions):
            return expected
        watermark = min(max(record[2] for record in part) for part in partitions) - DELAY_MS - 1
        for part in partitions:
            by_key: dict[str, list[Record]] = defaultdict(list)
            for record in part:
                by_key[record[0]].append(record)
            for key, records in by_key.items():
                expected._add(key, records, watermark)
        return expected

    def _add(self, key: str, records: Sequence[Record], watermark: int) -> None:
        minutes: dict[int, list[int]] = defaultdict(list)
        numbers: list[int] = []
        for _, number, time, sent in records:
            last = numbers[-1] if numbers else 0
            numbers.append(number)
            minutes[time - time % MINUTE_MS].append(number)
            self.elements[("seen", key, number, len(numbers), last, tuple(numbers[-_RECENT:]), sent)] += 1
            if number % _ASIDE == 0:
                self.totals[("side", key, number)] += 1
        for minute, members in minutes.items():
            if minute + MINUTE_MS <= watermark:
                self.elements[("timer", key, minute, sum(members))] += 1
            if minute + MINUTE_MS - 1 <= watermark:
                self.totals[("window", key, minute, len(members), sum(members))] += 1


def compare(topic: str, expected: Counter[Output], written: Iterable[Sequence[Any]]) -> list[str]:
    """What is wrong with a topic's committed records (in the order of their offsets, partition by partition)."""
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
