"""Avro decoded into columns gives the Rows that it gives record by record, or the same errors."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastavro", reason="needs holdfast[avro]")

import fastavro

from effort import examples
from holdfast.common.formats.avro import AvroSchema, to_row
from holdfast.common.formats.avro_columns import AvroColumns
from holdfast.common.formats.avro_schema import AvroRowDeserializationSchema
from holdfast.common.formats.columns import columns_of

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
DATE, TIME = {"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}
word = st.text(st.characters(codec="utf-8"), max_size=5)
values: list[tuple[Any, Any]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", word),
    ("bytes", st.binary(max_size=5)),
    ({"type": "fixed", "name": "Fixed", "size": 3}, st.binary(min_size=3, max_size=3)),
    ({"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")),
    (MILLIS, st.integers(-(2**40), 2**40)),
    (LOCAL, st.integers(-(2**40), 2**40)),
    (DATE, st.integers(-90000, 90000)),
    (TIME, st.integers(0, 86_399_999)),
]


@st.composite
def fields(draw: Any) -> list[tuple[str, Any, Any]]:
    """Name, type and values of the fields of a record."""
    made = []
    for at, (kind, value) in enumerate(draw(st.lists(st.sampled_from(values), min_size=1, max_size=5))):
        if isinstance(kind, dict) and "name" in kind:
            kind = {**kind, "name": f"{kind['name']}{at}"}
        union = draw(st.sampled_from(["none", "none", "null first", "null last"]))
        if union != "none":
            kind, value = (["null", kind] if union == "null first" else [kind, "null"]), st.none() | value
        made.append((f"f{at}", kind, value))
    return made


def schema(made: list[tuple[str, Any]]) -> AvroSchema:
    named = [{"name": name, "type": kind} for name, kind in made]
    return AvroSchema(json.dumps({"type": "record", "name": "Record", "fields": named}))


def plain(made: AvroSchema) -> Any:
    """The schema without logical types, to write any number."""
    text = json.dumps([{**each, "type": _plain(each["type"])} for each in json.loads(made.text)["fields"]])
    return fastavro.parse_schema({"type": "record", "name": "Record", "fields": json.loads(text)})


def _plain(kind: Any) -> Any:
    if isinstance(kind, list):
        return list(map(_plain, kind))
    return kind["type"] if isinstance(kind, dict) and "logicalType" in kind else kind


def encoded(made: AvroSchema, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain(made), record)
    return out.getvalue()


def outcome(parse: Callable[[], Any]) -> Any:
    try:
        return [repr(row) for row in parse()]
    except Exception as error:
        return str(error)


@settings(max_examples=examples(60), deadline=None)
@given(fields(), st.data())
def the_rows_of_decoded_columns_are_those_of_each_record(made: list[tuple[str, Any, Any]], data: Any) -> None:
    wanted = schema([(name, kind) for name, kind, _ in made])
    record = st.fixed_dictionaries({name: value for name, _, value in made})
    messages = [encoded(wanted, each) for each in data.draw(st.lists(record, min_size=1, max_size=8))] * 16
    decode = AvroRowDeserializationSchema(avro_schema_string=wanted.text)
    found = decode.deserialize_batch(messages)
    assert columns_of(found) is not None
    assert list(map(repr, found)) == [repr(decode.deserialize(each)) for each in messages]
    columns = columns_of(found)
    assert columns is not None
    assert columns.fits(decode.get_produced_type())


@settings(max_examples=examples(60), deadline=None)
@given(fields(), st.data())
def a_message_that_is_no_record_is_refused_as_it_is_alone(made: list[tuple[str, Any, Any]], data: Any) -> None:
    wanted = schema([(name, kind) for name, kind, _ in made])
    record = st.fixed_dictionaries({name: value for name, _, value in made})
    messages = [encoded(wanted, each) for each in data.draw(st.lists(record, min_size=16, max_size=20))]
    at = data.draw(st.integers(0, len(messages) - 1))
    message = messages[at]
    cut = data.draw(st.integers(0, len(message)))
    messages[at] = message[:cut] + data.draw(st.binary(max_size=3)) + message[data.draw(st.integers(cut, len(message))) :]
    decode = AvroRowDeserializationSchema(avro_schema_string=wanted.text)
    together = outcome(lambda: list(decode.deserialize_batch(messages)))
    assert together == outcome(lambda: list(map(decode.deserialize, messages)))


@pytest.mark.parametrize(
    ("written", "read", "columnar"),
    [
        ([("a", "int"), ("b", "string")], [("b", "string")], True),
        ([("a", "int")], [("a", "long")], True),
        ([("a", "int")], [("a", "double")], True),
        ([("a", "long")], [("a", "float")], True),
        ([("a", "float")], [("a", "double")], True),
        ([("a", "long")], [("a", ["null", "long"])], True),
        ([("a", "long")], [("a", "long"), ("new", "string", "none")], True),
        ([("a", "long")], [("new", ["null", MILLIS], None), ("a", "long")], True),
        ([("a", "string")], [("a", "bytes")], False),
        ([("a", ["null", "long"])], [("a", ["long", "null"])], True),
    ],
)
def a_later_schema_reads_the_columns_of_an_earlier_one(written: Any, read: Any, columnar: bool) -> None:
    writer = schema(written)
    named = [{"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in read]
    reader = AvroSchema(json.dumps({"type": "record", "name": "Record", "fields": named}))
    samples: dict[str, Any] = {"int": 7, "long": -3, "float": 0.5, "string": "text"}
    record = {name: samples["long" if isinstance(kind, list) else kind] for name, kind in written}
    messages = [b"\0\0\0\0\x01" + encoded(writer, record)] * 20
    columns = AvroColumns.of(writer, reader)
    found = None if columns is None else columns.of_values(messages, messages[0][:5])
    assert (found is not None) is columnar
    if found is not None:
        convert = to_row(reader)
        assert list(map(repr, found)) == [repr(convert(reader.decode(each[5:], writer))) for each in messages]
        assert columns is not None
        another = b"\0\0\0\0\x02" + messages[0][5:]
        assert columns.of_values([*messages, another], messages[0][:5]) is None


@settings(max_examples=examples(40), deadline=None)
@given(fields(), st.data())
def the_columns_of_a_block_are_those_of_its_records(made: list[tuple[str, Any, Any]], data: Any) -> None:
    pytest.importorskip("polars")
    wanted = schema([(name, kind) for name, kind, _ in made])
    record = st.fixed_dictionaries({name: value for name, _, value in made})
    messages = [encoded(wanted, each) for each in data.draw(st.lists(record, min_size=1, max_size=8))]
    decoder, decode = AvroColumns.of(wanted), AvroRowDeserializationSchema(avro_schema_string=wanted.text)
    assert decoder is not None
    found = decoder.of_block(b"".join(messages), len(messages))
    if found is None:
        assert any(isinstance(kind, (dict, list)) or kind == "bytes" for _, kind, _ in made)
    else:
        assert list(map(repr, found)) == [repr(decode.deserialize(each)) for each in messages]
