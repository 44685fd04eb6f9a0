"""Debezium's events in Avro with a schema registry: as Confluent's converter writes them, and back."""

from __future__ import annotations

import datetime
import io
import json
import logging
import pickle
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from registry_server import RegistryServer
from test_debezium import AFTER, BEFORE, BONN, BYTES, DELETE, INSERT, KEY, NOON, NOON_MS, ORDERS, PUNE, ROWS, TABLE, of

from effort import examples
from holdfast.common import Instant, Row, Types
from holdfast.datastream.formats.avro import AvroSchema
from holdfast.datastream.formats.avro_confluent import (
    ConfluentRegistryAvroDeserializationSchema,
    DebeziumAvroDeserializationSchema,
    DebeziumAvroSerializationSchema,
)
from holdfast.errors import ConfigurationError, ServiceUnavailable

CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


@pytest.fixture
def registry(server: RegistryServer) -> RegistryServer:
    server.schemas.clear()
    return server


def envelope(columns: dict[str, Any]) -> dict[str, Any]:
    """The schema of a table's events, as Confluent's converter makes it of Debezium's."""
    fields = [{"name": name, "type": ["null", column], "default": None} for name, column in columns.items()]
    value = {"type": "record", "name": "Value", "fields": fields, "connect.name": "shop.public.orders.Value"}
    source = {
        **{"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql"},
        "fields": [{"name": "table", "type": "string"}, {"name": "lsn", "type": ["null", "long"], "default": None}],
    }
    block = {"type": "record", "name": "block", "namespace": "event", "fields": [{"name": "id", "type": "string"}]}
    return {
        **{"type": "record", "name": "Envelope", "namespace": "shop.public.orders"},
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "transaction", "type": ["null", block], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.name": "shop.public.orders.Envelope",
    }


PLAIN = envelope({"id": "long", "city": "string", "amount": "double"})


def written(registry: RegistryServer, schema: Any, record: Any) -> bytes:
    """A record in Confluent's wire format."""
    text = json.dumps(schema)
    if text not in registry.schemas:
        registry.schemas.append(text)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
    return struct.pack(">bI", 0, registry.schemas.index(text) + 1) + buffer.getvalue()


def event(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"table": "orders", "lsn": 5}, "op": op, "ts_ms": 1700000000000}


def reader(registry: RegistryServer, declared: Any = ORDERS, **arguments: Any) -> DebeziumAvroDeserializationSchema:
    if arguments.get("changelog_mode") == "upsert":
        arguments.setdefault("primary_key", ["id"])
    made = DebeziumAvroDeserializationSchema(declared, registry.url, **arguments)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


# ---- read ----


def an_event_gives_the_rows_that_it_gives_in_json(registry: RegistryServer) -> None:
    events = [("r", None, PUNE), ("u", PUNE, BONN), ("u", BONN, {**BONN, "id": 2}), ("d", {**BONN, "id": 2}, None)]
    data = [written(registry, PLAIN, event(*each)) for each in events]
    both = reader(registry, primary_key=["id"])
    assert [row for each in data for row in both.deserialize_flat(each)] == [
        *(of(INSERT, PUNE), of(BEFORE, PUNE), of(AFTER, BONN), of(DELETE, BONN), of(INSERT, {**BONN, "id": 2})),
        of(DELETE, {**BONN, "id": 2}),
    ]
    upserts = reader(registry, changelog_mode="upsert")
    assert [row for each in data for row in upserts.deserialize_flat(each)] == [
        *(of(INSERT, PUNE), of(AFTER, BONN), of(DELETE, KEY), of(INSERT, {**BONN, "id": 2}), of(DELETE, {**KEY, "id": 2}))
    ]
    assert registry.requests.count("GET /schemas/ids/1") == 2


def a_schema_is_fetched_once(registry: RegistryServer) -> None:
    data, schema = written(registry, PLAIN, event("c", None, PUNE)), reader(registry)
    asked = len(registry.requests)
    assert [schema.deserialize_flat(data) for _ in range(3)] == [[of(INSERT, PUNE)]] * 3
    assert registry.requests[asked:] == ["GET /schemas/ids/1"]


DECIMAL = {
    **{"type": "bytes", "scale": 2, "precision": 10, "connect.version": 1, "logicalType": "decimal"},
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}, "connect.name": CONNECT + "Decimal"},
}
VARIABLE = {
    **{"type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data"},
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
POINT = {
    **{"type": "record", "name": "Point", "namespace": "io.debezium.data.geometry"},
    "fields": [{"name": name, "type": "double"} for name in "xy"],
}
ENTRY = {
    "type": "record",
    "name": "MapEntry",
    "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "string"}],
}
LOGICAL = {"type": "long", "logicalType": "timestamp-micros"}


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


DAY = NOON.date()
VALUES: list[tuple[Any, Any, Any, Any]] = [
    (Types.BIG_DEC(), DECIMAL, Decimal("12.34"), Decimal("12.34")),
    (Types.BIG_DEC(), DECIMAL, Decimal("-0.01"), Decimal("-0.01")),
    (Types.STRING(), DECIMAL, Decimal("-0.05"), "-0.05"),
    (Types.DOUBLE(), DECIMAL, Decimal("12.50"), 12.5),
    (Types.BIG_DEC(), VARIABLE, {"scale": 3, "value": b"\x05\xdc"}, Decimal("1.500")),
    (Types.LIST(Types.BIG_DEC()), {"type": "array", "items": ["null", DECIMAL]}, [Decimal("1.00"), None],
     [Decimal("1.00"), None]),
    (Types.SQL_DATE(), named("int", TIME + "Date"), 19782, DAY),
    (Types.SQL_DATE(), named("int", CONNECT + "Date", logicalType="date"), DAY, DAY),
    (Types.SQL_TIME(), named("int", CONNECT + "Time", logicalType="time-millis"), NOON.time(), NOON.time()),
    (Types.SQL_TIME(), named("int", TIME + "Time"), 43200005, NOON.time()),
    (Types.SQL_TIME(), named("long", TIME + "MicroTime"), 43200005999, NOON.time()),
    (Types.SQL_TIME(), named("long", TIME + "NanoTime"), 43200005000000, NOON.time()),
    (Types.SQL_TIME(), named("string", TIME + "ZonedTime"), "14:00:00.005+02:00", NOON.time()),
    (Types.SQL_TIMESTAMP(), named("long", TIME + "Timestamp"), NOON_MS, NOON),
    (Types.SQL_TIMESTAMP(), named("long", TIME + "MicroTimestamp"), NOON_MS * 1000, NOON),
    (Types.SQL_TIMESTAMP(), named("long", TIME + "NanoTimestamp"), NOON_MS * 10**6, NOON),
    (Types.SQL_TIMESTAMP(), named("long", CONNECT + "Timestamp", logicalType="timestamp-millis"), NOON_MS, NOON),
    (Types.SQL_TIMESTAMP(), LOGICAL, NOON_MS * 1000, NOON),
    (Types.INSTANT(), LOGICAL, -1, Instant(-1, 999_999_000)),
    (Types.INSTANT(), named("string", TIME + "ZonedTimestamp"), "2024-02-29T12:00:00.000007Z", Instant(1709208000, 7000)),
    (Types.LIST(Types.SQL_DATE()), {"type": "array", "items": ["null", named("int", TIME + "Date")]}, [0, None],
     [datetime.date(1970, 1, 1), None]),
    (BYTES, "bytes", b"\0\xff", b"\0\xff"),
    (Types.LONG(), named("bytes", "io.debezium.data.Bits"), b"\x01\x02", 513),
    (Types.SHORT(), {"type": "int", "connect.type": "int16"}, -7, -7),
    (Types.BOOLEAN(), {"type": "int", "connect.type": "int16"}, 1, True),
    (Types.FLOAT(), "float", 0.5, 0.5),
    (Types.STRING(), named("string", "io.debezium.data.Json"), '{"a": 1}', '{"a": 1}'),
    (Types.STRING(), named("string", "io.debezium.data.Enum"), "new", "new"),
    (Types.MAP(Types.STRING(), Types.STRING()), {"type": "map", "values": ["null", "string"]}, {"a": None}, {"a": None}),
    (Types.MAP(Types.INT(), Types.STRING()), {"type": "array", "items": ENTRY}, [{"key": 1, "value": "a"}], {1: "a"}),
    (Types.ROW_NAMED(["y", "x"], [Types.DOUBLE()] * 2), POINT, {"x": 1.5, "y": 2.0}, Row(y=2.0, x=1.5)),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "column", "value", "found"), VALUES, ids=repr)
def a_value_is_read_by_the_schema_that_wrote_it(
    registry: RegistryServer, declared: Any, column: Any, value: Any, found: Any
) -> None:
    schema = reader(registry, Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]))
    for each, expected in ((value, found), (None, None)):
        data = written(registry, envelope({"id": "long", "x": column}), event("c", None, {"id": 1, "x": each}))
        (row,) = schema.deserialize_flat(data)
        assert (type(row.x), repr(row.x)) == (type(expected), repr(expected))


def a_time_whose_schema_does_not_tell_its_unit_is_read_by_the_argument(registry: RegistryServer) -> None:
    declared = Types.ROW_NAMED(["id", "at"], [Types.LONG(), Types.SQL_TIMESTAMP()])
    data = written(registry, envelope({"id": "long", "at": "long"}), event("c", None, {"id": 1, "at": NOON_MS * 1000}))
    assert reader(registry, declared, time_unit="us").deserialize_flat(data) == [Row(id=1, at=NOON)]
    with pytest.raises(ValueError, match=r"column 'at'.*its unit is unknown.*time_unit"):
        reader(registry, declared).deserialize_flat(data)


def a_table_may_get_columns_and_lose_them(registry: RegistryServer, caplog: pytest.LogCaptureFixture) -> None:
    more = envelope({"id": "long", "city": "string", "amount": "double", "note": "string"})
    less = envelope({"id": "long", "amount": "double"})
    old = written(registry, PLAIN, event("c", None, PUNE))
    new = written(registry, more, event("c", None, {**PUNE, "note": "x"}))
    gone = written(registry, less, event("c", None, {"id": 1, "amount": 2.5}))
    schema = reader(registry)
    with caplog.at_level(logging.WARNING):
        assert [schema.deserialize_flat(each) for each in (old, new, old, new)] == [[of(INSERT, PUNE)]] * 4
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == ["note"]
    with pytest.raises(ValueError, match=r"after has no column 'city' \(it has id, amount\).*missing_columns='null'"):
        schema.deserialize_flat(gone)
    lenient = reader(registry, missing_columns="null")
    assert [lenient.deserialize_flat(each) for each in (old, gone)] == [
        [of(INSERT, PUNE)],
        [of(INSERT, {**PUNE, "city": None})],
    ]


@pytest.mark.parametrize(
    ("column", "value", "old"),
    [
        ("bytes", b"__debezium_unavailable_value", b"\0"),
        ({"type": "array", "items": "int"}, [*b"__debezium_unavailable_value"], [7]),
    ],
    ids=["bytes", "numbers"],
)
def a_value_that_an_update_did_not_change_is_that_of_the_old_row(
    registry: RegistryServer, column: Any, value: Any, old: Any
) -> None:
    schema = envelope({"id": "long", "x": column})
    data = written(registry, schema, event("u", {"id": 1, "x": old}, {"id": 1, "x": value}))
    declared = BYTES if column == "bytes" else Types.LIST(Types.INT())
    rows = reader(registry, Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared])).deserialize_flat(data)
    assert [row.x for row in rows] == [old, old]


def record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields.items()]}


OTHERS = [
    (record("Metadata", {"status": "string", "id": "string"}), {"status": "END", "id": "5"}, "the END of a transaction"),
    (record("SchemaChangeValue", {"ddl": "string"}), {"ddl": "DROP TABLE t"}, "it is a schema change"),
    (record("Heartbeat", {"ts_ms": "long"}), {"ts_ms": 5}, "it is a heartbeat"),
    (record("Value", {"id": "long", "__op": "string"}), {"id": 5, "__op": "c"}, "no op.*ExtractNewRecordState"),
    (record("Value", {"id": "long", "op": "string"}), {"id": 5, "op": "c"}, "neither before nor after.*ExtractNew"),
    (record("Envelope", {"after": ["null", "string"], "op": "string"}), {"after": "{}", "op": "c"}, "documents of MongoDB"),
    ("string", "key", "it is no record"),
    (PLAIN, event("t"), "TRUNCATE.*on_truncate='skip'"),
    (PLAIN, event("x"), "its op is 'x'"),
    (PLAIN, event("c"), "after is null"),
    (envelope({"id": "long", "city": "long", "amount": "double"}), event("c", None, {**PUNE, "city": 5}),
     "column 'city' the value 5, which .* does not take: takes text, not int"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "given", "told"), OTHERS, ids=[told[:20] for *_, told in OTHERS])
def an_event_of_another_topic_is_refused_by_name_or_dropped(
    registry: RegistryServer, schema: Any, given: Any, told: str
) -> None:
    data = written(registry, schema, given)
    with pytest.raises(ValueError, match=r"not an event of Debezium with the declared columns: ") as refused:
        reader(registry).deserialize_flat(data)
    assert re.search(told, str(refused.value))
    assert reader(registry, ignore_parse_errors=True).deserialize_flat(data) == []


def an_event_without_rows_may_be_left_out(registry: RegistryServer) -> None:
    message = record("MessageValue", {"op": "string", "ts_ms": "long"})
    assert reader(registry).deserialize_flat(written(registry, message, {"op": "m", "ts_ms": 1})) == []
    assert reader(registry, on_truncate="skip").deserialize_flat(written(registry, PLAIN, event("t"))) == []


def an_input_that_is_no_event_is_told(registry: RegistryServer) -> None:
    data = written(registry, PLAIN, event("c", None, PUNE))
    for bad, told in (
        (b"{}", "byte 0 and 4 bytes"),
        (data[:9], "the bytes end within a field"),
        (data + b"x", "1 bytes behind"),
    ):
        with pytest.raises(ValueError, match=told):
            reader(registry).deserialize_flat(bad)
        assert reader(registry, ignore_parse_errors=True).deserialize_flat(bad) == []
    unknown = struct.pack(">bI", 0, 99) + data[5:]
    for schema in (reader(registry), reader(registry, ignore_parse_errors=True)):
        with pytest.raises(ValueError, match="has no schema with the id 99"):  # another registry than the writer's
            schema.deserialize_flat(unknown)


def a_registry_that_is_down_is_no_fault_of_the_event(registry: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.schema_registry._PAUSES_S", (0.001,))
    data, schema = written(registry, PLAIN, event("c", None, PUNE)), reader(registry, ignore_parse_errors=True)
    registry.failures = 2
    with pytest.raises(ServiceUnavailable, match="does not answer GET /schemas/ids/1"):
        schema.deserialize_flat(data)
    assert schema.deserialize_flat(data) == [of(INSERT, PUNE)]


# ---- written ----


def writer(registry: RegistryServer, declared: Any = ORDERS, topic: str = "shop.public.orders", **arguments: Any) -> Any:
    return pickle.loads(pickle.dumps(DebeziumAvroSerializationSchema(declared, topic, registry.url, **arguments)))


def an_event_and_its_key_have_debeziums_names(registry: RegistryServer) -> None:
    write = writer(registry, primary_key=["id"])
    rows = [of(BEFORE, PUNE), of(AFTER, BONN)]
    places, (data,) = write.serialize_changes(rows)
    key = pickle.loads(pickle.dumps(write.keys())).serialize(rows[1])
    assert (places, registry.requests[-2:]) == (
        [1],
        ["POST /subjects/shop.public.orders-value/versions", "POST /subjects/shop.public.orders-key/versions"],
    )
    event_schema, key_schema = map(json.loads, registry.schemas)
    assert event_schema["connect.name"] == "shop.public.orders.Envelope"
    assert key_schema["connect.name"] == "shop.public.orders.Key"
    for text, record, found in (
        (registry.schemas[0], data, {"before": PUNE, "after": BONN, "op": "u"}),
        (registry.schemas[1], key, {"id": 1}),
    ):
        read = ConfluentRegistryAvroDeserializationSchema.for_generic(AvroSchema(text), registry.url)
        assert read.deserialize(record) == found
    columns = event_schema["fields"][0]["type"][1]["fields"]
    assert columns[0] == {"name": "id", "type": "long"}
    assert columns[1] == {"name": "city", "type": ["null", "string"], "default": None}


def a_reader_of_the_older_schema_reads_events_with_a_new_column(registry: RegistryServer) -> None:
    more = Types.ROW_NAMED(["id", "city", "amount", "note"], [*ORDERS.get_field_types(), Types.STRING()])
    old, new = (
        writer(registry).serialize(of(INSERT, PUNE)),
        writer(registry, more).serialize(of(INSERT, {**PUNE, "note": "x"})),
    )
    assert [reader(registry).deserialize_flat(each) for each in (old, new)] == [[of(INSERT, PUNE)]] * 2
    newest = AvroSchema(registry.schemas[1])
    assert newest.decode(old[5:], AvroSchema(registry.schemas[0]))["after"]["note"] is None


def a_decimal_of_a_known_scale_is_avros(registry: RegistryServer) -> None:
    declared = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.BIG_DEC()])
    write = writer(registry, declared, decimal_scales={"amount": 2})
    data = write.serialize(Row(id=1, amount=Decimal("-1.5")))
    assert AvroSchema(registry.schemas[0]).decode(data[5:])["after"]["amount"] == Decimal("-1.50")
    for amount in ("1.005", "1E+70"):
        with pytest.raises(ValueError, match=r"field amount: .* more than 2 digits behind the point, or more than 64"):
            write.serialize(Row(id=1, amount=Decimal(amount)))


def an_update_without_its_old_row_is_written_with_upsert(registry: RegistryServer) -> None:
    write = writer(registry, changelog_mode="upsert")
    places, data = write.serialize_changes([of(BEFORE, PUNE), of(AFTER, BONN), of(DELETE, BONN)])
    found = [row for each in data for row in reader(registry, changelog_mode="upsert").deserialize_flat(each)]
    assert (places, found) == ([1, 2], [of(AFTER, BONN), of(DELETE, KEY)])


NESTED = Types.ROW_NAMED(
    ["id", "times", "prices", "at", "many"],
    [
        *(Types.LONG(), Types.LIST(Types.SQL_TIME()), Types.MAP(Types.STRING(), Types.BIG_DEC())),
        Types.ROW_NAMED(["on", "n"], [Types.SQL_DATE(), Types.BIG_INT()]),
        Types.PRIMITIVE_ARRAY(Types.INT()),
    ],
)


def the_values_within_values_come_back(registry: RegistryServer) -> None:
    inner = Row(on=NOON.date(), n=2**70)
    row = Row(id=1, times=[NOON.time(), None], prices={"a": Decimal("1.50"), "b": None}, at=inner, many=[1, 2])
    data = writer(registry, NESTED, topic="7-orders").serialize(row)
    assert reader(registry, NESTED).deserialize_flat(data) == [row]


def the_rows_of_a_changelog_come_back_as_they_were_written(registry: RegistryServer) -> None:
    write, read = writer(registry, TABLE), reader(registry, TABLE)
    added = (INSERT, AFTER)

    @settings(max_examples=examples(40), deadline=None)
    @given(rows=ROWS)
    def come_back(rows: list[Row]) -> None:
        found = [row for data in write.serialize_changes(rows)[1] for row in read.deserialize_flat(data)]
        assert [(row.get_row_kind() in added, repr(Row(*row))) for row in found] == [
            (row.get_row_kind() in added, repr(Row(*row))) for row in rows
        ]

    come_back()


def a_schema_that_cannot_work_is_refused_when_it_is_made(registry: RegistryServer) -> None:
    url = registry.url
    pairs = Types.ROW_NAMED(["id", "x"], [Types.LONG(), Types.TUPLE([Types.LONG()])])
    any_value = Types.ROW_NAMED(["x"], [Types.PICKLED_BYTE_ARRAY()])
    cases: list[tuple[Any, str]] = [
        (lambda: DebeziumAvroSerializationSchema(ORDERS, "", url), "the topic is a name"),
        (
            lambda: DebeziumAvroSerializationSchema(ORDERS, "t", url, primary_key=["z"]),
            "primary_key: the declared columns lack z",
        ),
        (lambda: DebeziumAvroSerializationSchema(ORDERS, "t", url, decimal_scales={"city": 2}), "which has no scale"),
        (lambda: DebeziumAvroSerializationSchema(pairs, "t", url), "column 'x' is .*no form in Debezium's events"),
        (lambda: DebeziumAvroSerializationSchema(any_value, "t", url), "column 'x' is .*no form in Debezium's events"),
        (lambda: DebeziumAvroSerializationSchema(Types.ROW_NAMED(["a b"], [Types.INT()]), "t", url), "no name in Avro"),
        (lambda: DebeziumAvroSerializationSchema(Types.LONG(), "t", url), r"Types\.ROW_NAMED"),  # type: ignore[arg-type]
        (lambda: DebeziumAvroSerializationSchema(ORDERS, "t", url).keys(), "need the primary_key"),
        (lambda: DebeziumAvroSerializationSchema(ORDERS, "t", "registry"), "not an address"),
        (lambda: DebeziumAvroDeserializationSchema(Types.LONG(), url), r"Types\.ROW_NAMED"),  # type: ignore[arg-type]
        (lambda: DebeziumAvroDeserializationSchema(ORDERS, url, "upsert"), "needs the primary_key"),
        (lambda: DebeziumAvroDeserializationSchema(ORDERS, "registry"), "not an address"),
    ]
    for call, told in cases:
        with pytest.raises(ConfigurationError, match=told):
            call()
    write = writer(registry, primary_key=["id"])
    with pytest.raises(ValueError, match="field 'id' of the primary key is None"):
        write.keys().serialize(of(INSERT, {**PUNE, "id": None}))
    with pytest.raises(TypeError, match="Rows with a kind, not of dict"):
        write.serialize(PUNE)
