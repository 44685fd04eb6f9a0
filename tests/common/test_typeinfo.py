"""Types: conform, encode and decode through msgpack, snapshots."""

from __future__ import annotations

import copy
import datetime
import enum
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import cloudpickle
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Instant, Row, RowKind, TypeInformation, Types
from holdfast.common.typeinfo import RowTypeInfo, TupleTypeInfo
from holdfast.errors import IncompatibleState

GOLDEN = Path(__file__).parent / "golden" / "type_snapshots_v1.json"

GOLDEN_VALUES = Path(__file__).parent / "golden" / "values_v1.json"


def stored(type_info: TypeInformation, value: object) -> object:
    """The value after a round trip through its stored form."""
    data = msgspec.msgpack.encode(type_info.encode(value))
    return type_info.decode(msgspec.msgpack.decode(data, type=type_info.annotation))


floats = st.floats(allow_nan=False)
naive = st.datetimes(min_value=datetime.datetime(1600, 1, 1))
LEAVES: list[tuple[TypeInformation, st.SearchStrategy[object]]] = [
    (Types.STRING(), st.text()),
    (Types.BOOLEAN(), st.booleans()),
    (Types.BYTE(), st.integers(-(2**7), 2**7 - 1)),
    (Types.SHORT(), st.integers(-(2**15), 2**15 - 1)),
    (Types.INT(), st.integers(-(2**31), 2**31 - 1)),
    (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    (Types.FLOAT(), st.floats(width=32, allow_nan=False)),
    (Types.DOUBLE(), floats),
    (Types.CHAR(), st.characters(exclude_categories=["Cs"])),
    (Types.BIG_INT(), st.integers()),
    (Types.BIG_DEC(), st.decimals(allow_nan=False, allow_infinity=False)),
    (Types.INSTANT(), st.builds(Instant, st.integers(-(2**60), 2**60), st.integers(0, 999_999_999))),
    (Types.SQL_DATE(), st.dates()),
    (Types.SQL_TIME(), st.times()),
    (Types.SQL_TIMESTAMP(), naive),
    (Types.PICKLED_BYTE_ARRAY(), st.one_of(st.text(), st.tuples(st.integers()), st.dictionaries(st.text(), floats))),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), st.binary()),
    (Types.PRIMITIVE_ARRAY(Types.DOUBLE()), st.lists(floats)),
    (Types.BASIC_ARRAY(Types.STRING()), st.lists(st.none() | st.text())),
]
KEYS = [leaf for leaf in LEAVES if leaf[0] in (Types.STRING(), Types.LONG(), Types.BIG_INT(), Types.SQL_DATE())]

Typed = tuple[TypeInformation, st.SearchStrategy[object]]


def listed(leaf: Typed) -> Typed:
    return Types.LIST(leaf[0]), st.lists(st.none() | leaf[1], max_size=4)


def mapped(pair: tuple[Typed, Typed]) -> Typed:
    (key, keys), (value, values) = pair
    return Types.MAP(key, value), st.dictionaries(keys, st.none() | values, max_size=4)


def tupled(leaves: list[Typed]) -> Typed:
    return Types.TUPLE([t for t, _ in leaves]), st.tuples(*(s for _, s in leaves))


def rowed(leaves: list[Typed]) -> Typed:
    names = [f"field {i}" for i in range(len(leaves))]
    fields = st.tuples(st.sampled_from(RowKind), *(st.none() | s for _, s in leaves))
    return Types.ROW_NAMED(names, [t for t, _ in leaves]), fields.map(lambda f: Row.of_values(list(f[1:]), names, f[0]))


types = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(listed),
        st.tuples(st.sampled_from(KEYS), inner).map(mapped),
        st.lists(inner, max_size=3).map(tupled),
        st.lists(inner, max_size=3).map(rowed),
    ),
    max_leaves=6,
)
typed_values = types.flatmap(lambda leaf: st.tuples(st.just(leaf[0]), leaf[1]))


@given(typed_values)
def test_any_value_survives_its_stored_form(typed: tuple[TypeInformation, object]) -> None:
    type_info, value = typed
    value = type_info.conform(value)
    assert type_info.conform(value) == value
    back = stored(type_info, value)
    assert back == value
    assert type(back) is type(value)
    if type_info.is_plain:
        assert type_info.encode(value) is value
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type_info.annotation) == value


@given(types)
def test_a_type_survives_its_snapshot_pickle_and_copy(leaf: Typed) -> None:
    type_info = leaf[0]
    back = TypeInformation.from_dict(json.loads(json.dumps(type_info.to_dict())))
    for other in (back, pickle.loads(pickle.dumps(type_info)), copy.deepcopy(type_info)):
        assert other == type_info
        assert hash(other) == hash(type_info)
        assert repr(other) == repr(type_info)
        assert other.annotation == type_info.annotation


def test_a_types_repr_makes_it_again() -> None:
    type_info = Types.ROW_NAMED(["a", "b"], [Types.MAP(Types.STRING(), Types.LONG()), Types.TUPLE([Types.INT()])])
    assert eval(repr(type_info)) == type_info


def the_text_of_a_type_is_that_of_pyflinks() -> None:
    row = Types.ROW_NAMED(["a", "b"], [Types.MAP(Types.STRING(), Types.LONG()), Types.TUPLE([Types.INT(), Types.CHAR()])])
    assert str(row) == "RowTypeInfo(a: MapTypeInfo<String, Long>, b: TupleTypeInfo(Integer, Char))"
    assert str(Types.ROW([Types.BIG_DEC()])) == "RowTypeInfo(f0: BigDecimal)"
    assert str(Types.LIST(Types.SQL_TIMESTAMP())) == "ListTypeInfo<TimestampTypeInfo>"
    assert str(Types.PRIMITIVE_ARRAY(Types.BYTE())) == "PrimitiveArrayTypeInfo<Byte>"
    assert f"{Types.BASIC_ARRAY(Types.STRING())}" == "BasicArrayTypeInfo<String>"
    assert str(Types.PICKLED_BYTE_ARRAY()) == "PickledByteArrayTypeInfo"
    assert [str(each) for each in (Types.SQL_DATE(), Types.SQL_TIME(), Types.INSTANT())] == [
        *("DateTypeInfo", "TimeTypeInfo", "Instant")
    ]


def golden_types() -> dict[str, TypeInformation]:
    kinds = ["STRING", "BYTE", "BOOLEAN", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR", "BIG_INT", "BIG_DEC"]
    kinds += ["INSTANT", "SQL_DATE", "SQL_TIME", "SQL_TIMESTAMP", "PICKLED_BYTE_ARRAY"]
    simple = {kind: getattr(Types, kind)() for kind in kinds}
    return {
        **simple,
        "ROW": Types.ROW([Types.LONG(), Types.STRING()]),
        "ROW_NAMED": Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()]),
        "TUPLE": Types.TUPLE([Types.LONG(), Types.LIST(Types.DOUBLE())]),
        "MAP": Types.MAP(Types.STRING(), Types.LONG()),
        "PRIMITIVE_ARRAY": Types.PRIMITIVE_ARRAY(Types.BYTE()),
        "BASIC_ARRAY": Types.BASIC_ARRAY(Types.INT()),
        "OBJECT_ARRAY": Types.OBJECT_ARRAY(Types.BIG_DEC()),
    }


def test_snapshots_of_version_1_are_read_and_written_as_ever() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert {name: t.to_dict() for name, t in golden_types().items()} == golden
    assert {name: TypeInformation.from_dict(s) for name, s in golden.items()} == golden_types()


def golden_values() -> dict[str, object]:
    day, time = datetime.date(2026, 1, 31), datetime.time(12, 30, 1, 500_000)
    simple: dict[str, object] = {"STRING": "\u20b9", "BYTE": -1, "BOOLEAN": True, "SHORT": 300, "INT": -70000}
    simple |= {"LONG": 2**63 - 1, "FLOAT": 1.5, "DOUBLE": -0.1, "CHAR": "x", "BIG_INT": -(2**70)}
    simple |= {"BIG_DEC": Decimal("1.10"), "INSTANT": Instant(-1, 5), "SQL_DATE": day, "SQL_TIME": time}
    simple |= {"SQL_TIMESTAMP": datetime.datetime.combine(day, time), "ROW": Row(f0=1, f1=None)}
    simple |= {"ROW_NAMED": Row.of_values([1, "a"], ["id", "name"], RowKind.DELETE), "TUPLE": (1, [0.5, None])}
    return simple | {
        "MAP": {"a": 1, "b": None},
        "PRIMITIVE_ARRAY": b"hi",
        "BASIC_ARRAY": [1, None],
        "OBJECT_ARRAY": [Decimal(5)],
    }


def test_values_of_version_1_are_read_and_written_as_ever() -> None:
    types_by_name = golden_types()
    for name, data in json.loads(GOLDEN_VALUES.read_text()).items():
        type_info, value = types_by_name[name], golden_values()[name]
        assert msgspec.msgpack.encode(type_info.encode(value)).hex() == data
        assert type_info.decode(msgspec.msgpack.decode(bytes.fromhex(data), type=type_info.annotation)) == value


@pytest.mark.parametrize("snapshot", [{"version": 2, "type": "LONG"}, {"version": 1, "type": "NEWER"}, {}])
def test_a_snapshot_of_a_later_release_is_refused(snapshot: dict[str, object]) -> None:
    with pytest.raises(IncompatibleState, match="serializer snapshot"):
        TypeInformation.from_dict(snapshot)


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    pass


@pytest.mark.parametrize(
    ("type_info", "given", "wanted"),
    [
        (Types.INT(), 7.0, 7),
        (Types.INT(), True, 1),
        (Types.LONG(), Level.HIGH, 3),
        (Types.LONG(), np.int64(5), 5),
        (Types.LONG(), np.float32(5), 5),
        (Types.LONG(), Decimal("12"), 12),
        (Types.DOUBLE(), 3, 3.0),
        (Types.DOUBLE(), np.float64(1.5), 1.5),
        (Types.DOUBLE(), Fraction(1, 4), 0.25),
        (Types.FLOAT(), 1.1, 1.100000023841858),
        (Types.FLOAT(), math.inf, math.inf),
        (Types.BOOLEAN(), np.True_, True),
        (Types.STRING(), Name("x"), "x"),
        (Types.BIG_DEC(), 5, Decimal(5)),
        (Types.SQL_TIME(), datetime.time(1, 2, 3, 4567), datetime.time(1, 2, 3, 4000)),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), bytearray(b"x"), b"x"),
        (Types.PRIMITIVE_ARRAY(Types.LONG()), np.array([1, 2]), [1, 2]),
        (Types.LIST(Types.LONG()), (1, None), [1, None]),
    ],
)
def test_values_are_converted_where_nothing_is_lost(type_info: TypeInformation, given: object, wanted: object) -> None:
    value = type_info.conform(given)
    assert value == wanted
    assert type(value) is type(wanted)


LONE = chr(0xD800)


@pytest.mark.parametrize(
    ("type_info", "value", "error", "message"),
    [
        (Types.LONG(), 1.5, ValueError, "LONG cannot hold 1.5 without loss"),
        (Types.LONG(), math.nan, ValueError, "nan"),
        (Types.LONG(), math.inf, ValueError, "inf"),
        (Types.LONG(), Decimal("0.5"), ValueError, "0.5"),
        (Types.LONG(), "5", TypeError, "LONG does not take '5' of type str"),
        (Types.LONG(), None, TypeError, "NoneType"),
        (Types.LONG(), 2**63, OverflowError, "9223372036854775808"),
        (Types.INT(), -(2**31) - 1, OverflowError, "INT holds -2147483648 to 2147483647"),
        (Types.BYTE(), 128, OverflowError, "BYTE"),
        (Types.DOUBLE(), "1", TypeError, "DOUBLE"),
        (Types.DOUBLE(), 10**400, OverflowError, "too large"),
        (Types.FLOAT(), 1e39, OverflowError, "FLOAT"),
        (Types.BOOLEAN(), 1, TypeError, "BOOLEAN does not take 1 of type int"),
        (Types.STRING(), 5, TypeError, "STRING"),
        (Types.STRING(), "a" + LONE, ValueError, "lone surrogate at index 1"),
        (Types.CHAR(), "ab", TypeError, "exactly one character"),
        (Types.BIG_DEC(), 1.5, TypeError, "decimal.Decimal"),
        (Types.BIG_DEC(), Decimal("NaN"), ValueError, "finite"),
        (Types.SQL_DATE(), datetime.datetime(2026, 1, 1), TypeError, "SQL_DATE"),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), ValueError, "time zone"),
        (Types.TUPLE([Types.LONG()]), [1], TypeError, "TUPLE does not take"),
        (Types.TUPLE([Types.LONG()]), Row(1), TypeError, "return a tuple"),
        (Types.TUPLE([Types.LONG()]), (1, 2), ValueError, "1 fields, got 2"),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), (1, None), TypeError, "field 1: STRING does not take None"),
        (Types.ROW([Types.LONG(), Types.STRING()]), Row(None, 2), TypeError, "field f1: STRING does not take 2"),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), (1, 2), TypeError, "field 1: STRING does not take 2"),
        (Types.LIST(Types.LONG()), "ab", TypeError, "pass a list"),
        (Types.LIST(Types.LONG()), ["x"], TypeError, "element of LIST: LONG"),
        (Types.MAP(Types.STRING(), Types.LONG()), {1: 1}, TypeError, "entry of MAP: STRING"),
        (Types.MAP(Types.STRING(), Types.LONG()), [1], TypeError, "pass a dict"),
        (Types.PRIMITIVE_ARRAY(Types.LONG()), [None], TypeError, "LONG"),
        (Types.ROW([Types.LONG()]), 5, TypeError, "ROW does not take 5"),
        (Types.ROW([Types.LONG()]), Row(1, 2), ValueError, "has 1 fields, got 2"),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), Row(b=1), ValueError, "other fields"),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), {"b": 1}, ValueError, "no field 'b'"),
        (Types.ROW_NAMED(["a"], [Types.LONG()]), Row(a="x"), TypeError, "field a: LONG does not take 'x'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(
    type_info: TypeInformation, value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        type_info.conform(value)


def test_rows_are_matched_by_name_or_by_position() -> None:
    named = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    wanted = Row(a=1, b="x")
    for given_row in (Row(b="x", a=1), Row(1, "x"), (1, "x"), [1, "x"], {"b": "x", "a": 1}):
        row = named.conform(given_row)
        assert row == wanted
        assert list(row) == [1, "x"]
        assert row.as_dict() == {"a": 1, "b": "x"}
    assert named.conform({"a": 1}) == Row(a=1, b=None)
    assert repr(Types.ROW([Types.LONG()]).conform(Row(x=1))) == "Row(f0=1)"
    assert Types.ROW([Types.LONG()]).conform(Row.of_kind(RowKind.DELETE, 1)).get_row_kind() is RowKind.DELETE


def test_out_of_range_numbers_are_noticed_when_read_back() -> None:
    data = msgspec.msgpack.encode([2**31])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=Types.LIST(Types.INT()).annotation)


def test_which_types_are_plain() -> None:
    plain = [Types.STRING(), Types.BOOLEAN(), Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG(), Types.DOUBLE()]
    plain += [Types.TUPLE(plain), Types.LIST(Types.LONG()), Types.MAP(Types.STRING(), Types.LIST(Types.DOUBLE()))]
    plain += [Types.PRIMITIVE_ARRAY(Types.BYTE())]
    assert all(t.is_plain and not t.need_conversion() for t in plain)
    other = [Types.BIG_INT(), Types.BIG_DEC(), Types.FLOAT(), Types.INSTANT(), Types.SQL_DATE(), Types.ROW([])]
    other += [Types.LIST(Types.FLOAT()), Types.PICKLED_BYTE_ARRAY(), Types.MAP(Types.BIG_INT(), Types.LONG())]
    assert not any(t.is_plain for t in other)
    assert [t for t in plain + other if t.is_pickled] == [Types.PICKLED_BYTE_ARRAY()]


def test_types_are_compared_by_what_they_are() -> None:
    assert Types.LONG() == Types.LONG() != Types.INT()
    assert Types.ROW([Types.LONG()]) != Types.ROW_NAMED(["a"], [Types.LONG()]) != Types.TUPLE([Types.LONG()])
    assert Types.LIST(Types.LONG()) != Types.OBJECT_ARRAY(Types.LONG())
    assert len({Types.LIST(Types.LONG()), Types.LIST(Types.LONG()), Types.LIST(Types.INT())}) == 2
    with pytest.raises(AttributeError, match="immutable"):
        Types.LONG().is_plain = False


def test_row_types_know_their_fields() -> None:
    type_info = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    assert isinstance(type_info, RowTypeInfo)
    assert type_info.get_field_names() == ["a", "b"]
    assert type_info.get_field_types() == [Types.LONG(), Types.STRING()]
    assert (type_info.get_field_index("b"), type_info.get_field_index("z")) == (1, -1)
    assert Types.ROW([Types.LONG(), Types.LONG()]).get_field_names() == ["f0", "f1"]
    assert isinstance(Types.TUPLE([]), TupleTypeInfo)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Types.LIST(Types.LONG), r"write Types.LONG\(\)"),
        (lambda: Types.ROW(Types.LONG()), "takes a list of types"),
        (lambda: Types.TUPLE([int]), "field 0 of Types.TUPLE"),
        (lambda: Types.MAP(Types.LIST(Types.LONG()), Types.LONG()), "not hashable"),
        (lambda: Types.PRIMITIVE_ARRAY(Types.STRING()), "primitive"),
        (lambda: Types.BASIC_ARRAY(Types.ROW([])), "OBJECT_ARRAY"),
    ],
)
def test_a_type_made_of_no_types_is_refused(make: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()  # type: ignore[operator]


def test_row_names_must_fit() -> None:
    with pytest.raises(ValueError, match="1 names for 2 types"):
        Types.ROW_NAMED(["a"], [Types.LONG(), Types.LONG()])
    with pytest.raises(ValueError, match="given twice"):
        Types.ROW_NAMED(["a", "a"], [Types.LONG(), Types.LONG()])


def test_objects_of_classes_that_workers_cannot_import_are_pickled_by_value() -> None:
    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

    type_info = Types.PICKLED_BYTE_ARRAY()
    assert stored(type_info, Local(3)).x == 3  # type: ignore[attr-defined]
    assert cloudpickle.loads(type_info.encode(lambda: 5))() == 5
    with pytest.raises(TypeError, match="generator"):
        type_info.encode(i for i in [])
