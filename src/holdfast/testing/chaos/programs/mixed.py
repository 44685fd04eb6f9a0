"""The mixed job: counts equal keys of different types; its stateless operators may have any parallelism.

Input records are numbered by key. The job counts each key's records. Records may overtake each other on the way, so each
number and each count of a key must occur once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import orjson

from holdfast.common import Types, WatermarkStrategy
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.offsets import KafkaOffsetsInitializer, KafkaTopicPartition
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.source.source import KafkaSource
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

__all__ = ["FORMS", "build", "problems", "sent"]

_ZONES = (timezone.utc, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8)))
FORMS = 6
"""The number of equal forms of a key."""


def key_of(number: int, form: int) -> Any:
    """One form of a key: odd forms are numbers, even forms instants."""
    if number % 2:
        return (int, float, Decimal, lambda n: Decimal(n) * Decimal("1.00"))[form % 4](number)
    instant = datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(hours=number)
    return instant.astimezone(_ZONES[form % 3])


class _Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        _, key, number, sent_at = value
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield "seen", key, number, count, sent_at


def _record(data: bytes) -> Any:
    key, form, number, sent_at = orjson.loads(data)
    return key_of(key, form), key, number, sent_at


def build(env: StreamExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Add the job to an environment.

    Settings: ``input`` and ``output`` are the topics, ``clients`` the properties of the Kafka clients, ``parallelism`` that
    of the source and of a stateless operator, ``stop`` the offset at which every partition of a bounded job ends.
    """
    stop = settings.get("stop")
    ends = None
    if stop is not None:
        partitions = range(settings["partitions"])
        ends = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(settings["input"], p): stop for p in partitions})
    source = KafkaSource(
        properties={**settings["clients"], "partition.discovery.interval.ms": "500"},
        group_id="chaos",
        topics=settings["input"],
        value_only_deserializer=_record,
        bounded=ends,
    )
    reading, working = settings["parallelism"]
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "input").uid("input").set_parallelism(reading)
    worked = records.map(lambda record: record).uid("work").set_parallelism(working)
    counted = worked.key_by(lambda record: record[0]).process(_Count()).uid("count").name("count")
    serializer = RecordSerializer(settings["output"], value_schema=orjson.dumps)
    sink = KafkaSink(
        properties=settings["clients"],
        record_serializer=serializer,
        delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
        transactional_id_prefix=settings["output"],
    )
    counted.sink_to(sink).uid("output").name("output")


def sent(output: Sequence[Any]) -> tuple[str, int]:
    """The kind of an output and its input's send time."""
    return "seen", output[4]


def problems(numbers: Iterable[tuple[int, int]], written: Iterable[Sequence[Any]]) -> list[str]:
    """Check the outputs for an input of keys and numbers; returns the problems found."""
    expected = Counter(numbers)
    of_key = Counter(key for key, _ in expected.elements())
    found: Counter[tuple[int, int]] = Counter()
    counts: dict[int, list[int]] = defaultdict(list)
    for _, key, number, count, _ in written:
        found[key, number] += 1
        counts[key].append(count)
    told = []
    for kind, difference in (("lost", expected - found), ("twice or never due", found - expected)):
        if difference:
            told.append(f"{difference.total()} records {kind}: {sorted(difference)[:5]}")
    split = sorted(key for key, total in of_key.items() if sorted(counts[key]) != list(range(1, total + 1)))
    if split:
        told.append(f"{len(split)} keys were not counted one by one: {split[:5]}; {sorted(counts[split[0]])[:12]}")
    return told
