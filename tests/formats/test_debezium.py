"""Debezium's events as Rows, and Rows as events: without a broker.

The events are as Debezium's documentation describes them (topic events, data types, transaction metadata).
"""

from __future__ import annotations

import base64
import datetime
import json
import pickle
import re
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Instant, Row, RowKind, Types
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.source.message_batches import MessageBatches
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema
from holdfast.datastream.formats.json import DebeziumJsonRowDeserializationSchema, DebeziumJsonRowSerializationSchema
from holdfast.errors import ConfigurationError, UserCodeError

ORDERS = Types.ROW_NAMED(["id", "city", "amount"], [Types.LONG(), Types.STRING(), Types.DOUBLE()])
BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
INSERT, BEFORE, AFTER, DELETE = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE
PUNE, BONN = {"id": 1, "city": "Pune", "amount": 2.5}, {"id": 1, "city": "Bonn", "amount": 2.5}
KEY = {"id": 1, "city": None, "amount": None}


def reader(declared: Any = ORDERS, **arguments: Any) -> DebeziumJsonRowDeserializationSchema:
    if arguments.get("changelog_mode") == "upsert":
        arguments.setdefault("primary_key", ["id"])
    return pickle.loads(pickle.dumps(DebeziumJsonRowDeserializationSchema(declared, **arguments)))  # type: ignore[no-any-return]


def event(op: str | None, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    source = {"version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "schema": "public", "table": "orders"}
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1700000000000,
        "transaction": None,
        **more,
    }


def text(of: Any) -> bytes:
    return json.dumps(of).encode()


def of(kind: RowKind, fields: dict[str, Any]) -> Row:
    return Row.of_kind(kind, **fields)


def described(columns: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of an event, as Kafka Connect's JsonConverter writes it."""
    fields = [{"field": name, "optional": True, **column} for name, column in columns.items()]
    parts = [{"field": part, "type": "struct", "fields": fields, "optional": True} for part in ("before", "after")]
    parts += [{"field": "op", "type": "string", "optional": False}]
    return {"type": "struct", "fields": parts, "optional": False, "name": "shop.public.orders.Envelope"}


# ---- events ----

TRANSACTION = {"id": "571:53195829", "total_order": 1, "data_collection_order": 1}
EVENTS: list[tuple[str, Any, list[Row], list[Row]]] = [
    ("an insert", event("c", None, PUNE), [of(INSERT, PUNE)], [of(INSERT, PUNE)]),
    ("a row of a snapshot", event("r", None, PUNE), [of(INSERT, PUNE)], [of(INSERT, PUNE)]),
    ("an update", event("u", PUNE, BONN), [of(BEFORE, PUNE), of(AFTER, BONN)], [of(AFTER, BONN)]),
    ("a deletion", event("d", PUNE), [of(DELETE, PUNE)], [of(DELETE, KEY)]),
    (
        "an update of the key",
        event("u", PUNE, {**PUNE, "id": 2}),
        [of(DELETE, PUNE), of(INSERT, {**PUNE, "id": 2})],
        [of(DELETE, KEY), of(INSERT, {**PUNE, "id": 2})],
    ),
    ("in a transaction", event("c", None, PUNE, transaction=TRANSACTION), [of(INSERT, PUNE)], [of(INSERT, PUNE)]),
    ("with another column", event("c", None, {**PUNE, "new": [1]}), [of(INSERT, PUNE)], [of(INSERT, PUNE)]),
    ("a message", event("m", message={"prefix": "p", "content": "aGk="}), [], []),
    ("only its own parts", {"before": None, "after": PUNE, "op": "c"}, [of(INSERT, PUNE)], [of(INSERT, PUNE)]),
    ("a tombstone as text", None, [], []),
]


@pytest.mark.parametrize(("case", "given", "all_rows", "upserts"), EVENTS, ids=[case for case, *_ in EVENTS])
def an_event_gives_its_rows_with_and_without_a_schema(
    case: str, given: Any, all_rows: list[Row], upserts: list[Row]
) -> None:
    plain = {"id": {"type": "int64"}, "city": {"type": "string"}, "amount": {"type": "double"}}
    for shape in (given, {"schema": described(plain), "payload": given}, {"schema": None, "payload": given}):
        assert reader(primary_key=["id"]).deserialize_flat(text(shape)) == all_rows
        assert reader(changelog_mode="upsert").deserialize_flat(text(shape)) == upserts


def an_update_and_a_deletion_without_old_rows_are_upserts_and_else_name_the_remedy() -> None:
    upsert = reader(changelog_mode="upsert")
    assert upsert.deserialize_flat(text(event("u", None, BONN))) == [of(AFTER, BONN)]
    assert upsert.deserialize_flat(text(event("d", {"id": 1}))) == [of(DELETE, KEY)]
    with pytest.raises(ValueError, match=r"no old row.*REPLICA IDENTITY FULL.*changelog_mode='upsert'"):
        reader().deserialize_flat(text(event("u", None, BONN)))
    with pytest.raises(ValueError, match=r"before has no column 'city'.*REPLICA IDENTITY FULL.*changelog_mode='upsert'"):
        reader().deserialize_flat(text(event("d", {"id": 1})))
    for old in (None, {"city": "Pune"}):
        with pytest.raises(ValueError, match=r"the deletion (has no old row.*REPLICA IDENTITY FULL|lacks the primary key)"):
            upsert.deserialize_flat(text(event("d", old)))


def a_column_that_an_event_lacks_is_an_error_or_none() -> None:
    short = {"id": 1, "amount": 2.5}
    with pytest.raises(ValueError, match=r"after has no column 'city' \(it has id, amount\).*missing_columns='null'"):
        reader().deserialize_flat(text(event("c", None, short)))
    assert reader(missing_columns="null").deserialize_flat(text(event("c", None, short))) == [
        Row(id=1, city=None, amount=2.5)
    ]


def a_new_column_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    schema = reader()
    for _ in range(2):
        schema.deserialize_flat(text(event("c", None, {**PUNE, "of_old": 1})))
    assert not caplog.records
    for _ in range(2):
        schema.deserialize_flat(text(event("c", None, {**PUNE, "of_old": 1, "note": "x"})))
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == ["note"]


def a_truncate_is_an_error_or_skipped() -> None:
    with pytest.raises(ValueError, match=r"TRUNCATE.*on_truncate='skip'"):
        reader().deserialize_flat(text(event("t")))
    assert reader(on_truncate="skip").deserialize_flat(text(event("t"))) == []


@pytest.mark.parametrize("placeholder", ["__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="])
def a_value_that_an_update_did_not_change_is_that_of_the_old_row(placeholder: str) -> None:
    large = {**PUNE, "city": placeholder}
    assert reader().deserialize_flat(text(event("u", BONN, large))) == [of(BEFORE, BONN), of(AFTER, BONN)]
    for each in (event("u", None, large), event("u", {"id": 1}, large), event("u", large, large)):
        with pytest.raises(ValueError, match=r"lacks the value of the column 'city'.*REPLICA IDENTITY FULL"):
            reader(changelog_mode="upsert").deserialize_flat(text(each))
    tags = Types.ROW_NAMED(["id", "tags"], [Types.LONG(), Types.LIST(Types.STRING())])
    with pytest.raises(ValueError, match=r"lacks the value of the column 'tags'"):
        reader(tags, changelog_mode="upsert").deserialize_flat(
            text(event("u", None, {"id": 1, "tags": ["__debezium_unavailable_value"]}))
        )


OTHERS = [
    ({"status": "BEGIN", "id": "571:1", "ts_ms": 1}, "the BEGIN of a transaction: read the topics of tables"),
    ({"status": "END", "id": "571:1", "event_count": 2, "data_collections": []}, "the END of a transaction"),
    ({"databaseName": "shop", "ddl": "ALTER TABLE t", "tableChanges": []}, "a schema change: read the topics of tables"),
    ({"ts_ms": 5}, "a heartbeat: read the topics of tables"),
    (PUNE, "no op.*ExtractNewRecordState.*JsonRowDeserializationSchema"),
    (event("x", None, PUNE), "its op is 'x'"),
    (event("c"), "after is null"),
    (event("u", PUNE), "after is null"),
    (event("c", None, '{"_id": 1}'), "documents of MongoDB.*JsonRowDeserializationSchema"),
    ({"op": "u", "updateDescription": {}, "after": "{}"}, "documents of MongoDB"),
    ({**PUNE, "op": "c"}, "neither before nor after.*ExtractNewRecordState"),
    (5, "Expected `object"),
    ({"schema": {"type": "int64"}, "payload": event("c", None, PUNE)}, "the event's schema does not describe"),
]


@pytest.mark.parametrize(("given", "told"), OTHERS, ids=[told[:20] for _, told in OTHERS])
def an_event_of_another_topic_is_refused_by_name_or_dropped(given: Any, told: str) -> None:
    for shape in (given,) if "schema" in repr(given) else (given, {"schema": None, "payload": given}):
        with pytest.raises(ValueError, match=r"not an event of Debezium with the declared columns: ") as refused:
            reader().deserialize_flat(text(shape))
        assert re.search(told, str(refused.value))
        assert reader(ignore_parse_errors=True).deserialize_flat(text(shape)) == []
    assert reader(ignore_parse_errors=True).deserialize_flat(b"{") == []


# ---- values ----

KAFKA, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 5000)
NOON_MS = 1709208000005
DECIMAL = {"type": "bytes", "name": KAFKA + "Decimal", "version": 1, "parameters": {"scale": "2"}}


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


VALUES: list[tuple[TypeInformation[Any], dict[str, Any], Any, Any]] = [
    (Types.BIG_DEC(), DECIMAL, unscaled(1234), Decimal("12.34")),
    (Types.BIG_DEC(), DECIMAL, unscaled(-1), Decimal("-0.01")),
    (Types.BIG_DEC(), DECIMAL, unscaled(10**40), Decimal(f"{10**40}E-2")),
    (Types.DOUBLE(), DECIMAL, unscaled(1250), 12.5),
    (Types.BIG_INT(), {**DECIMAL, "parameters": {"scale": "0"}}, unscaled(2**70), 2**70),
    (Types.STRING(), DECIMAL, unscaled(-5), "-0.05"),
    (Types.BIG_DEC(), {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
     {"scale": 3, "value": unscaled(1500)}, Decimal("1.500")),
    (Types.BIG_DEC(), {"type": "string"}, "12.340", Decimal("12.340")),
    (Types.BIG_DEC(), {"type": "double"}, 0.1, Decimal("0.1")),
    (Types.BIG_DEC(), {"type": "int64"}, 7, Decimal(7)),
    (Types.DOUBLE(), {"type": "double"}, "NaN", float("nan")),
    (Types.SQL_DATE(), {"type": "int32", "name": DEBEZIUM + "Date"}, 19782, NOON.date()),
    (Types.SQL_DATE(), {"type": "int32", "name": KAFKA + "Date"}, -1, datetime.date(1969, 12, 31)),
    (Types.SQL_DATE(), {"type": "string", "name": DEBEZIUM + "IsoDate"}, "2024-02-29Z", NOON.date()),
    (Types.SQL_TIME(), {"type": "int32", "name": DEBEZIUM + "Time"}, 43200005, NOON.time()),
    (Types.SQL_TIME(), {"type": "int64", "name": DEBEZIUM + "MicroTime"}, 43200005999, NOON.time()),
    (Types.SQL_TIME(), {"type": "int64", "name": DEBEZIUM + "NanoTime"}, 43200005000000, NOON.time()),
    (Types.SQL_TIME(), {"type": "int32", "name": KAFKA + "Time"}, 0, datetime.time()),
    (Types.SQL_TIME(), {"type": "string", "name": DEBEZIUM + "ZonedTime"}, "14:00:00.005+02:00", NOON.time()),
    (Types.SQL_TIMESTAMP(), {"type": "int64", "name": DEBEZIUM + "Timestamp"}, NOON_MS, NOON),
    (Types.SQL_TIMESTAMP(), {"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}, NOON_MS * 1000 + 999, NOON),
    (Types.SQL_TIMESTAMP(), {"type": "int64", "name": DEBEZIUM + "NanoTimestamp"}, NOON_MS * 10**6, NOON),
    (Types.SQL_TIMESTAMP(), {"type": "int64", "name": KAFKA + "Timestamp"}, -1,
     datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)),
    (Types.SQL_TIMESTAMP(), {"type": "string", "name": DEBEZIUM + "IsoTimestamp"}, "2024-02-29T12:00:00.005Z", NOON),
    (Types.SQL_TIMESTAMP(), {"type": "string"}, "2024-02-29 12:00:00.005", NOON),
    (Types.INSTANT(), {"type": "string", "name": DEBEZIUM + "ZonedTimestamp"}, "2024-02-29T12:00:00.000007Z",
     Instant(1709208000, 7000)),
    (Types.INSTANT(), {"type": "int64", "name": DEBEZIUM + "NanoTimestamp"}, -1, Instant(-1, 999_999_999)),
    (Types.LONG(), {"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}, 5, 5),
    (Types.LONG(), {"type": "int64", "name": DEBEZIUM + "MicroDuration"}, 3_600_000_000, 3_600_000_000),
    (BYTES, {"type": "bytes"}, "AP8=", b"\0\xff"),
    (Types.BOOLEAN(), {"type": "boolean"}, True, True),
    (Types.BOOLEAN(), {"type": "int16"}, 1, True),
    (Types.SHORT(), {"type": "int16"}, -7, -7),
    (Types.LONG(), {"type": "int64"}, "9007199254740993", 9007199254740993),
    (Types.FLOAT(), {"type": "float"}, 0.1, 0.10000000149011612),
    (Types.STRING(), {"type": "string", "name": "io.debezium.data.Json"}, '{"a": 1}', '{"a": 1}'),
    (Types.LIST(Types.DOUBLE()), {"type": "array"}, [1.5, None], [1.5, None]),
    (Types.MAP(Types.STRING(), Types.STRING()), {"type": "map"}, {"a": "b"}, {"a": "b"}),
    (Types.ROW_NAMED(["x", "y"], [Types.DOUBLE()] * 2), {"type": "struct", "name": "io.debezium.data.geometry.Point"},
     {"x": 1.5, "y": 2, "wkb": "AA=="}, Row(x=1.5, y=2.0)),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "column", "given", "found"), VALUES, ids=repr)
def a_value_is_read_by_the_schema_in_its_event(
    declared: TypeInformation[Any], column: dict[str, Any], given: Any, found: Any
) -> None:
    schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]))
    for value, expected in ((given, found), (None, None)):
        shape = {
            "schema": described({"id": {"type": "int64"}, "x": column}),
            "payload": event("c", None, {"id": 1, "x": value}),
        }
        (row,) = schema.deserialize_flat(text(shape))
        assert (type(row.x), repr(row.x)) == (type(expected), repr(expected))


WITHOUT = [
    (Types.BIG_DEC(), {"decimal_scales": {"x": 2}}, unscaled(1234), Decimal("12.34")),
    (Types.BIG_DEC(), {}, "12.34", Decimal("12.34")),
    (Types.SQL_DATE(), {}, 19782, NOON.date()),
    (Types.SQL_DATE(), {}, "2024-02-29", NOON.date()),
    (Types.SQL_TIME(), {"time_unit": {"x": "us"}}, 43200005000, NOON.time()),
    (Types.SQL_TIMESTAMP(), {"time_unit": "us"}, NOON_MS * 1000, NOON),
    (Types.SQL_TIMESTAMP(), {"time_unit": {"x": "ms"}}, NOON_MS, NOON),
    (Types.INSTANT(), {"time_unit": "ns"}, 1, Instant(0, 1)),
]


@pytest.mark.parametrize(("declared", "arguments", "given", "found"), WITHOUT, ids=repr)
def a_value_without_a_schema_is_read_by_the_arguments(declared: Any, arguments: Any, given: Any, found: Any) -> None:
    schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]), **arguments)
    assert schema.deserialize_flat(text(event("c", None, {"id": 1, "x": given}))) == [Row(id=1, x=found)]


MISFITS = [
    (Types.LONG(), "seven", "it is no number"),
    (Types.LONG(), 1.5, "without loss"),
    (Types.INT(), 2**31, "INT holds"),
    (Types.LONG(), True, "not a boolean"),
    (Types.STRING(), 5, "takes text, not int"),
    (Types.BIG_DEC(), "BNI=", "decimal.handling.mode=string.*decimal_scales"),
    (Types.BIG_DEC(), {"value": "BNI="}, "scale and value"),
    (Types.BIG_DEC(), "NaN", "finite"),
    (Types.SQL_TIMESTAMP(), NOON_MS, "its unit is unknown.*schemas.enable=true.*time_unit"),
    (Types.SQL_TIME(), [], "whole number or text, not list"),
    (Types.SQL_DATE(), 10**12, ""),
    (Types.SQL_DATE(), "today", ""),
    (BYTES, "%", ""),
    (Types.BOOLEAN(), "maybe", ""),
    (Types.LIST(Types.LONG()), ["a"], ""),
]


@pytest.mark.parametrize(("declared", "given", "told"), MISFITS, ids=repr)
def a_value_that_does_not_fit_names_its_column(declared: Any, given: Any, told: str) -> None:
    schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]))
    with pytest.raises(ValueError, match=rf"after has in the column 'x' the value .* does not take: .*{told}"):
        schema.deserialize_flat(text(event("c", None, {"id": 1, "x": given})))


def a_time_of_more_than_a_day_and_a_schema_of_another_kind_are_refused() -> None:
    schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), Types.SQL_TIME()]))
    for encoding, told in (("MicroTime", "no time of a day"), ("MicroTimestamp", "which .* does not take")):
        columns = {"id": {"type": "int64"}, "x": {"type": "int64", "name": DEBEZIUM + encoding}}
        with pytest.raises(ValueError, match=rf"column 'x'.*{told}"):
            schema.deserialize_flat(
                text({"schema": described(columns), "payload": event("c", None, {"id": 1, "x": 86_400_000_000})})
            )


def an_argument_that_cannot_be_used_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"declared": Types.LONG()}, "Types.ROW_NAMED"),
        ({"changelog_mode": "some"}, "changelog_mode is one of all, upsert, not 'some'"),
        ({"changelog_mode": "upsert", "primary_key": []}, "needs the primary_key"),
        ({"on_truncate": "emit"}, "on_truncate is one of fail, skip"),
        ({"missing_columns": 0}, "missing_columns is one of fail, null"),
        ({"time_unit": "s"}, "time_unit is one of ms, us, ns"),
        ({"time_unit": {"z": "ms"}}, r"time_unit: the declared columns \(id, city, amount\) lack z"),
        ({"primary_key": ["id", "z"]}, "primary_key: .* lack z"),
        ({"decimal_scales": {"amount": "2"}}, "the scale of amount is a whole number"),
    ]
    for arguments, told in cases:
        with pytest.raises(ConfigurationError, match=told):
            reader(**arguments)
    with pytest.raises(ConfigurationError, match=r"Types\.ROW_NAMED"):
        DebeziumJsonRowSerializationSchema(Types.LONG())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="changelog_mode is one of"):
        DebeziumJsonRowSerializationSchema(ORDERS, "some")  # type: ignore[arg-type]


# ---- Kafka ----


def message(offset: int, value: bytes | None) -> Message:
    return Message("shop.public.orders", 2, offset, value=value, timestamp=(1, 1000 + offset))


def the_rows_of_an_event_have_its_offset_and_its_timestamp() -> None:
    given = [(4, event("r", None, PUNE)), (5, event("u", PUNE, BONN)), (6, event("m")), (7, event("d", BONN)), (8, None)]
    messages = [message(offset, None if each is None else text(each)) for offset, each in given]
    batch = MessageBatches(reader(), "u").batch("shop.public.orders", 2, messages)
    assert batch is not None
    assert batch.values == [of(INSERT, PUNE), of(BEFORE, PUNE), of(AFTER, BONN), of(DELETE, BONN)]
    assert batch.timestamps == [1004, 1005, 1005, 1007]
    assert [batch.locate(i).rpartition(" ")[2] for i in range(4)] == ["4", "5", "5", "7"]
    assert MessageBatches(reader(), "u").batch("shop.public.orders", 2, messages[2:3]) is None


def an_event_that_does_not_fit_is_named_with_its_offset_column_and_remedy() -> None:
    messages = [message(4, text(event("c", None, PUNE))), message(5, text(event("c", None, {**PUNE, "amount": "x"})))]
    with pytest.raises(UserCodeError, match=r"(?s)column 'amount' the value 'x'.*topic t, partition 2, offset 5"):
        MessageBatches(reader(), "u").batch("t", 2, messages)


def written(rows: list[Row], mode: Any = "all") -> Any:
    schema = pickle.loads(pickle.dumps(DebeziumJsonRowSerializationSchema(ORDERS, mode)))
    serializer = RecordSerializer("out", schema, lambda row: str(row.id))
    return serializer.to_batch(rows, list(range(len(rows))), KafkaSinkContext({}, "sink", 0, 1))


def an_update_is_one_record_and_others_are_one_each() -> None:
    rows = [of(INSERT, PUNE), of(BEFORE, PUNE), of(AFTER, BONN), of(DELETE, BONN)]
    batch = written(rows)
    assert [json.loads(data) for data in batch.values] == [
        {"before": None, "after": PUNE, "op": "c"},
        {"before": PUNE, "after": BONN, "op": "u"},
        {"before": BONN, "after": None, "op": "d"},
    ]
    assert (batch.keys, batch.timestamps) == ([b"1"] * 3, [0, 2, 3])
    ops = [json.loads(data)["op"] for half in (rows[:2], rows[2:]) for data in written(half).values]
    assert ops == ["c", "d", "c", "d"]  # divided between two batches
    upserts = [json.loads(data) for data in written(rows, "upsert").values]
    assert upserts[1] == {"before": None, "after": BONN, "op": "u"}
    assert [each["op"] for each in upserts] == ["c", "u", "d"]


def a_row_without_a_kind_and_a_mode_of_tombstones_are_refused() -> None:
    with pytest.raises(UserCodeError, match=r"(?s)Rows with a kind, not of dict"):
        written([PUNE])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="leave upsert_mode out"):
        KafkaRecordSerializationSchema(
            topic="out",
            key_serialization_schema=str,
            value_serialization_schema=DebeziumJsonRowSerializationSchema(ORDERS),
            upsert_mode=True,
        )
    with pytest.raises(ValueError, match="filter these rows out"):
        DebeziumJsonRowSerializationSchema(ORDERS, "upsert").serialize(of(BEFORE, PUNE))
    with pytest.raises(ValueError, match=r"2 records are in one input.*flat_map"):
        reader().deserialize(text(event("u", PUNE, BONN)))


TYPED = {
    "id": (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    "city": (Types.STRING(), st.text(st.characters(codec="utf-8"))),
    "paid": (Types.BOOLEAN(), st.booleans()),
    "ratio": (Types.DOUBLE(), st.floats(allow_nan=False)),
    "amount": (
        Types.BIG_DEC(),
        st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: number or abs(number)),
    ),
    "count": (Types.BIG_INT(), st.integers(-(2**200), 2**200)),
    "day": (Types.SQL_DATE(), st.dates()),
    "at": (Types.SQL_TIME(), st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000, fold=0))),
    "when": (
        Types.SQL_TIMESTAMP(),
        st.datetimes().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, fold=0)),
    ),
    "seen": (Types.INSTANT(), st.builds(Instant, st.integers(-(10**9), 10**10), st.integers(0, 10**9 - 1))),
    "raw": (BYTES, st.binary()),
    "tags": (Types.LIST(Types.STRING()), st.lists(st.text(st.characters(codec="utf-8")), max_size=3)),
}
TABLE = Types.ROW_NAMED(list(TYPED), [declared for declared, _ in TYPED.values()])
FIELDS = st.tuples(*[values if name == "id" else st.none() | values for name, (_, values) in TYPED.items()]).map(
    lambda values: dict(zip(TYPED, values, strict=True))
)
ROWS = st.lists(st.builds(of, st.sampled_from(RowKind), FIELDS), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(rows=ROWS, cut=st.integers(0, 6))
def the_rows_of_a_changelog_come_back_as_they_were_written(rows: list[Row], cut: int) -> None:
    write, read = DebeziumJsonRowSerializationSchema(TABLE), reader(TABLE)
    halves = [rows[:cut], rows[cut:]]
    found = [row for half in halves for data in write.serialize_changes(half)[1] for row in read.deserialize_flat(data)]
    expected = []
    for half in halves:  # halves of an update that are not together are a deletion and an insertion
        for i, row in enumerate(half):
            kind, kinds = row.get_row_kind(), [each.get_row_kind() for each in half]
            if kind is BEFORE and kinds[i + 1 : i + 2] != [AFTER]:
                kind = DELETE
            elif kind is AFTER and (i == 0 or kinds[i - 1] is not BEFORE):
                kind = INSERT
            expected.append(of(kind, row.as_dict()))
    assert found == expected
    assert [repr(row) for row in found] == [repr(row) for row in expected]


@settings(max_examples=examples(30), deadline=None)
@given(rows=ROWS)
def the_upserts_come_back_as_they_were_written(rows: list[Row]) -> None:
    write, read = DebeziumJsonRowSerializationSchema(TABLE, "upsert"), reader(TABLE, changelog_mode="upsert")
    found = [row for data in write.serialize_changes(rows)[1] for row in read.deserialize_flat(data)]
    empty = dict.fromkeys(TYPED)
    assert found == [
        of(DELETE, {**empty, "id": row.id}) if row.get_row_kind() is DELETE else row
        for row in rows
        if row.get_row_kind() is not BEFORE
    ]
