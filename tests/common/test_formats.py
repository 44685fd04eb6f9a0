"""JSON and CSV schemas."""

from __future__ import annotations

import csv
import datetime
import json
import math
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import (
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    Instant,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    Row,
    TypeInformation,
    Types,
)
from holdfast.common.formats.json_schema import type_of_json_schema
from holdfast.errors import ConfigurationError

PAYMENT = Types.ROW_NAMED(
    ["id", "amount", "tags", "place"],
    [
        Types.LONG(),
        Types.DOUBLE(),
        Types.LIST(Types.STRING()),
        Types.ROW_NAMED(["city"], [Types.STRING()]),
    ],
)


def reader(type_info: TypeInformation) -> JsonRowDeserializationSchema:
    return JsonRowDeserializationSchema.builder().type_info(type_info).build()


def writer(type_info: TypeInformation) -> JsonRowSerializationSchema:
    return JsonRowSerializationSchema.builder().with_type_info(type_info).build()


def field(type_info: TypeInformation) -> TypeInformation:
    return Types.ROW_NAMED(["x"], [type_info])


def test_json_objects_become_rows() -> None:
    data = b'{"place": {"city": "Pune", "zip": 1}, "amount": 5, "id": 7, "tags": ["a", null], "other": {}}'
    row = reader(PAYMENT).deserialize(data)
    assert row == Row(id=7, amount=5.0, tags=["a", None], place=Row(city="Pune"))
    assert list(row.as_dict()) == ["id", "amount", "tags", "place"]
    assert reader(PAYMENT).deserialize(b"{}") == Row(id=None, amount=None, tags=None, place=None)
    assert reader(PAYMENT).deserialize_batch([data, b"{}"])[0] == row


@pytest.mark.parametrize(
    ("type_info", "text", "value"),
    [
        (Types.LONG(), b'"12"', 12),
        (Types.LONG(), b"12.0", 12),
        (Types.DOUBLE(), b'"1.5"', 1.5),
        (Types.FLOAT(), b"1.1", 1.100000023841858),
        (Types.BOOLEAN(), b"true", True),
        (Types.BIG_INT(), b"123456789012345678901234567890", 123456789012345678901234567890),
        (Types.BIG_DEC(), b"0.12345678901234567890123456789", Decimal("0.12345678901234567890123456789")),
        (Types.SQL_DATE(), b'"2026-01-31"', datetime.date(2026, 1, 31)),
        (Types.SQL_TIME(), b'"12:30:00Z"', datetime.time(12, 30)),
        (Types.SQL_TIMESTAMP(), b'"2026-01-31T12:30:00+05:30"', datetime.datetime(2026, 1, 31, 7, 0)),
        (Types.SQL_TIMESTAMP(), b'"2026-01-31 12:30:00"', datetime.datetime(2026, 1, 31, 12, 30)),
        (Types.INSTANT(), b'"1970-01-01T00:00:01.5Z"', Instant(1, 500_000_000)),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b'"aGk="', b"hi"),
        (Types.MAP(Types.STRING(), Types.SQL_DATE()), b'{"a": "2026-01-31"}', {"a": datetime.date(2026, 1, 31)}),
        (Types.MAP(Types.LONG(), Types.LONG()), b'{"1": 2}', {1: 2}),
        (Types.TUPLE([Types.LONG(), Types.BIG_DEC()]), b"[1, 2.5]", (1, Decimal("2.5"))),
        (Types.OBJECT_ARRAY(Types.ROW([Types.LONG()])), b'[{"f0": 1}, null]', [Row(f0=1), None]),
        (Types.PICKLED_BYTE_ARRAY(), b'{"any": [1]}', {"any": [1]}),
        (Types.STRING(), b"null", None),
    ],
)
def test_json_values_become_values_of_the_type(type_info: TypeInformation, text: bytes, value: object) -> None:
    row = reader(field(type_info)).deserialize(b'{"x":' + text + b"}")
    assert row.x == value
    assert type(row.x) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"id": "seven"}', r"\$\.id"),
        (b'{"id": 7.5}', r"\$\.id"),
        (b'{"id": 9223372036854775808}', r"\$\.id"),
        (b'{"tags": "a"}', r"\$\.tags"),
        (b'{"place": {"city": 5}}', r"\$\.place\.city"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b'{"id": 7', "truncated"),
        (b"", "truncated"),
        (b"\xff", "JSON"),
    ],
)
def test_input_other_than_a_record_is_refused_with_its_place(text: bytes, message: str) -> None:
    schema = reader(PAYMENT)
    with pytest.raises(ValueError, match=message) as caught:
        schema.deserialize(text)
    assert repr(text)[:20] in str(caught.value)
    with pytest.raises(ValueError, match=message):
        schema.deserialize_batch([b"{}", text])
    lenient = JsonRowDeserializationSchema.builder().type_info(PAYMENT).ignore_parse_errors().build()
    assert lenient.deserialize(text) is None
    assert lenient.deserialize_batch([b'{"id": 1}', text, b'{"id": 2}'])[1] is None


def test_a_missing_field_can_be_an_error() -> None:
    schema = JsonRowDeserializationSchema.builder().type_info(PAYMENT).fail_on_missing_field().build()
    with pytest.raises(ValueError, match="missing required field `amount`"):
        schema.deserialize(b'{"id": 1}')
    assert schema.deserialize(b'{"id": null, "amount": 1, "tags": [], "place": {"city": "x"}}').id is None


def test_a_json_schema_without_a_type_is_refused_when_built() -> None:
    with pytest.raises(ConfigurationError, match="type_info"):
        JsonRowDeserializationSchema.builder().build()
    with pytest.raises(ConfigurationError, match="with_type_info"):
        JsonRowSerializationSchema.builder().build()
    with pytest.raises(ConfigurationError, match="exclude each other"):
        JsonRowDeserializationSchema.builder().type_info(PAYMENT).fail_on_missing_field().ignore_parse_errors().build()
    with pytest.raises(ConfigurationError, match="keys"):
        reader(field(Types.MAP(Types.BOOLEAN(), Types.LONG())))


@pytest.mark.parametrize(
    ("type_info", "value", "text"),
    [
        (Types.BIG_INT(), 2**70, "1180591620717411303424"),
        (Types.BIG_DEC(), Decimal("1.10"), "1.10"),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2026, 1, 31, 12, 30), '"2026-01-31T12:30:00Z"'),
        (Types.SQL_TIME(), datetime.time(12, 30), '"12:30:00Z"'),
        (Types.SQL_DATE(), datetime.date(2026, 1, 31), '"2026-01-31"'),
        (Types.INSTANT(), Instant(1, 500_000_000), '"1970-01-01T00:00:01.5Z"'),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"hi", '"aGk="'),
        (Types.LIST(Types.ROW([Types.LONG()])), [Row(1), None], '[{"f0":1},null]'),
        (Types.MAP(Types.STRING(), Types.BIG_DEC()), {"a": Decimal(1), "b": None}, '{"a":1,"b":null}'),
        (Types.TUPLE([Types.LONG(), Types.BIG_INT()]), (1, 2), "[1,2]"),
        (Types.LONG(), None, "null"),
    ],
)
def test_values_are_written_as_json(type_info: TypeInformation, value: object, text: str) -> None:
    assert writer(field(type_info)).serialize(Row(x=value)) == b'{"x":' + text.encode() + b"}"


def test_a_record_that_does_not_fit_is_not_written() -> None:
    schema = writer(PAYMENT)
    with pytest.raises(TypeError, match="field id: LONG does not take 'x'"):
        schema.serialize(Row("x", 1.0, [], None))
    assert schema.serialize((1, 1, [], None)) == b'{"id":1,"amount":1.0,"tags":[],"place":null}'


strings = st.text()
rows = st.builds(
    lambda i, a, t, c: Row(id=i, amount=a, tags=t, place=c if c is None else Row(city=c)),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.lists(st.none() | strings),
    st.none() | strings,
)


@pytest.mark.parametrize(
    ("type_info", "value", "text"),
    [
        (Types.DOUBLE(), math.inf, b'"Infinity"'),
        (Types.FLOAT(), -math.inf, b'"-Infinity"'),
        (Types.LIST(Types.DOUBLE()), [1.0, None, math.inf], b'[1.0,null,"Infinity"]'),
        (Types.MAP(Types.STRING(), Types.ROW([Types.DOUBLE()])), {"a": Row(f0=math.inf)}, b'{"a":{"f0":"Infinity"}}'),
        (Types.INSTANT(), Instant(-1, 123_456_789), b'"1969-12-31T23:59:59.123456789Z"'),
        (Types.INSTANT(), Instant(-62135596800, 1), b'"0001-01-01T00:00:00.000000001Z"'),
    ],
)
def test_values_that_json_has_no_form_for_survive_it(type_info: TypeInformation, value: Any, text: bytes) -> None:
    data = writer(field(type_info)).serialize(Row(x=value))
    assert data == b'{"x":' + text + b"}"
    assert reader(field(type_info)).deserialize(data).x == value


def test_nan_and_infinity_survive_json() -> None:
    data = writer(field(Types.DOUBLE())).serialize(Row(x=math.nan))
    assert data == b'{"x":"NaN"}'
    assert math.isnan(reader(field(Types.DOUBLE())).deserialize(data).x)
    with pytest.raises(ValueError, match="finite"):
        reader(field(Types.BIG_DEC())).deserialize(data)


@given(st.lists(rows, max_size=4))
def test_rows_survive_json(batch: list[Row]) -> None:
    data = writer(PAYMENT).serialize_batch(batch)
    assert reader(PAYMENT).deserialize_batch(data) == batch  # type: ignore[arg-type]
    for row, text in zip(batch, data, strict=True):
        assert json.loads(text or b"") == row.as_dict(True)


def test_schemas_travel_by_pickle() -> None:
    data = b'{"id": 1}'
    csv_type = Types.ROW([Types.LONG(), Types.STRING()])
    assert pickle.loads(pickle.dumps(reader(PAYMENT))).deserialize(data).id == 1
    assert b'"id":1' in pickle.loads(pickle.dumps(writer(PAYMENT))).serialize(Row(1, None, None, None))
    csv_reader = CsvRowDeserializationSchema.Builder(csv_type).build()
    assert pickle.loads(pickle.dumps(csv_reader)).deserialize(b"1,a") == Row(f0=1, f1="a")
    csv_writer = CsvRowSerializationSchema.Builder(csv_type).build()
    assert pickle.loads(pickle.dumps(csv_writer)).serialize(Row(1, "a")) == b"1,a\n"


def test_a_json_schema_describes_a_type() -> None:
    schema = {
        "type": "object",
        "definitions": {"place": {"type": "object", "properties": {"city": {"type": ["string", "null"]}}}},
        "properties": {
            "id": {"type": "integer"},
            "amount": {"type": "number"},
            "ok": {"type": "boolean"},
            "at": {"type": "string", "format": "date-time"},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "place": {"$ref": "#/definitions/place"},
            "list": {"type": "array", "items": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
            "pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]},
        },
    }
    assert type_of_json_schema(json.dumps(schema)) == Types.ROW_NAMED(
        ["id", "amount", "ok", "at", "raw", "place", "list", "pair"],
        [
            Types.BIG_INT(),
            Types.BIG_DEC(),
            Types.BOOLEAN(),
            Types.SQL_TIMESTAMP(),
            Types.PRIMITIVE_ARRAY(Types.BYTE()),
            Types.ROW_NAMED(["city"], [Types.STRING()]),
            Types.OBJECT_ARRAY(Types.STRING()),
            Types.ROW([Types.STRING(), Types.BIG_INT()]),
        ],
    )
    built = JsonRowDeserializationSchema.builder().json_schema(json.dumps(schema)).build()
    assert built.deserialize(b'{"id": 5, "amount": 0.1}').amount == Decimal("0.1")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "no JSON"),
        ('{"type": "thing"}', "no type stands for"),
        ('{"$ref": "#/nowhere"}', "leads nowhere"),
        ('{"$ref": "#"}', "refers to itself"),
        ('{"$ref": "http://x"}', "outside"),
        ('{"type": ["string", "integer"]}', "one type and null"),
        ("[]", "expected an object"),
    ],
)
def test_a_json_schema_that_describes_no_type_is_refused(schema: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        type_of_json_schema(schema)


LINE = Types.ROW_NAMED(
    ["id", "name", "amount", "ok", "day", "tags"],
    [
        Types.LONG(),
        Types.STRING(),
        Types.DOUBLE(),
        Types.BOOLEAN(),
        Types.SQL_DATE(),
        Types.BASIC_ARRAY(Types.LONG()),
    ],
)


def test_csv_lines_become_rows() -> None:
    schema = CsvRowDeserializationSchema.Builder(LINE).build()
    row = schema.deserialize(b'7,"a, ""b""",2.5,TRUE,2026-01-31,1;2\r\n')
    assert row == Row(id=7, name='a, "b"', amount=2.5, ok=True, day=datetime.date(2026, 1, 31), tags=[1, 2])
    assert schema.deserialize(b",,,,,") == Row(id=None, name="", amount=None, ok=None, day=None, tags=[])
    assert schema.deserialize_batch([b",,,,,", b"1,,,,,"])[1].id == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"x,,,,,", "field id: expected LONG, got 'x'"),
        (b"2024_01,,,,,", "field id: expected LONG, got '2024_01'"),
        (b"1,,,maybe,,", "field ok: expected true or false"),
        (b"1,,,,31.1.2026,", "field day: expected a date"),
        (b"9223372036854775808,,,,,", "field id: LONG holds"),
        (b"1,2", "expected 6 fields, got 2"),
        (b"", "expected 6 fields, got 0"),
        (b'1,"open,,,,', "CSV line"),
        (b"\xff,,,,,", "utf-8"),
    ],
)
def test_a_line_that_does_not_parse_is_refused_with_its_field(line: bytes, message: str) -> None:
    schema = CsvRowDeserializationSchema.Builder(LINE).build()
    with pytest.raises(ValueError, match=message):
        schema.deserialize(line)
    with pytest.raises(ValueError, match=message):
        schema.deserialize_batch([b",,,,,", line, b",,,,,"])
    lenient = CsvRowDeserializationSchema.Builder(LINE).set_ignore_parse_errors(True).build()
    assert [row and row.id for row in lenient.deserialize_batch([b"1,,,,,", line, b"2,,,,,"])] == [1, None, 2]


def test_csv_formats_can_be_chosen() -> None:
    row_type = Types.ROW([Types.STRING(), Types.LONG(), Types.LIST(Types.LONG())])
    schema = (
        CsvRowDeserializationSchema.Builder(row_type)
        .set_field_delimiter("|")
        .set_array_element_delimiter("/")
        .set_quote_character("'")
        .set_escape_character("\\")
        .set_null_literal("n/a")
        .set_allow_comments(True)
        .build()
    )
    rows = schema.deserialize_batch([b"# no data", b"'a|b'|n/a|1/2", b"a\\|b|5|n/a"])
    assert rows == [None, Row(f0="a|b", f1=None, f2=[1, 2]), Row(f0="a|b", f1=5, f2=None)]
    out = (
        CsvRowSerializationSchema.Builder(row_type)
        .set_field_delimiter("|")
        .set_line_delimiter("")
        .disable_quote_character()
        .set_escape_character("\\")
        .set_null_literal("n/a")
        .build()
    )
    assert out.serialize(Row("a|b", None, [1, 2])) == b"a\\|b|n/a|1;2"
    with pytest.raises(ValueError, match="escape character"):
        CsvRowSerializationSchema.Builder(row_type).disable_quote_character().build().serialize(Row("a,b", 1, []))


def test_csv_settings_are_checked() -> None:
    builder = CsvRowSerializationSchema.Builder(LINE)
    with pytest.raises(ConfigurationError, match="one character"):
        builder.set_field_delimiter("::")
    with pytest.raises(ConfigurationError, match="line ends"):
        builder.set_line_delimiter(";")
    with pytest.raises(ConfigurationError, match=r"Types\.ROW"):
        CsvRowDeserializationSchema.Builder(Types.LONG())
    with pytest.raises(ConfigurationError, match="no form"):
        CsvRowDeserializationSchema.Builder(Types.ROW([Types.MAP(Types.STRING(), Types.LONG())])).build()


lines = st.builds(
    lambda *fields: Row.of_values(list(fields), ["id", "name", "amount", "ok", "day", "tags"]),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.text("a,\"'\r\n;\\"),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.booleans(),
    st.none() | st.dates(),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
)


@given(st.lists(lines, max_size=4), st.sampled_from(["\n", "\r", "\r\n", ""]), st.sampled_from([None, "\\"]))
def test_rows_survive_csv(batch: list[Row], line_end: str, escape: str | None) -> None:
    writes = CsvRowSerializationSchema.Builder(LINE).set_line_delimiter(line_end)
    reads = CsvRowDeserializationSchema.Builder(LINE)
    if escape:
        writes.set_escape_character(escape)
        reads.set_escape_character(escape)
    data: list[bytes] = writes.build().serialize_batch(batch)  # type: ignore[assignment]
    assert reads.build().deserialize_batch(data) == batch
    assert all(each.endswith(line_end.encode()) for each in data)


def test_a_field_of_csv_may_be_long() -> None:
    row_type = Types.ROW([Types.STRING()])
    csv.field_size_limit(131_072)  # Python's own
    data = CsvRowSerializationSchema.Builder(row_type).build().serialize(Row("a" * 200_000))
    schema = CsvRowDeserializationSchema.Builder(row_type).set_ignore_parse_errors(True).build()
    assert schema.deserialize_batch([b"b", data]) == [Row(f0="b"), Row(f0="a" * 200_000)]


def a_json_time_with_an_offset_becomes_utc() -> None:
    assert reader(field(Types.SQL_TIME())).deserialize(b'{"x":"12:00:00+05:00"}')[0] == datetime.time(7)
    assert reader(field(Types.SQL_TIME())).deserialize(b'{"x":"12:00:00"}')[0] == datetime.time(12)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Types.INT(), b'"null"'),
        (Types.DOUBLE(), b'"NULL"'),
        (Types.LIST(Types.INT()), b'[1,"null"]'),
        (Types.MAP(Types.STRING(), Types.INT()), b'{"a":"null"}'),
        (Types.ROW_NAMED(["n"], [Types.INT()]), b'{"n":"null"}'),
    ],
)
def the_string_null_is_no_number(declared: TypeInformation, value: bytes) -> None:
    read = reader(field(declared))
    with pytest.raises(ValueError, match="expected null or a value of the declared type, got '"):
        read.deserialize_batch([b'{"x":' + value + b"}"])
    row = reader(Types.ROW_NAMED(["text", "n"], [Types.STRING(), Types.INT()])).deserialize(b'{"text":"null","n":null}')
    assert row == Row(text="null", n=None)


def a_parse_error_of_any_kind_can_be_ignored() -> None:
    deep = b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}"
    json = JsonRowDeserializationSchema.builder().type_info(field(Types.PICKLED_BYTE_ARRAY())).ignore_parse_errors().build()
    assert json.deserialize(deep) is None
    assert list(json.deserialize_batch([deep, b'{"x":1}'])) == [None, Row(x=1)]
    with pytest.raises(ValueError, match="not a JSON record"):
        reader(field(Types.PICKLED_BYTE_ARRAY())).deserialize(deep)
    declared = Types.ROW([Types.CHAR(), Types.INT()])
    csv = CsvRowDeserializationSchema.Builder(declared).set_ignore_parse_errors(True).build()
    assert list(csv.deserialize_batch([b"ab,1", b"a,1"])) == [None, Row("a", 1)]
    with pytest.raises(ValueError, match="field f0: CHAR"):
        CsvRowDeserializationSchema.Builder(declared).build().deserialize(b"ab,1")


def an_absent_character_or_bytes_are_an_empty_field_of_csv() -> None:
    declared = Types.ROW([Types.CHAR(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.INT()])
    line = CsvRowSerializationSchema.Builder(declared).build().serialize(Row(None, None, 1))
    assert CsvRowDeserializationSchema.Builder(declared).build().deserialize(line) == Row(None, None, 1)


@pytest.mark.parametrize("tags", [["a;b", "c"], [""]])
def an_array_that_would_be_read_as_another_one_is_not_written_as_csv(tags: list[str]) -> None:
    declared = Types.ROW_NAMED(["tags"], [Types.LIST(Types.STRING())])
    with pytest.raises(ValueError, match="delimiter" if tags[1:] else "read back as an empty array"):
        CsvRowSerializationSchema.Builder(declared).build().serialize(Row(tags=tags))


def a_byte_order_mark_within_a_stream_is_data_in_any_batch() -> None:
    declared = Types.ROW_NAMED(["user", "n"], [Types.STRING(), Types.LONG()])
    read, line = CsvRowDeserializationSchema.Builder(declared).build(), "\ufeffanna,2".encode()
    assert list(read.deserialize_batch([line] * 20)) == [read.deserialize(line)] * 20 == [Row(user="\ufeffanna", n=2)] * 20
