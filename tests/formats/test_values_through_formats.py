"""Each value that a format writes is read back equal and of the same class, or as a documented conversion of it, or refused.

What a declared type makes of a value at the write (docs/state.md, "Types") is what comes back, but for the conversions of
the format (docs/connectors.md, "Values"). A refusal names the field and the value.
"""

from __future__ import annotations

import datetime
import http
import io
import itertools
import json
import math
import pickle
from array import array
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Instant, Row, SimpleStringSchema, Types
from holdfast.common.typeinfo import (
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from holdfast.common.typeinfo.composite import SequenceTypeInfo
from holdfast.connectors.file.avro_files import AvroFormat
from holdfast.connectors.file.files import FileVersion, InputFile
from holdfast.connectors.file.parquet import ArrowFormat, ParquetFormat
from holdfast.datastream.formats.arrow import ArrowBulkWriters
from holdfast.datastream.formats.avro import (
    AvroBulkWriters,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
)
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.datastream.formats.parquet import ParquetBulkWriters
from holdfast.errors import ConfigurationError

Pair = namedtuple("Pair", "a b")
UTC = datetime.timezone.utc
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 5678)


class Cents(int):
    pass


class Name(str):
    __slots__ = ()


class Moment(datetime.datetime):
    pass


BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
BASIC: list[TypeInformation[Any]] = [
    *(Types.STRING(), Types.CHAR(), Types.BOOLEAN(), Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG()),
    *(Types.FLOAT(), Types.DOUBLE(), Types.BIG_INT(), Types.BIG_DEC(), Types.INSTANT()),
    *(Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(), BYTES),
]
VALUES: list[Any] = [
    *(None, True, False, np.bool_(True), 0, 1, -3, 127, 128, -(2**31), 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63),
    *(10**37, -(10**38), 2**200, np.int64(3), np.int8(-3), np.uint64(2**64 - 1), Cents(2), http.HTTPStatus.OK),
    *(0.0, -0.0, 0.1, 2.0, 1.9, 5e-324, 1e16, 1e22, 1e38, 1e300, math.nan, math.inf, -math.inf),
    *(np.float64(0.1), np.float64("nan"), np.float32(0.1), np.float16(0.1)),
    *(Decimal("1.50"), Decimal("-0"), Decimal("0E-20"), Decimal("1E+5"), Decimal("NaN"), Decimal("Infinity")),
    *(Decimal("0.1234567890123456789"), Decimal("12345678901234567890.5"), Decimal("123456789012345678901.5"), Decimal(2)),
    *("", " ", "a", "7", "-1.5", "true", "null", "NULL", "None", "NaN", "#", "a;b", ";", "a,b", '"', "'", "\\", '\\"'),
    *("\n", "a\n", "\r", "a\r\nb", "\0", "\x1f", "\x85", "\u2028", "\ufeff", "é", "e\u0301", "😀", "\ud800", "a\udfff"),
    *(Name("n"), np.str_("s"), "2024-02-29", "12:00:00", b"", b"b", b"\n", b"\xff\0", bytearray(b"b"), memoryview(b"m")),
    *(datetime.date(2024, 2, 29), datetime.date.min, datetime.date.max, NOON, Moment(2024, 2, 29), NOON.replace(tzinfo=UTC)),
    *(NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=5))), datetime.datetime.min, datetime.datetime.max),
    *(datetime.time(1, 2, 3, 4567), datetime.time(0), datetime.time.max, datetime.time(1, 30, fold=1)),
    *(datetime.time(1, tzinfo=UTC), datetime.timedelta(1), pd.Timestamp("2024-02-29T01:02:03.004567891"), pd.NaT),
    *(Instant(0, 0), Instant(-1, 999_999_999), Instant(5, 7), Instant(5, 7000), Instant(2**40, 1), Instant(-(2**40), 0)),
    *([], [None], [1], [True, None], [1.5, -0.0], ["a", ""], [""], [[1]], (), (1, 2), (1, "a"), ("a", 1), Pair("a", 1)),
    *(np.array([1, 2]), np.array([0.5]), array("q", [1]), {1, 2}, [None, None], ["a;b"], [(1, "a")], [b""], [NOON]),
    *({}, {"a": 1}, {"a": None}, {"": 1.5}, {1: 1}, {1: "a", 2: None}, {"1": 1}, Counter("ab"), OrderedDict(a=1)),
    *([Instant(5, 7), None], {"a": Instant(-1, 999_999_999)}, Row(Instant(5, 1500), 1), [NOON.replace(tzinfo=UTC)]),
    *(
        {"a": [1]},
        {None: 1},
        {Name("a"): 1},
        {True: 1},
        {"a": 1, "b": "x"},
        {"z": 1},
        Row(1, "a"),
        Row(a=1, b="x"),
        Row(b="x", a=1),
    ),
    *(Row(), Row(None, None), Row(a=True, b=None), Row([1], {}), object()),
]
"""Of every class, in and out of the ranges of the types."""


def composed(inner: st.SearchStrategy[TypeInformation[Any]]) -> st.SearchStrategy[TypeInformation[Any]]:
    numbers = [Types.BOOLEAN(), Types.SHORT(), Types.INT(), Types.LONG(), Types.FLOAT(), Types.DOUBLE(), Types.CHAR()]
    keys = [Types.STRING(), Types.LONG(), Types.INT(), Types.CHAR()]
    two = st.lists(inner, min_size=2, max_size=2)
    return st.one_of(
        inner.map(Types.LIST),
        inner.map(Types.OBJECT_ARRAY),
        st.sampled_from(BASIC[:12]).map(Types.BASIC_ARRAY),
        st.sampled_from(numbers).map(Types.PRIMITIVE_ARRAY),
        st.builds(Types.MAP, st.sampled_from(keys), inner),
        two.map(Types.TUPLE),
        two.map(Types.ROW),
        two.map(lambda types: Types.ROW_NAMED(["a", "b"], types)),
    )


TYPES = st.recursive(st.sampled_from(BASIC), composed, max_leaves=3)


def values_of(declared: TypeInformation[Any]) -> st.SearchStrategy[Any]:
    """Values that mostly fit a type."""
    anything = st.sampled_from(VALUES)
    if isinstance(declared, SequenceTypeInfo) and declared.annotation is not bytes:
        return st.lists(values_of(declared.element_type), max_size=3) | anything
    if isinstance(declared, MapTypeInfo):
        keys = values_of(declared.key_type).filter(lambda key: isinstance(key, (str, int)))
        return st.dictionaries(keys, values_of(declared.value_type), max_size=2) | anything
    if isinstance(declared, (RowTypeInfo, TupleTypeInfo)):
        fields = st.tuples(*map(values_of, declared.get_field_types()))
        made = fields if isinstance(declared, TupleTypeInfo) else fields.map(lambda values: Row(*values))
        return made | anything
    fitting = [value for value in VALUES if fits(declared, value)]
    return st.sampled_from(fitting) | st.sampled_from([None]) | anything


def fits(declared: TypeInformation[Any], value: Any) -> bool:
    try:
        declared.conform(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def shape(value: Any) -> Any:
    """A value with the classes of all its parts; 0.0 is not -0.0, and NaN is NaN."""
    if isinstance(value, Row):
        return Row, value._fields and list(value._fields), [shape(each) for each in value]
    if isinstance(value, (list, tuple)):
        return type(value), [shape(each) for each in value]
    if isinstance(value, dict):
        return type(value), [(shape(key), shape(each)) for key, each in value.items()]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return type(value), repr(value.astimezone(UTC))  # the libraries have classes of their own for UTC
    return type(value), repr(abs(value) if isinstance(value, Decimal) and not value else value)  # none has -0 as a decimal


class Schemas:
    """A format of records in bytes."""

    def __init__(self, write: Any, read: Any) -> None:
        self.write, self.read = pickle.loads(pickle.dumps((write, read)))

    def through(self, row: Row) -> Iterator[Any]:
        data = self.write.serialize(row)
        yield self.read.deserialize(data)
        for count in (2, 20):  # many are parsed as columns
            found = list(self.read.deserialize_batch(self.write.serialize_batch([row] * count)))
            assert len(found) == count
            yield found[0]
            yield found[-1]


class Files:
    """A format of bulk files."""

    versions = itertools.count()

    def __init__(self, factory: Any, form: Any) -> None:
        self.factory, self.form = pickle.loads(pickle.dumps((factory, form)))

    def through(self, row: Any, *counts: int) -> Iterator[Any]:
        for count in counts or (1, 20):
            out = io.BytesIO()
            writer = self.factory.create(out)
            writer.add([row] * count)
            writer.finish()
            stored = InputFile("memory", InMemory(out.getvalue()), FileVersion(len(out.getvalue()), next(self.versions)))
            length, _ = self.form.measure(stored)
            found = [each for batch in self.form.read(stored, 0, length, length, 1000) for each in batch.values]
            assert len(found) == count
            yield found[0]
            yield found[-1]


class InMemory:
    """A store with one file."""

    appear_whole = True

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, path: str, size: int) -> Any:
        return io.BytesIO(self._data)


def avro(declared: TypeInformation[Any], names: Iterator[int]) -> Any:
    """The schema of a type; KeyError: Avro has none."""
    if isinstance(declared, RowTypeInfo):
        fields = zip(declared.get_field_names(), declared.get_field_types(), strict=True)
        nullable = [{"name": name, "type": ["null", avro(each, names)]} for name, each in fields]
        return {"type": "record", "name": f"R{next(names)}", "fields": nullable}
    if declared == BYTES:
        return "bytes"
    if isinstance(declared, SequenceTypeInfo):
        item = avro(declared.element_type, names)
        return {"type": "array", "items": ["null", item] if declared.has_nulls else item}
    if isinstance(declared, MapTypeInfo) and declared.key_type == Types.STRING():
        return {"type": "map", "values": ["null", avro(declared.value_type, names)]}
    return AVRO[declared]


AVRO: dict[TypeInformation[Any], Any] = {
    **{Types.STRING(): "string", Types.BOOLEAN(): "boolean", Types.INT(): "int", Types.LONG(): "long"},
    **{Types.FLOAT(): "float", Types.DOUBLE(): "double", Types.SQL_DATE(): {"type": "int", "logicalType": "date"}},
    Types.BIG_DEC(): {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
    Types.SQL_TIME(): {"type": "int", "logicalType": "time-millis"},
    Types.SQL_TIMESTAMP(): {"type": "long", "logicalType": "timestamp-millis"},
}


def json_format(declared: RowTypeInfo) -> Schemas:
    write = JsonRowSerializationSchema.builder().with_type_info(declared).build()
    return Schemas(write, JsonRowDeserializationSchema.builder().type_info(declared).build())


def csv_format(declared: RowTypeInfo, null: str | None = None, escape: str | None = None) -> Schemas:
    write, read = CsvRowSerializationSchema.Builder(declared), CsvRowDeserializationSchema.Builder(declared)
    for builder in (write, read):
        if null is not None:
            builder.set_null_literal(null)
        if escape is not None:
            builder.set_escape_character(escape)
    return Schemas(write.build(), read.build())


def avro_format(declared: RowTypeInfo) -> Schemas:
    text = json.dumps(avro(declared, iter(range(100))))
    return Schemas(AvroRowSerializationSchema(None, text), AvroRowDeserializationSchema(None, text))


def avro_files(declared: RowTypeInfo) -> Files:
    schema = AvroSchema.parse_string(json.dumps(avro(declared, iter(range(100)))))
    return Files(AvroBulkWriters.for_generic_record(schema), AvroFormat(as_rows=True))


FORMATS: dict[str, Any] = {
    "json": json_format,
    "csv": csv_format,
    "csv-null": lambda declared: csv_format(declared, null="NULL"),
    "csv-escape": lambda declared: csv_format(declared, escape="\\"),
    "avro": avro_format,
    "avro-files": avro_files,
    "parquet": lambda declared: Files(ParquetBulkWriters.for_row_type(declared), ParquetFormat()),
    "arrow": lambda declared: Files(ArrowBulkWriters.for_row_type(declared), ArrowFormat()),
}


def as_given(declared: TypeInformation[Any], value: Any) -> Any:
    return value


def in_csv(declared: TypeInformation[Any], value: Any) -> Any:
    """An empty field is the empty text, the empty array, or else None."""
    if isinstance(declared, RowTypeInfo) and value is not None:
        fields = map(in_csv, declared.get_field_types(), value)
        return Row.of_values(list(fields), declared.get_field_names())
    if isinstance(declared, SequenceTypeInfo) and declared != BYTES:
        return [in_csv(declared.element_type, each) for each in value or ()]
    if declared == BYTES and value == b"":
        return None
    return "" if declared == Types.STRING() and value is None else value


def in_avro(declared: TypeInformation[Any], value: Any) -> Any:
    """Decimals have the schema's scale."""
    if value is None:
        return None
    if isinstance(declared, RowTypeInfo):
        return Row.of_values(list(map(in_avro, declared.get_field_types(), value)), declared.get_field_names())
    if isinstance(declared, SequenceTypeInfo) and declared != BYTES:
        return [in_avro(declared.element_type, each) for each in value]
    if isinstance(declared, MapTypeInfo):
        return {key: in_avro(declared.value_type, each) for key, each in value.items()}
    return at_scale_18(value) if declared == Types.BIG_DEC() else value


def in_arrow(declared: TypeInformation[Any], value: Any) -> Any:
    """Rows and tuples are dicts, maps lists of pairs, whole numbers of any size decimals, and instants times in UTC."""
    if value is None:
        return None
    if isinstance(declared, (RowTypeInfo, TupleTypeInfo)):
        names = declared.get_field_names() if isinstance(declared, RowTypeInfo) else [f"f{i}" for i in range(len(value))]
        return {n: in_arrow(t, v) for n, t, v in zip(names, declared.get_field_types(), value, strict=True)}
    if isinstance(declared, MapTypeInfo):
        return [(key, in_arrow(declared.value_type, each)) for key, each in value.items()]
    if isinstance(declared, SequenceTypeInfo) and declared != BYTES:
        return [in_arrow(declared.element_type, each) for each in value]
    if declared == Types.BIG_DEC():
        return at_scale_18(value)
    if declared == Types.INSTANT():
        nanos = value.seconds * 10**9 + value.nanos
        return EPOCH + datetime.timedelta(microseconds=math.trunc(Fraction(nanos, 1000)))  # cut, towards 1970
    return Decimal(value) if declared == Types.BIG_INT() else value


def at_scale_18(value: Decimal) -> Decimal:
    return value.quantize(Decimal("1E-18"), context=Context(prec=60))


EXPECTED = {
    **{"json": as_given, "csv": in_csv, "csv-null": as_given, "csv-escape": in_csv},
    **{"avro": in_avro, "avro-files": in_avro, "parquet": in_arrow, "arrow": in_arrow},
}
REFUSALS = (TypeError, ValueError, OverflowError)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=examples(30))
@given(st.data())
def a_value_comes_back_from_a_format_as_it_was_written(form: str, data: st.DataObject) -> None:
    inner = data.draw(TYPES, "type")
    declared = Types.ROW_NAMED(["before", "x"], [Types.INT(), inner])
    try:
        schemas = FORMATS[form](declared)
    except (ConfigurationError, KeyError):
        assume(False)  # the format has no form for the type, which a test of its own shows
    row = Row(before=1, x=data.draw(values_of(inner), "value"))
    told = ""
    try:
        found = list(schemas.through(row))
    except REFUSALS as error:
        told = str(error)
    if told:
        assert "field x" in told
        return
    if form.startswith("avro"):  # takes what the schema holds, and times with a zone in UTC
        row = Row(before=1, x=in_utc(row.x))
    expected = EXPECTED[form](declared, declared.conform(row))
    assert {repr(shape(each)) for each in found} == {repr(shape(expected))}


def in_utc(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, (list, tuple)):
        return type(value)(map(in_utc, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: in_utc(each) for key, each in value.items()}
    return Row.of_values(list(map(in_utc, value)), value._fields) if isinstance(value, Row) else value


# ---- columns of a given schema ----

WHOLE = (True, 1.9, 5e-324, Decimal("1.5"), "7", b"7", math.nan, math.inf, NOON, 2**64)
REAL = (True, Decimal("1.5"), "1.5", np.uint64(2**64 - 1), 2**53 + 1, NOON)
LOCAL = ("2024", 0, True, datetime.date(2024, 2, 29), NOON.replace(tzinfo=UTC), pd.NaT)
MISFITS: list[tuple[Any, tuple[Any, ...]]] = [
    *((pyarrow.int8(), (*WHOLE, 128)), (pyarrow.int64(), WHOLE), (pyarrow.uint16(), (*WHOLE, -1))),
    *((pyarrow.float64(), REAL), (pyarrow.float32(), (*REAL, 1e300)), (pyarrow.bool_(), (0, 1, "true"))),
    *((pyarrow.string(), (b"a", 1, "\ud800")), (pyarrow.binary(), ("a", 1, [1])), (pyarrow.binary(2), (b"a", "ab"))),
    (pyarrow.decimal128(5, 2), (True, 1.5, "1.5", Decimal("0.125"), Decimal("1234.5"), Decimal("NaN"))),
    (pyarrow.date32(), (0, 1.5, True, NOON, pd.NaT, "2024-02-29")),
    (pyarrow.time32("ms"), (0, NOON, datetime.time(1, tzinfo=UTC))),
    *((pyarrow.timestamp("ms"), LOCAL), (pyarrow.timestamp("ns"), (*LOCAL, datetime.datetime.max))),
    (pyarrow.timestamp("us", "UTC"), (0, pd.NaT, datetime.date(2024, 2, 29))),
    *((pyarrow.duration("us"), (0, 1.5, datetime.time(1))), (pyarrow.null(), (0, ""))),
    (pyarrow.list_(pyarrow.int64()), ("ab", b"ab", {1}, {1: 1}, [1.9], [True], Row(1), 1)),
    (pyarrow.struct([("a", pyarrow.int64())]), ({"a": 1.9}, {"a": 1, "z": 1}, {"z": 1}, Row(z=1), (1, 2), [("a", 1)], 1)),
    (pyarrow.map_(pyarrow.string(), pyarrow.int64()), ({1: 1}, {"a": 1.9}, {None: 1}, {"a"}, "a", 1)),
    (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), (b"a", 1)),
]


@pytest.mark.parametrize(("kind", "values"), MISFITS, ids=[str(kind) for kind, _ in MISFITS])
@pytest.mark.parametrize("rows", [1, 3])
def a_value_that_a_column_would_change_is_refused_with_its_field(kind: Any, values: tuple[Any, ...], rows: int) -> None:
    form = Files(ParquetBulkWriters.for_arrow_schema(pyarrow.schema([("x", kind)])), ParquetFormat())
    for value in values:
        with pytest.raises(ValueError, match=r"field x does not fit"):
            print(kind, value, list(form.through({"x": value}, rows)))


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        *((pyarrow.int64(), np.int64(3), 3), (pyarrow.int64(), 2.0, 2), (pyarrow.uint64(), 2**64 - 1, 2**64 - 1)),
        *((pyarrow.float64(), 2, 2.0), (pyarrow.float64(), -0.0, -0.0), (pyarrow.float64(), math.nan, math.nan)),
        *((pyarrow.float32(), 0.1, 0.10000000149011612), (pyarrow.float32(), math.inf, math.inf)),
        *((pyarrow.string(), Name("n"), "n"), (pyarrow.large_string(), "é", "é"), (pyarrow.binary(), bytearray(b"b"), b"b")),
        *((pyarrow.decimal128(5, 2), 2, Decimal("2.00")), (pyarrow.bool_(), np.bool_(True), True)),
        (pyarrow.time32("ms"), datetime.time(1, 2, 3, 4567), datetime.time(1, 2, 3, 4000)),
        (pyarrow.timestamp("ms"), NOON, NOON.replace(microsecond=5000)),
        (pyarrow.timestamp("us", "UTC"), NOON, NOON.replace(tzinfo=UTC)),
        (pyarrow.timestamp("us", "+05:00"), NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
        (pyarrow.timestamp("ns"), pd.Timestamp("1970-01-01T00:00:00.000007891"), datetime.datetime(1970, 1, 1, 0, 0, 0, 7)),
        (pyarrow.duration("ms"), datetime.timedelta(microseconds=1500), datetime.timedelta(microseconds=1000)),
        (pyarrow.list_(pyarrow.int64()), np.array([1, 2]), [1, 2]),
        (pyarrow.list_(pyarrow.int64()), (1, None), [1, None]),
        (pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.string())]), Row(b="x"), {"a": None, "b": "x"}),
        (pyarrow.map_(pyarrow.string(), pyarrow.float64()), {"a": 1}, [("a", 1.0)]),
        (pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("a", 1)], [("a", 1)]),
        (pyarrow.list_(pyarrow.timestamp("ns")), [EPOCH.replace(tzinfo=None)], [EPOCH.replace(tzinfo=None)]),
    ],
    ids=repr,
)
def a_column_gives_back_what_a_row_has(kind: Any, value: Any, found: Any) -> None:
    schema = pyarrow.schema([("x", kind)])
    for form in (ParquetBulkWriters.for_arrow_schema(schema), ArrowBulkWriters.for_arrow_schema(schema)):
        reads = ParquetFormat() if form._form == "parquet" else ArrowFormat()
        for each in Files(form, reads).through({"x": value}):
            assert shape(each["x"]) == shape(found)


# ---- what other formats would change ----


@pytest.mark.parametrize(("declared", "value"), [(Types.STRING(), "-"), (Types.LIST(Types.STRING()), [None])])
def a_value_with_the_text_of_the_null_literal_is_not_written_as_csv(declared: TypeInformation[Any], value: Any) -> None:
    form = csv_format(Types.ROW_NAMED(["x", "y"], [declared, BYTES]), null="-")
    with pytest.raises(ValueError, match=r"field x: .* would be read back as None: its text is the null literal '-'"):
        form.write.serialize(Row(x=value, y=b""))
    assert set(map(repr, form.through(Row(x=None, y=b"")))) == {"Row(x=None, y=b'')"}


def a_field_that_csv_cannot_hold_is_named() -> None:
    write = CsvRowSerializationSchema.Builder(Types.ROW_NAMED(["n", "x"], [Types.INT(), Types.STRING()]))
    with pytest.raises(ValueError, match=r"field x: 'a,b': .*; set a quote or an escape character"):
        write.disable_quote_character().build().serialize(Row(n=1, x="a,b"))


def a_json_field_without_a_type_has_the_names_of_infinities() -> None:
    form = json_format(Types.ROW_NAMED(["x"], [Types.PICKLED_BYTE_ARRAY()]))
    given = {"a": [math.nan, (-math.inf,), None], "b": 2**63 - 1}
    assert next(form.through(Row(x=given))).x == {"a": ["NaN", ["-Infinity"], None], "b": 2**63 - 1}
    with pytest.raises(TypeError, match="field x: "):
        form.write.serialize(Row(x=object()))


@pytest.mark.parametrize("charset", ["UTF-8", "UTF-16", "ISO-8859-1", "utf-8-sig"])
def a_string_comes_back_in_each_charset_or_is_refused(charset: str) -> None:
    schema = pickle.loads(pickle.dumps(SimpleStringSchema(charset)))
    for value in VALUES:
        try:
            data = schema.serialize_batch([value, value])
        except (TypeError, UnicodeEncodeError):
            continue
        assert [shape(each) for each in schema.deserialize_batch(data)] == [shape(str.__str__(value))] * 2
