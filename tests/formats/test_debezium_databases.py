"""What MySQL's and PostgreSQL's connectors of Debezium make of columns: read as it is, or refused with column and remedy.

The values are as the connectors' documentation and sources have them.
"""

from __future__ import annotations

import base64
import datetime
import re
from decimal import Decimal
from typing import Any

import pytest
from test_debezium import AFTER, BEFORE, BYTES, DEBEZIUM, DECIMAL, KAFKA, PUNE, described, event, reader, text, unscaled

from holdfast.common import Instant, Row, Types
from holdfast.common.typeinfo import TypeInformation

NOT_HERE = "__debezium_unavailable_value"
DATE = {"type": "int32", "name": DEBEZIUM + "Date"}
VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
INT, LONG, STRING = {"type": "int16"}, {"type": "int64"}, {"type": "string"}


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"optional": True, **items}}


def row_of(declared: TypeInformation[Any], column: dict[str, Any], value: Any, **arguments: Any) -> Any:
    """The value of an event with a schema."""
    schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]), **arguments)
    payload = event("c", None, {"id": 1, "x": value})
    (row,) = schema.deserialize_flat(text({"schema": described({"id": LONG, "x": column}), "payload": payload}))
    return row.x


TEXTS = Types.LIST(Types.STRING())
READ: dict[str, tuple[TypeInformation[Any], dict[str, Any], Any, Any]] = {
    # MySQL
    "decimal, precise": (Types.BIG_DEC(), DECIMAL, unscaled(-12345), Decimal("-123.45")),
    "decimal, string": (Types.BIG_DEC(), STRING, "-123.450", Decimal("-123.450")),
    "decimal, double": (Types.BIG_DEC(), {"type": "double"}, -123.45, Decimal("-123.45")),
    "decimal of zero": (Types.BIG_DEC(), DECIMAL, unscaled(0), Decimal("0.00")),
    "decimal of many digits": (Types.BIG_DEC(), DECIMAL, unscaled(10**5000), Decimal((0, (1, *[0] * 5000), -2))),
    "bigint unsigned, precise": (
        Types.BIG_INT(), {**DECIMAL, "parameters": {"scale": "0"}}, unscaled(2**64 - 1), 2**64 - 1,
    ),
    "tinyint(1)": (Types.BOOLEAN(), INT, 0, False),
    "tinyint(1) as a number": (Types.SHORT(), INT, -128, -128),
    "bit(1)": (Types.BOOLEAN(), {"type": "boolean"}, True, True),
    "bit(10)": (Types.INT(), {"type": "bytes", "name": "io.debezium.data.Bits"}, "AQI=", 513),
    "bit(10) as bytes": (BYTES, {"type": "bytes", "name": "io.debezium.data.Bits"}, "AQI=", b"\x01\x02"),
    "binary, bytes": (BYTES, {"type": "bytes"}, "+/8=", b"\xfb\xff"),
    "binary, base64-url-safe": (BYTES, STRING, "-_8=", b"\xfb\xff"),
    "binary, hex": (Types.STRING(), STRING, "fbff", "fbff"),
    "json": (Types.STRING(), {**STRING, "name": "io.debezium.data.Json"}, '{"a":[1]}', '{"a":[1]}'),
    "enum": (Types.STRING(), {**STRING, "name": "io.debezium.data.Enum"}, "small", "small"),
    "set": (Types.STRING(), {**STRING, "name": "io.debezium.data.EnumSet"}, "a,c", "a,c"),
    "year": (Types.INT(), {"type": "int32", "name": DEBEZIUM + "Year"}, 2024, 2024),
    "time, connect": (Types.SQL_TIME(), {"type": "int32", "name": KAFKA + "Time"}, 3_600_000, datetime.time(1)),
    "time, adaptive": (Types.SQL_TIME(), {"type": "int64", "name": DEBEZIUM + "MicroTime"}, 3_600_000_000, datetime.time(1)),
    "time of days": (Types.LONG(), {"type": "int64", "name": DEBEZIUM + "MicroTime"}, -302_400_000_000, -302_400_000_000),
    "datetime, connect": (
        Types.SQL_TIMESTAMP(), {"type": "int64", "name": KAFKA + "Timestamp"}, 86_400_000, datetime.datetime(1970, 1, 2),
    ),
    "timestamp": (
        Types.INSTANT(), {**STRING, "name": DEBEZIUM + "ZonedTimestamp"}, "1970-01-01T00:00:05Z", Instant(5, 0),
    ),
    "point": (
        Types.ROW_NAMED(["x", "wkb"], [Types.DOUBLE(), BYTES]), {"type": "struct"},
        {"x": 1, "y": 2, "wkb": "AA==", "srid": None}, Row(x=1.0, wkb=b"\0"),
    ),
    # PostgreSQL
    "numeric": (Types.BIG_DEC(), VARIABLE, {"scale": 1, "value": unscaled(15)}, Decimal("1.5")),
    "numeric as text": (Types.STRING(), VARIABLE, {"scale": 1, "value": unscaled(15)}, "1.5"),
    "numeric[], precise": (
        Types.LIST(Types.BIG_DEC()), array(DECIMAL), [unscaled(150), None], [Decimal("1.50"), None],
    ),
    "numeric[] without a scale": (
        Types.LIST(Types.BIG_DEC()), array(VARIABLE), [{"scale": 0, "value": unscaled(2)}], [Decimal(2)],
    ),
    "date[]": (Types.LIST(Types.SQL_DATE()), array(DATE), [1, None], [datetime.date(1970, 1, 2), None]),
    "timestamp[]": (
        Types.OBJECT_ARRAY(Types.SQL_TIMESTAMP()), array({"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}), [10**6],
        [datetime.datetime(1970, 1, 1, 0, 0, 1)],
    ),
    "bytea[]": (Types.LIST(BYTES), array({"type": "bytes"}), ["AP8="], [b"\0\xff"]),
    "integer[]": (Types.PRIMITIVE_ARRAY(Types.INT()), array({"type": "int32"}), [1, 2], [1, 2]),
    "text[]": (TEXTS, array(STRING), ["a", None, ""], ["a", None, ""]),
    "hstore, map": (Types.MAP(Types.STRING(), Types.STRING()), {"type": "map", "values": STRING}, {"a": None}, {"a": None}),
    "hstore, json": (Types.STRING(), STRING, '{"a": null}', '{"a": null}'),
    "uuid": (Types.STRING(), {**STRING, "name": "io.debezium.data.Uuid"}, "b68a35a7-17ad-35b3-af2a-ae46edb4545b",
             "b68a35a7-17ad-35b3-af2a-ae46edb4545b"),
    "interval, numeric": (Types.LONG(), {"type": "int64", "name": DEBEZIUM + "MicroDuration"}, 864 * 10**8, 864 * 10**8),
    "interval, string": (Types.STRING(), {**STRING, "name": DEBEZIUM + "Interval"}, "P1Y2M3DT6.78S", "P1Y2M3DT6.78S"),
    "timetz": (Types.SQL_TIME(), {**STRING, "name": DEBEZIUM + "ZonedTime"}, "02:00:00Z", datetime.time(2)),
    "int4range": (Types.STRING(), STRING, "[1,5)", "[1,5)"),
    "money": (Types.BIG_DEC(), DECIMAL, unscaled(100), Decimal("1.00")),
    "json in an array": (TEXTS, array({**STRING, "name": "io.debezium.data.Json"}), ['{"a":1}'], ['{"a":1}']),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def a_column_is_read_as_the_connector_writes_it(case: str) -> None:
    declared, column, value, found = READ[case]
    given = row_of(declared, column, value)
    assert (type(given), repr(given)) == (type(found), repr(found))
    assert row_of(declared, column, None) is None


REFUSED: dict[str, tuple[TypeInformation[Any], dict[str, Any], Any, str]] = {
    "tinyint(1) that is no truth": (Types.BOOLEAN(), INT, 2, "BOOLEAN|bool"),
    "bit(1) as a number": (Types.SHORT(), {"type": "boolean"}, True, "takes numbers, not a boolean"),
    "bigint unsigned that does not fit": (
        Types.LONG(), {**DECIMAL, "parameters": {"scale": "0"}}, unscaled(2**64 - 1), "LONG holds",
    ),
    "a decimal as a whole number": (Types.LONG(), DECIMAL, unscaled(150), "without loss"),
    "a decimal that is no base64": (Types.BIG_DEC(), DECIMAL, "1.50", ""),
    "a decimal as a map": (Types.MAP(Types.STRING(), Types.STRING()), DECIMAL, unscaled(1), "its values are decimals"),
    "a time of days": (
        Types.SQL_TIME(), {"type": "int64", "name": DEBEZIUM + "MicroTime"}, -1, "no time of a day: declare LONG",
    ),
    "a date of infinity": (Types.SQL_DATE(), DATE, 2**31 - 1, ""),
    "a date before Christ": (Types.SQL_DATE(), DATE, -10**6, ""),
    "a timestamp of infinity": (
        Types.SQL_TIMESTAMP(), {"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}, 9223372036825200000, "",
    ),
    "a moment of infinity": (Types.INSTANT(), {**STRING, "name": DEBEZIUM + "ZonedTimestamp"}, "infinity", ""),
    "numeric NaN": (Types.BIG_DEC(), STRING, "NaN", "finite"),
    "an array as text": (Types.STRING(), array(STRING), ["a"], "takes text, not list"),
    "text as an array": (TEXTS, STRING, "{a}", "takes an array, not str"),
    "text as a map": (Types.MAP(Types.STRING(), Types.STRING()), STRING, '{"a": 1}', "takes an object, not str"),
    "a null in an array of numbers": (Types.PRIMITIVE_ARRAY(Types.INT()), array({"type": "int32"}), [1, None], ""),
    "structured times": (Types.SQL_DATE(), {"type": "struct", "name": DEBEZIUM + "StructuredDate"}, {"year": 1}, "not dict"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def a_value_that_its_column_does_not_take_is_refused_by_name(case: str) -> None:
    declared, column, value, told = REFUSED[case]
    with pytest.raises(ValueError, match=rf"column 'x'.*{told}"):
        row_of(declared, column, value)


def a_part_without_a_schema_is_read_by_the_arguments_of_its_column() -> None:
    declared = Types.ROW_NAMED(
        ["id", "days", "prices"], [Types.LONG(), Types.LIST(Types.SQL_TIMESTAMP()), Types.LIST(Types.BIG_DEC())]
    )
    schema = reader(declared, time_unit={"days": "us"}, decimal_scales={"prices": 2})
    given = event("c", None, {"id": 1, "days": [10**6], "prices": [unscaled(150), None]})
    at = datetime.datetime(1970, 1, 1, 0, 0, 1)
    assert schema.deserialize_flat(text(given)) == [Row(id=1, days=[at], prices=[Decimal("1.50"), None])]


BYTES_OF_IT = list(NOT_HERE.encode())
PLACEHOLDERS: dict[str, tuple[TypeInformation[Any], Any, Any]] = {
    "text": (Types.STRING(), NOT_HERE, "old"),
    "bytea": (BYTES, base64.b64encode(NOT_HERE.encode()).decode(), "AA=="),
    "bytea, hex": (Types.STRING(), NOT_HERE.encode().hex(), "00"),
    "text[]": (TEXTS, [NOT_HERE], ["old"]),
    "uuid[]": (TEXTS, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], ["old"]),
    "bytea[]": (Types.LIST(BYTES), [base64.b64encode(NOT_HERE.encode()).decode()], ["AA=="]),
    "integer[]": (Types.LIST(Types.INT()), BYTES_OF_IT, [1]),
    "double[]": (Types.LIST(Types.DOUBLE()), [float(byte) for byte in BYTES_OF_IT], [1.0]),
    "numeric[]": (Types.LIST(Types.BIG_DEC()), [{"scale": 0, "value": unscaled(byte)} for byte in BYTES_OF_IT], [1]),
    "hstore": (Types.MAP(Types.STRING(), Types.STRING()), {NOT_HERE: NOT_HERE}, {"a": "b"}),
}


@pytest.mark.parametrize("case", PLACEHOLDERS)
def a_large_value_that_an_update_did_not_change_is_that_of_the_old_row_or_refused(case: str) -> None:
    declared, placeholder, old = PLACEHOLDERS[case]
    schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]), primary_key=["id"])
    before, after = schema.deserialize_flat(text(event("u", {"id": 1, "x": old}, {"id": 1, "x": placeholder})))
    assert (before.get_row_kind(), after.get_row_kind(), after.x) == (BEFORE, AFTER, before.x)
    # an update of the key whose old row has the key alone: a null there is no value
    for row in ({"id": 2}, {"id": 2, "x": None}, {"id": 2, "x": placeholder}):
        upserts = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]), changelog_mode="upsert")
        with pytest.raises(ValueError, match=r"lacks the value of the column 'x'.*REPLICA IDENTITY FULL"):
            upserts.deserialize_flat(text(event("u", row, {"id": 1, "x": placeholder})))


def a_value_that_resembles_a_placeholder_is_one_of_its_own() -> None:
    cases = [[NOT_HERE, "b"], [], BYTES_OF_IT[:-1], [*BYTES_OF_IT[:-1], 0], [True] * len(BYTES_OF_IT)]
    for each in (*cases, {NOT_HERE: "b"}, f"{NOT_HERE}s"):
        declared: Any = Types.PICKLED_BYTE_ARRAY()
        schema = reader(Types.ROW_NAMED(["id", "x"], [Types.LONG(), declared]))
        (row,) = schema.deserialize_flat(text(event("c", None, {"id": 1, "x": each})))
        assert row.x == each


FIELDS = {"id": LONG, "city": STRING, "amount": {"type": "double"}}
OWN = [  # events that have schemas of their own
    ({"op": "m", "ts_ms": 1, "message": {"prefix": "p", "content": "aGk="}}, None),
    ({"op": "t", "ts_ms": 1, "source": {}}, "TRUNCATE"),
    ({"status": "END", "id": "571:1", "event_count": 2}, "the END of a transaction"),
    ({"databaseName": "shop", "ddl": "ALTER TABLE t", "tableChanges": []}, "a schema change"),
    ({"ts_ms": 5}, "a heartbeat"),
    ({"op": "c", "after": '{"_id": {"$oid": "6"}}', "source": {"collection": "c"}}, "documents of MongoDB"),
    ({"op": "d", "after": None, "before": '{"_id": {"$oid": "6"}}'}, "documents of MongoDB"),
    ({**PUNE, "__op": "u", "__deleted": "false"}, "no op.*ExtractNewRecordState"),
    ({**PUNE, "op": "d", "__deleted": "true"}, "neither before nor after.*ExtractNewRecordState"),
]


@pytest.mark.parametrize(("given", "told"), OWN, ids=lambda each: str(each)[:20])
def an_event_with_a_schema_of_its_own_is_told_apart_from_changes(given: dict[str, Any], told: str | None) -> None:
    fields = [{"field": name, "type": "string"} for name in given]
    data = text({"schema": {"type": "struct", "fields": fields}, "payload": given})
    if told is None:
        assert reader().deserialize_flat(data) == []
        return
    with pytest.raises(ValueError, match="not an event of Debezium") as refused:
        reader().deserialize_flat(data)
    assert re.search(told, str(refused.value))
