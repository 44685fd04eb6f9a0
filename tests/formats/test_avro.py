"""Avro: schemas, Rows, types, container files, and records with a schema registry."""

from __future__ import annotations

import datetime
import json
import pickle
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="needs holdfast[avro]")

from registry_server import RegistryServer

from holdfast.common import Row, Types
from holdfast.common.formats.columns import columns_of
from holdfast.connectors.schema_registry import SchemaRegistry
from holdfast.datastream.formats.avro import (
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)
from holdfast.datastream.formats.avro_confluent import (
    ConfluentRegistryAvroDeserializationSchema,
    ConfluentRegistryAvroSerializationSchema,
)
from holdfast.errors import ConfigurationError, ServiceUnavailable
from holdfast.testing import OneInputTestHarness


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    """The schema of a record whose fields are (name, type) or (name, type, default)."""
    made = [{"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields]
    return {"type": "record", "name": name, "fields": made, **more}


ADDRESS = record("Address", ("city", "string"), ("zip", ["null", "int"]))
EVERYTHING = json.dumps(
    record(
        "Everything",
        ("text", "string"),
        ("count", "long"),
        ("amount", ["null", "double"]),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["CARD", "CASH"]}),
        ("tags", {"type": "array", "items": "string"}),
        ("home", ADDRESS),
        ("others", {"type": "array", "items": "Address"}),
        ("by_name", {"type": "map", "values": ["null", "Address"]}),
        ("raw", "bytes"),
        ("either", ["null", "long", "string", "Address"]),
        namespace="shop",
    )
)
ROW = Row(
    text="a",
    count=1 << 40,
    amount=None,
    day=datetime.date(2024, 2, 29),
    at=datetime.datetime(2024, 2, 29, 12, 30, 1, 5000),
    price=Decimal("12.50"),
    kind="CASH",
    tags=["x", "y"],
    home=Row(city="Pune", zip=411001),
    others=[Row(city="Goa", zip=None)],
    by_name={"w": Row(city="Agra", zip=1), "none": None},
    raw=b"\x00\xff",
    either=Row(city="Leh", zip=None),
)


def a_row_of_every_type_survives_the_binary_form() -> None:
    write, read = AvroRowSerializationSchema(avro_schema_string=EVERYTHING), AvroRowDeserializationSchema(None, EVERYTHING)
    write, read = pickle.loads(pickle.dumps((write, read)))
    data = write.serialize(ROW)
    assert read.deserialize(data) == ROW
    assert write.serialize(ROW.as_dict(True)) == data
    assert write.serialize(tuple(ROW)) == data
    assert read.deserialize(write.serialize(Row(**{**ROW.as_dict(), "either": "text"}))).either == "text"


def the_produced_type_is_that_of_the_rows() -> None:
    produced = AvroRowDeserializationSchema(avro_schema_string=EVERYTHING).get_produced_type()
    assert produced.conform(ROW) == ROW
    fields = dict(zip(produced.get_field_names(), produced.get_field_types(), strict=True))  # type: ignore[attr-defined]
    assert fields["at"] == Types.SQL_TIMESTAMP()
    assert fields["price"] == Types.BIG_DEC()
    assert fields["home"] == Types.ROW_NAMED(["city", "zip"], [Types.STRING(), Types.INT()])
    assert fields["by_name"] == Types.MAP(Types.STRING(), fields["home"])


def a_record_within_itself_is_read_and_has_no_declared_type() -> None:
    schema = json.dumps(record("Node", ("value", "int"), ("next", ["null", "Node"])))
    write, read = AvroRowSerializationSchema(avro_schema_string=schema), AvroRowDeserializationSchema(None, schema)
    chain = Row(value=1, next=Row(value=2, next=None))
    assert read.deserialize(write.serialize(chain)) == chain
    with pytest.raises(ConfigurationError, match="contains itself"):
        read.get_produced_type()


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "end within a field"), (b"\x02", "end within a field"), (b"\x02a\x00garbage" * 3, ".* bytes")],
)
def a_record_that_does_not_parse_is_reported_with_its_bytes(data: bytes, why: str) -> None:
    read = AvroRowDeserializationSchema(avro_schema_string=json.dumps(record("P", ("name", "string"), ("n", "int"))))
    with pytest.raises(ValueError, match=f"not an Avro record of the schema: .*{why}.*, in b'"):
        read.deserialize(data)


def a_row_that_does_not_fit_is_refused() -> None:
    write = AvroRowSerializationSchema(avro_schema_string=json.dumps(record("P", ("name", "string"), ("n", "int"))))
    with pytest.raises(ValueError, match="has 1 fields, the Avro record 2: name, n"):
        write.serialize(Row("a"))
    with pytest.raises(Exception, match="n"):
        write.serialize(Row("a", "five"))
    with pytest.raises(TypeError, match="from a Row, a tuple or a dict"):
        write.serialize(5)


def a_schema_is_checked_when_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not an Avro schema"):
        AvroSchema.parse_string('{"type": "record"}')
    with pytest.raises(ConfigurationError, match="cannot read the Avro schema: No such file"):
        AvroSchema.parse_file(str(tmp_path / "missing.avsc"))
    with pytest.raises(ConfigurationError, match="class of the JVM"):
        AvroRowDeserializationSchema("com.example.Payment")
    with pytest.raises(ConfigurationError, match="needs a schema"):
        AvroRowSerializationSchema()
    (tmp_path / "ok.avsc").write_text(EVERYTHING)
    assert AvroSchema.parse_file(str(tmp_path / "ok.avsc")) == AvroSchema.parse_string(EVERYTHING)


def a_state_of_avro_records_is_kept_in_avros_form() -> None:
    from holdfast.common.typeinfo import TypeInformation
    from holdfast.datastream import KeyedProcessFunction, RuntimeContext
    from holdfast.datastream.state import ValueStateDescriptor

    schema = AvroSchema.parse_string(json.dumps(record("P", ("name", "string"), ("n", "int"))))
    declared = GenericRecordAvroTypeInfo(schema)
    assert TypeInformation.from_dict(declared.to_dict()) == declared
    last = ValueStateDescriptor("last", declared)

    class Last(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.last = runtime_context.get_state(last)

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            yield self.last.value()
            self.last.update(value)

    def build(stream: Any) -> Any:
        return stream.key_by(lambda v: v["name"]).process(Last())

    for backend in ("hashmap", "rocksdb"):
        options = {"configuration": {"state.backend.type": backend}}
        with OneInputTestHarness(build, **options) as harness:
            harness.process_element({"name": "a", "n": 1})
            snapshot = harness.snapshot()
        with OneInputTestHarness(build, snapshot=snapshot, **options) as harness:
            assert harness.process_element({"name": "a", "n": 2}).extract_output_values() == [{"name": "a", "n": 1}]
            with pytest.raises(Exception, match="AVRO does not take"):
                harness.process_element({"name": "a", "n": "x"}).snapshot()


# ---- the schema registry -----------------------------------------------------------------------------------------------

OLD = AvroSchema.parse_string(json.dumps(record("P", ("name", "string"))))
NEW = AvroSchema.parse_string(json.dumps(record("P", ("name", "string"), ("n", "int", 7))))


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


def a_record_carries_the_id_of_its_schema(registry: RegistryServer) -> None:
    write = ConfluentRegistryAvroSerializationSchema.for_generic("payments-value", NEW, registry.url)
    write = pickle.loads(pickle.dumps(write))
    data = [write.serialize(Row("a", 1)), write.serialize({"name": "b", "n": 2})]
    assert [each[:5] for each in data] == [struct.pack(">bI", 0, 1)] * 2
    read = ConfluentRegistryAvroDeserializationSchema.for_row(NEW, registry.url)
    assert read.deserialize_batch(data) == [Row(name="a", n=1), Row(name="b", n=2)]
    assert registry.requests == ["POST /subjects/payments-value/versions", "GET /schemas/ids/1"]


def a_record_of_an_older_schema_gets_the_defaults_of_the_new_one(registry: RegistryServer) -> None:
    old = ConfluentRegistryAvroSerializationSchema.for_generic("p", OLD, registry.url).serialize({"name": "a"})
    read = ConfluentRegistryAvroDeserializationSchema.for_generic(NEW, registry.url)
    assert pickle.loads(pickle.dumps(read)).deserialize(old) == {"name": "a", "n": 7}
    assert read.get_produced_type() == GenericRecordAvroTypeInfo(NEW)


def the_records_of_a_registry_become_columns_if_one_schema_wrote_them(registry: RegistryServer) -> None:
    old = ConfluentRegistryAvroSerializationSchema.for_generic("p", OLD, registry.url)
    new = ConfluentRegistryAvroSerializationSchema.for_generic("p", NEW, registry.url)
    earlier = [old.serialize({"name": f"a{n}"}) for n in range(20)]
    later = [new.serialize({"name": f"b{n}", "n": n}) for n in range(20)]
    read = ConfluentRegistryAvroDeserializationSchema.for_row(NEW, registry.url)
    for data, columnar in ((earlier, True), (later, True), (earlier + later, False)):
        found = read.deserialize_batch(data)
        assert (columns_of(found) is not None) is columnar
        assert list(found) == list(map(read.deserialize, data))
    generic = ConfluentRegistryAvroDeserializationSchema.for_generic(NEW, registry.url)
    assert generic.deserialize_batch(later) == list(map(generic.deserialize, later))


def a_registry_that_is_down_is_no_fault_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.schema_registry._PAUSES_S", (0.001,))
    with RegistryServer() as server:
        url = server.url
    read = ConfluentRegistryAvroDeserializationSchema.for_generic(NEW, url)
    with pytest.raises(ServiceUnavailable, match=rf"{url} does not answer GET /schemas/ids/3: ConnectError.*Start it"):
        read.deserialize(struct.pack(">bI", 0, 3) + b"\x02a")


def a_registry_that_stumbles_is_asked_again(registry: RegistryServer) -> None:
    registry.failures = 2
    assert SchemaRegistry(registry.url).register("p", OLD.text) == 1
    assert registry.requests == ["POST /subjects/p/versions"] * 3


def a_subject_may_have_any_characters(registry: RegistryServer) -> None:
    SchemaRegistry(registry.url).register("eu/payments 5%?-value", OLD.text)
    assert registry.requests == ["POST /subjects/eu%2Fpayments%205%25%3F-value/versions"]


def a_second_registry_answers_for_the_first(registry: RegistryServer) -> None:
    with RegistryServer() as gone:
        url = gone.url
    assert SchemaRegistry(f"{url}, {registry.url}").register("p", OLD.text) == 1


def a_registry_that_refuses_is_told_with_the_remedy(registry: RegistryServer) -> None:
    registry.password = "user:secret"
    with pytest.raises(ConfigurationError, match=r"refused \(401\).*check the user and password"):
        SchemaRegistry(registry.url).register("p", OLD.text)
    assert SchemaRegistry(registry.url, {"basic.auth.user.info": "user:secret"}).register("p", OLD.text) == 1
    registry.refuses = True
    with pytest.raises(ConfigurationError, match=r"refused \(409\): incompatible; the schema does not fit"):
        SchemaRegistry(registry.url, {"basic.auth.user.info": "user:secret"}).register("p", NEW.text)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00", "does not begin with the id of a schema"),
        (b"\x01\x00\x00\x00\x01x", "does not begin with the id of a schema"),
        (struct.pack(">bI", 0, 99), "has no schema with the id 99"),
        (struct.pack(">bI", 0, 1) + b"\xff", "not an Avro record of schema 1"),
    ],
)
def a_record_without_a_known_schema_does_not_parse(registry: RegistryServer, data: bytes, message: str) -> None:
    SchemaRegistry(registry.url).register("p", OLD.text)
    with pytest.raises(ValueError, match=message):
        ConfluentRegistryAvroDeserializationSchema.for_generic(NEW, registry.url).deserialize(data)


def a_wrong_address_or_option_is_refused_when_the_schema_is_made() -> None:
    with pytest.raises(ConfigurationError, match="not an address such as http"):
        SchemaRegistry("registry:8081")
    with pytest.raises(ConfigurationError, match=r"'basic.auth' is not an option"):
        SchemaRegistry("http://registry:8081", {"basic.auth": "x"})


# ---- values that fit, and those that do not ------------------------------------------------------------------------------

DATE, MILLIS = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
KINDS: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "string", "bytes", DATE, MILLIS, MONEY),
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    {"type": "fixed", "name": "Two", "size": 2},
    {"type": "array", "items": "int"},
    {"type": "array", "items": "string"},
    {"type": "map", "values": "int"},
    ["null", "int"],
    ["float", "null", "double"],
    ["double", "int"],
    ["string", DATE],
    ["int", "boolean", {"type": "array", "items": "long"}],
]
UTC = datetime.timezone.utc
DAY, NOON = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 0, 0, 5000)
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 7, -(2**31), 2**31, 2**40, 2**53 + 1, 2**63, 10**400),
    *(0.0, 0.1, 1.0, 1.9, 1e300, float("inf")),
    *("", "A", "a", "7", "1.5", "false", "2024-02-29", "\ud800", "a3c3a0b0-8f3d-4b0e-9a51-3f6d0e7cf0aa"),
    *(b"", b"xy", b"xyz", bytearray(b"xy"), Decimal("0.1"), Decimal("12345.67"), Decimal("1E+4"), Decimal("NaN")),
    *(DAY, NOON, NOON.replace(tzinfo=UTC), NOON.astimezone(datetime.timezone(datetime.timedelta(hours=5)))),
    *(datetime.time(1, 2, 3, 4000), datetime.time(1, 2, 3, 4567), datetime.time(1, tzinfo=UTC)),
    *([], [1], [1.9], ["a"], {}, {"a": 1}, {"a": 1.9}, {1: 1}, {1, 2}, (1, 2), (1, "b"), object()),
]


def _is_that(value: Any, found: Any, kind: Any) -> bool:
    """Whether what was read is what was written, or one of the documented conversions of it."""
    if isinstance(value, datetime.datetime) and isinstance(found, datetime.datetime):
        return found == (value.astimezone(datetime.timezone.utc).replace(tzinfo=None) if value.tzinfo else value)
    if isinstance(value, datetime.time) and kind == {"type": "int", "logicalType": "time-millis"}:
        return bool(found == value.replace(microsecond=value.microsecond // 1000 * 1000))
    if isinstance(value, float) and kind == "float":
        return bool(found == struct.unpack("<f", struct.pack("<f", value))[0])
    if isinstance(value, bool) or isinstance(found, bool):
        return value is found
    if isinstance(value, tuple):
        return type(found) is list and found == list(value)
    return found == value or (str(value) == found and "-" in found)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def a_value_is_read_back_as_it_was_written_or_refused(kind: Any) -> None:
    text = json.dumps(record("P", ("a", kind)))
    write, read = AvroRowSerializationSchema(avro_schema_string=text), AvroRowDeserializationSchema(None, text)
    written = 0
    for value in VALUES:
        try:
            data = write.serialize(Row(a=value))
        except ValueError as error:
            told = str(error)
        else:
            assert _is_that(value, read.deserialize(data).a, kind), (kind, value, read.deserialize(data))
            told, written = "field a: ", written + 1
        assert told.startswith("field a: "), (kind, value)
    assert written


@pytest.mark.parametrize("given", [{"name": "a", "n": 1, "other": 2}, Row(name="a", other=2), Row(first="a", second=1)])
def a_field_that_the_schema_has_not_is_refused(given: Any) -> None:
    write = AvroRowSerializationSchema(avro_schema_string=json.dumps(record("P", ("name", "string"), ("n", "int"))))
    with pytest.raises(ValueError, match=r"has the field '(other|first)', which the Avro record P has not"):
        write.serialize(given)


def a_misfit_deep_in_a_record_is_named_with_its_fields() -> None:
    write = AvroRowSerializationSchema(avro_schema_string=EVERYTHING)
    with pytest.raises(ValueError, match="field home: field zip: INT"):
        write.serialize(Row(**{**ROW.as_dict(), "home": Row(city="Pune", zip=1.5)}))


@pytest.mark.parametrize(
    "kind", [{"type": "int", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "date"}]
)
def a_logical_type_on_another_type_than_its_own_is_ignored(kind: Any) -> None:
    text = json.dumps(record("P", ("a", kind)))
    write, read = AvroRowSerializationSchema(avro_schema_string=text), AvroRowDeserializationSchema(None, text)
    for count in (1, 15, 16, 100):
        assert list(read.deserialize_batch([write.serialize(Row(a=5))] * count)) == [Row(a=5)] * count
    assert read.get_produced_type().conform(Row(a=5)) == Row(a=5)


@pytest.mark.parametrize(
    ("wrote", "reads", "value", "expected"),
    [
        ("long", MILLIS, 5, datetime.datetime(1970, 1, 1, 0, 0, 0, 5000)),
        ("int", MILLIS, 5, datetime.datetime(1970, 1, 1, 0, 0, 0, 5000)),
        (MILLIS, "long", datetime.datetime(1970, 1, 1, 0, 0, 0, 5000), 5),
        ("int", DATE, 1, datetime.date(1970, 1, 2)),
        (MONEY, "bytes", Decimal("1.50"), b"\x00\x96"),
        ("bytes", MONEY, b"\x00\x96", Decimal("1.50")),
        (MILLIS, MILLIS, NOON, NOON),
        ("long", ["null", MILLIS], 5, datetime.datetime(1970, 1, 1, 0, 0, 0, 5000)),
        ({"type": "array", "items": "int"}, {"type": "array", "items": DATE}, [1], [datetime.date(1970, 1, 2)]),
    ],
)
@pytest.mark.parametrize("count", [1, 20])
def a_reader_gives_its_own_logical_types(
    registry: RegistryServer, wrote: Any, reads: Any, value: Any, expected: Any, count: int
) -> None:
    """Also a default of a logical type, which the writer's schema lacks."""
    writer = AvroSchema.parse_string(json.dumps(record("P", ("a", wrote))))
    reader = AvroSchema.parse_string(json.dumps(record("P", ("a", reads), ("new", MILLIS, 7))))
    data = ConfluentRegistryAvroSerializationSchema.for_generic("p", writer, registry.url).serialize({"a": value})
    read = ConfluentRegistryAvroDeserializationSchema.for_row(reader, registry.url)
    wanted = Row(a=expected, new=datetime.datetime(1970, 1, 1, 0, 0, 0, 7000))
    assert list(read.deserialize_batch([data] * count)) == [wanted] * count


def a_state_of_avro_records_holds_what_it_gives_back() -> None:
    """Also before it is stored: a time without a zone would come back with one."""
    declared = GenericRecordAvroTypeInfo(AvroSchema.parse_string(json.dumps(record("P", ("at", MILLIS), ("n", "float")))))
    value = declared.conform({"at": NOON, "n": 0.1})
    assert declared.decode(declared.encode(value)) == value == {"at": NOON.replace(tzinfo=UTC), "n": pytest.approx(0.1)}
    with pytest.raises(Exception, match="field n: FLOAT holds up to"):
        declared.conform({"at": NOON, "n": 1e300})
