"""Rows and their stored form: every type of state there and back, wrong values, columns that come and go."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.common.time import Instant
from holdfast.common.typeinfo import Types
from holdfast.common.types import Row
from holdfast.datastream.functions import AggregateFunction
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import IncompatibleState, UserCodeError
from holdfast.state.cells.codec import RowCodec, packed_array
from holdfast.state.cells.column import Column
from holdfast.state.cells.handles import HANDLES, CurrentRow
from holdfast.state.cells.typed import handle_class
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import ROWS, OperatorSchema

WHERE = "'count' (uid 'count-1')"
PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


def encoded(codec: RowCodec, keys: Any, rows: Any) -> bytes:
    """Rows as a piece of a delta has them."""
    return packed_array(codec.encode_each(keys, rows, WHERE))


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


def codec_of(*descriptors: Any, schema: OperatorSchema | None = None) -> RowCodec:
    """A codec for these states, which a checkpoint with this schema may hold already."""
    registry = OperatorSchemaRegistry(WHERE, schema)
    registry.state("keyed", ROWS)
    codec = RowCodec(registry, "keyed")
    for descriptor in descriptors:
        codec.register(Column.of(descriptor))
    return codec


def schema_of(codec: RowCodec) -> OperatorSchema:
    """The codec's schema as a checkpoint gives it back."""
    return OperatorSchema.of_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(codec._registry.schema.plain())))


def there_and_back(descriptor: Any, value: Any) -> Any:
    """The value after it was stored together with others, and alone."""
    codec = codec_of(descriptor)
    row = [3, value]
    (many,) = codec.decode_many(["k"], encoded(codec, ["k"], [row]), codec.schema_id, 1)
    alone = codec.decode("k", codec.encode(row), 4)
    assert many[0] == 1
    assert alone[0] == 4
    assert many[1] == alone[1] == row[1]
    assert type(many[1]) is type(alone[1])
    return many[1]


VALUES: list[tuple[Any, Any]] = [
    (None, {"any": [1, "thing", (None,)]}),
    (Types.PICKLED_BYTE_ARRAY(), {1, 2}),
    (Types.STRING(), "पुणे"),
    (Types.BOOLEAN(), True),
    (Types.BYTE(), -128),
    (Types.LONG(), -(2**63)),
    (Types.DOUBLE(), 0.1),
    (Types.FLOAT(), 0.5),
    (Types.CHAR(), "x"),
    (Types.BIG_INT(), -(10**40)),
    (Types.BIG_DEC(), Decimal("123456789012345678901234567890.10")),
    (Types.INSTANT(), Instant(5, 7)),
    (Types.SQL_DATE(), datetime.date(1969, 12, 31)),
    (Types.SQL_TIME(), datetime.time(23, 59, 59, 999000)),
    (Types.SQL_TIMESTAMP(), datetime.datetime(2026, 1, 2, 3, 4, 5, 6000)),
    (PERSON, Row(name="Asha", age=None)),
    (Types.ROW([PERSON, Types.BIG_DEC()]), Row(Row(name="A", age=1), Decimal("1.5"))),
    (Types.TUPLE([Types.LONG(), Types.TUPLE([Types.STRING(), Types.DOUBLE()])]), (1, ("a", 2.5))),
    (Types.TUPLE([PERSON, Types.BIG_INT()]), (Row(name="B", age=2), 10**30)),
    (Types.LIST(Types.LONG()), [1, None, 3]),
    (Types.LIST(Types.TUPLE([Types.LONG(), Types.STRING()])), [(1, "a"), None]),
    (Types.MAP(Types.STRING(), Types.LIST(Types.LONG())), {"a": [1], "b": None}),
    (Types.MAP(Types.TUPLE([Types.LONG(), Types.LONG()]), Types.BIG_INT()), {(1, 2): 3}),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff"),
]
each_type = pytest.mark.parametrize(("declared", "value"), VALUES, ids=[repr(d) for d, _ in VALUES])


@each_type
def a_value_of_any_type_comes_back(declared: Any, value: Any):
    assert there_and_back(ValueStateDescriptor("v", declared), value) == value
    assert there_and_back(ReducingStateDescriptor("r", max, declared), value) == value
    assert there_and_back(AggregatingStateDescriptor("a", Mean(), declared), value) == value


@each_type
def a_list_of_any_type_comes_back(declared: Any, value: Any):
    assert there_and_back(ListStateDescriptor("l", declared), [value, value]) == [value, value]


@each_type
def a_map_of_any_type_comes_back_with_its_nulls(declared: Any, value: Any):
    entries = {"a": value, "b": None}
    assert there_and_back(MapStateDescriptor("m", Types.STRING(), declared), entries) == entries


@pytest.mark.parametrize(("declared", "value"), [v for v in VALUES if getattr(v[1], "__hash__", None)], ids=repr)
def a_map_with_keys_of_any_type_comes_back(declared: Any, value: Any):
    entries = {value: 1}
    assert there_and_back(MapStateDescriptor("m", declared, Types.LONG()), entries) == entries


@pytest.mark.parametrize(
    ("declared", "given_value", "kept"),
    [
        (PERSON, ("Asha", 31), Row(name="Asha", age=31)),
        (PERSON, {"age": 31, "name": "Asha"}, Row(name="Asha", age=31)),
        (Types.LONG(), np.int64(7), 7),
        (Types.LONG(), True, 1),
        (Types.LONG(), 7.0, 7),
        (Types.DOUBLE(), np.float32(0.5), 0.5),
        (Types.FLOAT(), 0.1, 0.10000000149011612),
        (Types.BIG_DEC(), 7, Decimal(7)),
        (Types.TUPLE([Types.LONG(), PERSON]), (np.int32(1), ("A", 2)), (1, Row(name="A", age=2))),
    ],
    ids=repr,
)
def a_value_becomes_what_its_declared_type_makes_of_it(declared: Any, given_value: Any, kept: Any):
    codec = codec_of(ValueStateDescriptor("v", declared), ListStateDescriptor("l", declared))
    row = [0, given_value, [given_value]]
    encoded(codec, ["k"], [row])
    assert row == [0, kept, [kept]]
    assert type(row[1]) is type(kept)


@pytest.mark.parametrize(
    ("descriptor", "cell", "says"),
    [
        (ValueStateDescriptor("total", Types.LONG()), "12", "cannot be stored as a value state of LONG"),
        (ValueStateDescriptor("total", Types.LONG()), 1.5, "without loss"),
        (ValueStateDescriptor("total", Types.BYTE()), 300, "BYTE holds -128 to 127, got 300"),
        (ValueStateDescriptor("total", Types.LONG()), 2**63, "LONG holds"),
        (ValueStateDescriptor("total", PERSON), ("Asha",), "2 fields, got 1"),
        (ListStateDescriptor("total", Types.STRING()), ["a", None], "STRING does not take None"),
        (ListStateDescriptor("total", PERSON), [("a", "b")], "field age"),
        (MapStateDescriptor("total", Types.STRING(), Types.LONG()), {"a": 1, 2: 3}, "a map state of STRING, LONG"),
        (ValueStateDescriptor("total"), (x for x in ()), "cannot be pickled"),
        (ListStateDescriptor("total"), [(x for x in ())], "cannot be pickled"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)),
)
def a_value_that_does_not_fit_is_named_with_its_state_key_and_operator(descriptor: Any, cell: Any, says: str):
    good = ValueStateDescriptor("good", Types.LONG())
    codec = codec_of(good, descriptor)
    with pytest.raises(UserCodeError) as caught:
        encoded(codec, ["first", ("Pune", 2)], [[0, 1, None], [0, 2, cell]])
    message = str(caught.value)
    assert says in message
    assert "state 'total'" in message
    assert "('Pune', 2)" in message
    assert WHERE in message
    assert caught.value.key == "('Pune', 2)"
    assert caught.value.operator == WHERE


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError

    def __reduce__(self) -> Any:
        raise TypeError("not to be kept")


def a_value_without_a_repr_is_named_with_its_state_key_and_operator():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    codec = codec_of(ValueStateDescriptor("total"))
    for value in (deep, Speechless()):
        with pytest.raises(UserCodeError, match=r"state 'total' cannot be stored .* key 'k'"):
            encoded(codec, ["k"], [[0, value]])


def test_values_of_classes_of_the_main_module_are_readable_elsewhere():
    define = "class P:\n  def __init__(self, a): self.a = a\n"
    write = "sys.stdout.buffer.write(packed_array(codec.encode_each(['k'], [[0, P(7)]], 'here')))"
    read = "print(codec.decode_many(['k'], sys.stdin.buffer.read(), codec.schema_id, 0)[0][1].a)"
    common = (
        "from holdfast.state.cells.codec import *; from holdfast.state.cells.column import *; import sys\n"
        "from holdfast.datastream.state import ValueStateDescriptor\n"
        "from holdfast.state.stored.registry import OperatorSchemaRegistry\n"
        "registry = OperatorSchemaRegistry('here'); registry.state('keyed', 'rows'); codec = RowCodec(registry, 'keyed')\n"
        "codec.register(Column.of(ValueStateDescriptor('v')))\n"
    )
    stored = subprocess.run([sys.executable, "-c", common + define + write], capture_output=True, check=True).stdout
    seen = subprocess.run([sys.executable, "-c", common + read], input=stored, capture_output=True, check=True).stdout
    assert seen.strip() == b"7"


rows = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.lists(st.text(), min_size=1, max_size=3),
        st.none() | st.dictionaries(st.integers(0, 9), st.tuples(st.text(), st.floats(allow_nan=False)), min_size=1),
        st.none() | st.binary() | st.sets(st.integers()),
    )
)
DESCRIPTORS = (
    ValueStateDescriptor("n", Types.LONG()),
    ListStateDescriptor("l", Types.STRING()),
    MapStateDescriptor("m", Types.INT(), Types.TUPLE([Types.STRING(), Types.DOUBLE()])),
    ValueStateDescriptor("any"),
)


@settings(deadline=None, max_examples=50)
@given(rows)
def the_rows_of_an_epoch_come_back_as_they_were(content: list[tuple[Any, ...]]):
    codec = codec_of(*DESCRIPTORS)
    given_rows = [[2, *cells] for cells in content]
    stored = encoded(codec, range(len(content)), given_rows)
    assert codec.decode_many(["k"], stored, codec.schema_id, 1) == [[1, *cells] for cells in content]
    assert [codec.decode("k", codec.encode(row), 1) for row in given_rows] == [[1, *cells] for cells in content]


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([(Types.DOUBLE(), st.floats() | st.integers(-9, 9)), (Types.LONG(), st.integers(-(2**64), 2**64))]),
    st.data(),
)
def a_list_of_numbers_is_stored_the_same_packed_or_not(element: tuple[Any, Any], data: st.DataObject):
    descriptor = ListStateDescriptor("l", element[0])
    elements = data.draw(st.lists(element[1], min_size=1, max_size=70))
    codec, current = codec_of(descriptor), CurrentRow()
    current.row = [0, None]
    handle_class(HANDLES, descriptor)(current, 0, descriptor).update(elements)
    try:
        stored = codec.encode_each(["k"], [[0, elements]], WHERE)
    except UserCodeError as refused:
        with pytest.raises(UserCodeError, match=re.escape(str(refused))):
            codec.encode_each(["k"], [current.row], WHERE)
    else:
        assert codec.encode_each(["k"], [current.row], WHERE) == codec.encode_small([current.row]) == stored
        assert codec.encode(current.row) == codec.encode([0, codec.decode("k", codec.encode(current.row), 0)[1]])


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.decimals(allow_nan=False),
    st.text(max_size=4),
    st.sampled_from(
        ["YWJj", "1", "1.5", b"abc", bytearray(b"abc"), memoryview(b"abc"), np.int64(3), np.float64(0.5), np.str_("n")]
    ),
    st.uuids(),
    st.datetimes(),
)
anything = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.frozensets(atoms.filter(lambda atom: type(atom) not in (bytearray, memoryview)), max_size=2),
        st.dictionaries(st.integers(0, 3) | st.text(max_size=2), inner, max_size=2),
    ),
    max_leaves=6,
)
PLAIN = (
    Types.LONG(),
    Types.SHORT(),
    Types.BIG_INT(),
    Types.DOUBLE(),
    Types.BOOLEAN(),
    Types.STRING(),
    Types.PRIMITIVE_ARRAY(Types.BYTE()),
    Types.TUPLE([Types.LONG(), Types.DOUBLE()]),
    Types.LIST(Types.DOUBLE()),
    Types.LIST(Types.STRING()),
    Types.MAP(Types.STRING(), Types.DOUBLE()),
)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(PLAIN), anything)
@example(Types.DOUBLE(), Decimal("0.5"))
@example(Types.LIST(Types.DOUBLE()), [0.5, Decimal("0.1")])
@example(Types.LIST(Types.DOUBLE()), [-(2**63) - 1])
@example(Types.LIST(Types.DOUBLE()), frozenset([-(2**63) - 1]))
@example(Types.PRIMITIVE_ARRAY(Types.BYTE()), "YWJj")
@example(Types.TUPLE([Types.LONG(), Types.DOUBLE()]), [0, 0])
def a_value_that_is_stored_can_be_read(declared: Any, value: Any):
    """Whatever its class: the quick check of a batch accepts no value that the stored form does not bring back."""
    codec = codec_of(ValueStateDescriptor("any", declared))
    row = [0, value]
    try:
        stored = encoded(codec, ["k"], [row])
    except UserCodeError:
        return
    ((_, found),) = codec.decode_many(["k"], stored, codec.schema_id, 1)
    if found is None:
        assert row[1] is None
    else:
        kept = row[1]
        if type(kept) is list and type(found) is tuple:
            kept = tuple(kept)  # the stored form of both is an array
        kept = declared.conform(list(kept) if isinstance(kept, (set, frozenset)) else kept)
        assert found == kept or repr(found) == repr(kept)  # NaN does not equal itself


@settings(deadline=None, max_examples=30)
@given(rows)
def the_rows_of_states_that_are_declared_late_or_not_at_all_are_kept(content: list[tuple[Any, ...]]):
    first = codec_of(*DESCRIPTORS)
    stored = encoded(first, range(len(content)), [[0, *cells] for cells in content])
    later = codec_of(schema=schema_of(first))
    raw = later.decode_many(["k"], stored, first.schema_id, 0)
    assert later.decode_many(["k"], encoded(later, range(len(raw)), raw), later.schema_id, 0) == raw
    for position, descriptor in enumerate(DESCRIPTORS):
        column = Column.of(descriptor)
        assert later.register(column) == position
        for row, cells in zip(raw, content, strict=True):
            assert cells[position] is None or column.restored(row[position + 1]) == cells[position]
    assert later.decode_many(["k"], stored, first.schema_id, 0) == [[0, *cells] for cells in content]


def a_column_that_is_added_later_is_empty_in_older_rows():
    codec = codec_of(DESCRIPTORS[0])
    old = codec.schema_id
    one, many = codec.encode([0, 5]), encoded(codec, ["a", "b"], [[0, 5], [0, 6]])
    assert codec.register(Column.of(DESCRIPTORS[1])) == 1
    assert codec.register(Column.of(DESCRIPTORS[0])) == 0
    assert codec.schema_id > old
    assert codec.decode("k", one, 1) == [1, 5, None]
    assert codec.decode_many(["k"], many, old, 1) == [[1, 5, None], [1, 6, None]]


def a_row_is_read_by_the_schema_that_wrote_it_and_not_by_one_of_the_same_shape():
    """In an epoch that failed another state was declared first, under the id that the next one gets now."""
    codec = codec_of(DESCRIPTORS[0])
    codec._registry.complete()
    checkpoint = schema_of(codec)
    codec.register(Column.of(ListStateDescriptor("of the failed epoch", Types.LONG())))
    untouched = codec.committed_encoder()([0, 5, None])
    again = codec_of(DESCRIPTORS[0], ListStateDescriptor("another", Types.STRING()), schema=checkpoint)
    assert again.decode("k", untouched, 1) == [1, 5, None]
    with pytest.raises(IncompatibleState, match="was written by schema 9; the checkpoint has schemas up to 3"):
        again.decode_many(["k"], msgspec.msgpack.encode([[5]]), 9, 0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["keyed", "window", "global"]), st.booleans()), max_size=12), st.data())
def a_row_of_any_schema_is_read_as_it_was_written(declared: list[tuple[str, bool]], data: st.DataObject):
    """Columns come one by one to several states, a row is stored after each; all are read in the end and after a restart."""
    registry = OperatorSchemaRegistry(WHERE)
    codecs: dict[str, RowCodec] = {}
    stored: list[tuple[str, int, bytes, bytes, list[Any]]] = []
    for number, (name, typed) in enumerate(declared):
        if name not in codecs:
            registry.state(name, ROWS)
            codecs[name] = RowCodec(registry, name)
        codec = codecs[name]
        codec.register(Column.of(ValueStateDescriptor(f"s{number}", Types.LONG() if typed else None)))
        cells = data.draw(st.lists(st.none() | st.integers(0, 99), min_size=codec.width, max_size=codec.width))
        registry.complete()
        many = encoded(codec, ["k"], [[0, *cells]])
        stored.append((name, codec.schema_id, codec.committed_encoder()([0, *cells]), many, cells))
    after = OperatorSchemaRegistry(WHERE, OperatorSchema.of_plain(registry.schema.plain()))
    readers = {name: RowCodec(after, name) for name in codecs}
    for number, (name, typed) in reversed(list(enumerate(declared))):
        readers[name].register(Column.of(ValueStateDescriptor(f"s{number}", Types.LONG() if typed else None)))
    assert after.schema == registry.schema
    for name, schema_id, one, many, cells in stored:
        for codec in (codecs[name], readers[name]):
            row = [1, *cells, *[None] * (codec.width - len(cells))]
            assert codec.decode("k", one, 1) == row
            assert codec.decode_many(["k"], many, schema_id, 1) == [row]


@pytest.mark.parametrize(
    "other",
    [
        ValueStateDescriptor("n", Types.STRING()),
        ListStateDescriptor("n", Types.LONG()),
        ReducingStateDescriptor("n", max, Types.LONG()),
    ],
    ids=repr,
)
def a_state_declared_with_another_type_or_kind_is_refused_with_the_remedy(other: Any):
    codec = codec_of(schema=schema_of(codec_of(ValueStateDescriptor("n", Types.LONG()))))
    with pytest.raises(
        IncompatibleState, match=r"(?s)state 'n' of operator 'count'.*stored:   a value state of LONG\n.*declared: a"
    ):
        codec.register(Column.of(other))
    codec.register(Column.of(ValueStateDescriptor("n", Types.LONG())))
    with pytest.raises(IncompatibleState, match=r"state 'n' of 'count'.*is declared twice, as a value state of LONG and as"):
        codec.register(Column.of(other))


def an_epoch_that_only_deletes_has_no_rows_to_store():
    codec = codec_of(ValueStateDescriptor("v", Types.BIG_DEC()))
    assert codec.decode_many(["k"], encoded(codec, [], []), codec.schema_id, 0) == []


def the_stored_form_of_rows_stays_as_it_is():
    """An array: the schema that wrote it, then the cells. In a piece only the cells."""
    declared = (
        ValueStateDescriptor("n", Types.LONG()),
        MapStateDescriptor("m", Types.STRING(), PERSON),
        AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.DOUBLE(), Types.BIG_DEC()])),
    )
    codec = codec_of(*declared)
    row = [7, -1, {"k": Row(name="Asha", age=None)}, (0.5, Decimal("1.50"))]
    one = bytes.fromhex("9404ff9192a16b9300a441736861c092cb3fe0000000000000a4312e3530")
    many = bytes.fromhex("9193ff9192a16b9300a441736861c092cb3fe0000000000000a4312e3530")
    assert (codec.encode(row), encoded(codec, ["k"], [row]), codec.schema_id) == (one, many, 4)
    assert codec.decode("k", one, 7) == codec.decode_many(["k"], many, 4, 7)[0] == row
