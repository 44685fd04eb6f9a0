"""Whole Kafka records to elements and back, without a broker: keys, headers, tombstones, partitions, upserts."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import DeserializationSchema, Row, RowKind, SimpleStringSchema
from holdfast.connectors.kafka.sink.outbox import OutboxFile, OutgoingBatch, read_outbox
from holdfast.connectors.kafka.sink.pairs import PairSerializer
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.source.message_batches import MessageBatches
from holdfast.datastream.connectors.kafka import (
    ConsumerRecord,
    KafkaRecordDeserializationSchema,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    ProducerRecord,
)
from holdfast.errors import ConfigurationError, UserCodeError

CONTEXT = KafkaSinkContext({}, "sink-1", 1, 3)


def message(offset: int, key: bytes | None, value: bytes | None, headers: Any = None) -> Message:
    return Message("accounts", 2, offset, key=key, value=value, headers=headers, timestamp=(1, 1000 + offset))


MESSAGES = [
    message(5, b"ann", b"10", [("by", b"x"), ("by", None)]),
    message(6, b"ann", None),
    message(8, None, b"20"),
]


def schema_of(deserializer: Any) -> Any:
    source = KafkaSource.builder().set_bootstrap_servers("b:1").set_topics("accounts").set_deserializer(deserializer).build()
    return cloudpickle.loads(cloudpickle.dumps(source.deserializer))


def whole(record: ConsumerRecord) -> ConsumerRecord:
    return record


def the_tombstones_keys_and_headers_reach_a_schema_of_records() -> None:
    batch = MessageBatches(schema_of(whole), "u").batch("accounts", 2, MESSAGES)
    assert batch is not None
    assert batch.values == [
        ConsumerRecord("accounts", 2, 5, 1005, b"ann", b"10", (("by", b"x"), ("by", None))),
        ConsumerRecord("accounts", 2, 6, 1006, b"ann", None, ()),
        ConsumerRecord("accounts", 2, 8, 1008, None, b"20", ()),
    ]
    assert batch.timestamps == [1005, 1006, 1008]
    assert batch.locate(2) == "topic accounts, partition 2, offset 8"


class Keys(KafkaRecordDeserializationSchema):
    def deserialize(self, record: ConsumerRecord) -> Any:
        return record.key


def a_record_for_which_the_schema_returns_none_emits_nothing() -> None:
    batch = MessageBatches(schema_of(Keys()), "u").batch("accounts", 2, MESSAGES)
    assert batch is not None
    assert (batch.values, batch.timestamps) == ([b"ann", b"ann"], [1005, 1006])
    assert batch.locate(1).endswith("offset 6")


def a_schema_of_values_does_not_get_tombstones() -> None:
    batch = MessageBatches(int, "u").batch("accounts", 2, MESSAGES)
    assert batch is not None
    assert (batch.values, batch.timestamps) == ([10, 20], [1005, 1008])
    assert batch.locate(1).endswith("offset 8")
    assert MessageBatches(int, "u").batch("accounts", 2, MESSAGES[1:2]) is None


@pytest.mark.parametrize("offsets", [(5, 6, 7), (5, 6, 9)])
def a_batch_locates_its_records_without_their_messages(offsets: tuple[int, ...]) -> None:
    messages = [message(offset, None, b"1") for offset in offsets]
    references = list(map(sys.getrefcount, messages))
    batch = MessageBatches(int, "u").batch("accounts", 2, messages)
    assert batch is not None
    assert list(map(sys.getrefcount, messages)) == references
    assert [batch.locate(i) for i in range(3)] == [f"topic accounts, partition 2, offset {offset}" for offset in offsets]


@pytest.mark.parametrize("timestamp", [1.5, 2**63, "now"])
def a_timestamp_that_is_none_is_told_with_its_element(timestamp: Any) -> None:
    class Timed(KafkaRecordSerializationSchema):
        def serialize(self, element: Any, context: Any, at: int | None) -> ProducerRecord:
            return ProducerRecord("t", value="v", timestamp=timestamp)

    with pytest.raises(UserCodeError, match="it must be whole ms or None") as caught:
        serializer_of(Timed()).to_batch(["an element"], None, KafkaSinkContext({}, "u"))
    assert "an element" in caught.value.record


def a_tombstone_that_the_schema_cannot_take_is_named_with_the_remedy() -> None:
    schema = schema_of(lambda record: int(record.value))
    with pytest.raises(UserCodeError, match="topic accounts, partition 2, offset 6, key b'ann', value None") as caught:
        MessageBatches(schema, "u-1").batch("accounts", 2, MESSAGES)
    assert "let the schema take record.value None" in str(caught.value)
    assert (caught.value.operator, caught.value.uid) == ("Kafka source", "u-1")
    assert caught.value.record == "topic accounts, partition 2, offset 6"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda b: b.set_deserializer(SimpleStringSchema()),
            "SimpleStringSchema is a DeserializationSchema, which reads values",
        ),
        (lambda b: b.set_deserializer(Keys), "got the class Keys; give it an object"),
        (lambda b: b.set_deserializer(5), "a KafkaRecordDeserializationSchema or a callable, not int"),
        (lambda b: b.set_deserializer(lambda: 1), r"set_deserializer\(\) is called with \(record\)"),
        (lambda b: b.set_value_only_deserializer(Keys()), "reads records, not values: use set_deserializer"),
        (lambda b: b.set_value_only_deserializer(DeserializationSchema), "give it an object"),
    ],
)
def a_deserializer_of_the_wrong_kind_is_refused_by_the_builder(call: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        call(KafkaSource.builder())


# ---- elements to records ----------------------------------------------------------------------------------------------


def serializer_of(schema: Any) -> Any:
    sink = KafkaSink.builder().set_bootstrap_servers("b:1").set_record_serializer(schema).build()
    return cloudpickle.loads(cloudpickle.dumps(sink.serializer))


class Accounts(KafkaRecordSerializationSchema):
    def serialize(self, element: Any, context: Any, timestamp: int | None) -> Any:
        if element == "nothing":
            return None
        if element == "plain":
            return ProducerRecord("accounts", value="plain")
        key, value, at = element
        subtask = (context.get_parallel_instance_id(), context.get_number_of_parallel_instances())
        headers = {"time": str(timestamp), "subtask": str(subtask)}
        return ProducerRecord("accounts", key, value, headers, timestamp=at, partition=7)


def a_schema_of_records_sets_key_value_headers_timestamp_and_partition() -> None:
    batch = serializer_of(Accounts()).to_batch(
        [("ann", None, 9), "nothing", ("bob", b"20", None), "plain"], [1, 2, 3, 4], CONTEXT
    )
    at_once = -(2**63)
    assert batch == OutgoingBatch(
        ["accounts"] * 3,
        [None, b"20", b"plain"],
        [b"ann", b"bob", None],
        [9, at_once, at_once],
        [[("time", b"1"), ("subtask", b"(1, 3)")], [("time", b"3"), ("subtask", b"(1, 3)")], []],
        [7, 7, -1],
    )
    file = OutboxFile()
    file.add(batch)
    (again,) = read_outbox(file.finish(), "f")
    assert (again.values, again.partitions) == (batch.values, [7, 7, -1])


class Wrong(KafkaRecordSerializationSchema):
    def __init__(self, result: Any) -> None:
        self._result = result

    def serialize(self, element: Any, context: Any, timestamp: int | None) -> Any:
        return self._result


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("accounts", "it must return a ProducerRecord, or None"),
        (ProducerRecord(""), "with the topic ''"),
        (ProducerRecord("a", partition=-1), "with the partition -1"),
        (ProducerRecord("a\0b"), r"with the topic 'a\\x00b'"),
        (ProducerRecord("a", headers={"a\0b": "x"}), r"the name of a header is 'a\\x00b'"),
        (ProducerRecord("a", headers={b"a": "x"}), "the name of a header is b'a'"),  # type: ignore[dict-item]
        (ProducerRecord("a", headers={"\ud800": "x"}), "surrogates not allowed"),
        (ProducerRecord("a", value=5), "the value of a ProducerRecord is a int, not bytes"),  # type: ignore[arg-type]
    ],
)
def a_record_that_is_none_is_told_with_its_element(result: Any, text: str) -> None:
    with pytest.raises(UserCodeError, match=text) as caught:
        serializer_of(Wrong(result)).to_batch(["e-1"], None, CONTEXT)
    assert (caught.value.record, caught.value.uid) == ("'e-1'", "sink-1")


@pytest.mark.parametrize("given", [SimpleStringSchema(), 5, lambda element: element])
def a_serializer_of_the_wrong_kind_is_refused_by_the_builder(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="a record serializer is a KafkaRecordSerializationSchema"):
        KafkaSink.builder().set_record_serializer(given)


def upserts(**schemas: Any) -> Any:
    return (
        KafkaRecordSerializationSchema.builder()
        .set_topic("accounts")
        .set_key_serialization_schema(schemas.get("key", lambda row: row[0]))
        .set_value_serialization_schema(schemas.get("value", lambda row: str(row[1])))
        .set_header_provider(lambda row: {"n": str(row[1])})
        .upsert_mode()
        .build()
    )


rows = st.builds(Row.of_kind, st.sampled_from(RowKind), st.sampled_from("abc"), st.integers())


@given(st.lists(rows), st.booleans())
def the_rows_are_written_by_their_kinds(values: list[Row], timed: bool) -> None:
    times = list(range(len(values))) if timed else None
    written = [(i, row) for i, row in enumerate(values) if row.get_row_kind() is not RowKind.UPDATE_BEFORE]
    assert serializer_of(upserts()).to_batch(values, times, CONTEXT) == OutgoingBatch(
        "accounts",
        [None if row.get_row_kind() is RowKind.DELETE else str(row[1]).encode() for _, row in written],
        [row[0].encode() for _, row in written],
        [i for i, _ in written] if timed else None,
        [[("n", str(row[1]).encode())] for _, row in written],
    )


@pytest.mark.parametrize(
    ("serializer", "element", "text"),
    [
        (upserts(), ("a", 1), "upserts are Rows with a kind, .* not tuple"),
        (upserts(key=lambda row: None), Row("a", 1), "has no key: the key serialization schema returned None"),
        (upserts(value=lambda row: None), Row("a", 1), "this would delete the key"),
        (upserts(key=lambda row: 5), Row("a", 1), "the key serialization schema returned int, not bytes"),
        (upserts(value=lambda row: 1 / 0), Row("a", 1), "ZeroDivisionError"),
        (PairSerializer("t"), "a", "a KStream consists of pairs of key and value, not 'a'"),
        (PairSerializer("t"), (None, None), r"the pair \(None, None\) cannot be written"),
        (PairSerializer("t"), ("a", 1), "no serialization schema is set"),
    ],
)
def an_element_that_cannot_be_an_upsert_is_named(serializer: Any, element: Any, text: str) -> None:
    with pytest.raises(UserCodeError, match=text) as caught:
        serializer_of(serializer).to_batch([element], None, CONTEXT)
    assert (caught.value.operator, caught.value.uid, caught.value.record) == ("Kafka sink", "sink-1", repr(element))


def the_pairs_are_written_as_records_and_tombstones() -> None:
    serializer = PairSerializer("t", lambda value: str(value), lambda key: f"k{key}")
    assert serializer.to_batch([(1, "a"), (2, None), (None, "b")], [5, 6, 7], CONTEXT) == OutgoingBatch(
        "t", [b"a", None, b"b"], [b"k1", b"k2", None], [5, 6, 7]
    )
    assert PairSerializer("t").to_batch([("k", "v")], None, CONTEXT) == OutgoingBatch("t", [b"v"], [b"k"])


def an_upsert_without_a_key_schema_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"upserts need a key: set_key_serialization_schema"):
        KafkaRecordSerializationSchema.builder().set_topic("a").upsert_mode().build()


@pytest.mark.parametrize("topic", ["\ud800", "a\0b", "ä", ""], ids=repr)
def an_element_whose_topic_no_topic_can_be_is_named(topic: str) -> None:
    with pytest.raises(UserCodeError, match="instead of a topic's name") as raised:
        RecordSerializer(lambda _: topic).to_batch(["e-1"], None, CONTEXT)
    assert raised.value.record == "'e-1'"


@pytest.mark.parametrize("name", ["\ud800", "a\0b"], ids=repr)
def an_element_whose_header_the_client_library_would_cut_or_die_of_is_named(name: str) -> None:
    with pytest.raises(UserCodeError) as raised:
        RecordSerializer("accounts", headers=lambda _: {name: "x"}).to_batch(["e-1"], None, CONTEXT)
    assert raised.value.record == "'e-1'"
