"""Each value that a state of a declared type takes is read back as it was read first: equal, and of the same classes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import http
import uuid
from array import array
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Instant, Row, Time, Types
from holdfast.common.typeinfo import TypeInformation
from holdfast.datastream.functions import AggregateFunction
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import UserCodeError
from holdfast.state.cells import entries

from .backend import Backend

Pair = namedtuple("Pair", "total n")


class Cents(int):
    pass


class Name(str):
    __slots__ = ()


class Size(enum.IntEnum):
    SMALL = 1


class Color(str, enum.Enum):
    RED = "red"


class Day(datetime.date):
    pass


class Moment(datetime.datetime):
    pass


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass(unsafe_hash=True)
class Order:
    total: int
    price: float = 0.5
    lines: tuple[Any, ...] = ()


@dataclasses.dataclass(unsafe_hash=True)
class Special(Order):
    pass


NUMBERS = [
    0,
    2,
    -3,
    True,
    2.0,
    2.5,
    -0.0,
    np.int64(3),
    np.int8(3),
    np.float64(2.0),
    np.float32(0.1),
    np.bool_(True),
    Cents(2),
]
NUMBERS += [Size.SMALL, http.HTTPStatus.OK, Decimal("2.00"), Decimal("0.1"), Fraction(4, 2), 2**40, 2**70, float("inf")]
TEXTS = ["a", "abc", Name("n"), Color.RED, np.str_("s"), b"b", bytearray(b"b"), np.bytes_(b"b"), "\ud800"]
TIMES = [datetime.date(2024, 2, 29), Day(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4567), Moment(2024, 2, 29)]
TIMES += [pd.Timestamp("2024-02-29T01:02:03.004567891"), datetime.time(1, 2, 3, 4567), datetime.time(1, 30, fold=1)]
TIMES += [datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc), Instant(5, 7)]
PAIRS = [
    (1, 2),
    (1, 2.0),
    (True, np.int64(2)),
    Pair(1, 2),
    Point(1, 2.5),
    [1, 2],
    [1.0, True],
    (1, None),
    ("a", 1),
    (1,),
    (),
]
PAIRS += [
    array("q", [1, 2]),
    array("d", [0.5]),
    np.array([1, 2]),
    np.array([0.5]),
    [],
    [None, 1],
    [(1, 2)],
    [Pair(1, 2), [1, 2]],
]
MAPS = [
    {"a": 1},
    {"a": 2.0},
    {Name("a"): True},
    Counter("ab"),
    OrderedDict(a=1),
    {"a": None},
    {1: [1, True]},
    {1.0: (1, 2)},
    {},
]
RECORDS = [Row(1, 2), Row(total=1, n=2), Row(total=True, n=2.0), {"total": 1, "n": 2}, Order(1), Order(True), Special(1)]
RECORDS += [Order(1, np.float64(0.5), (1, [2])), Row(1, [2.0, True]), uuid.UUID(int=1), {1, 2}, None]
VALUES: list[Any] = [*NUMBERS, *TEXTS, *TIMES, *PAIRS, *MAPS, *RECORDS]

LONG, STRING = Types.LONG(), Types.STRING()
TYPES: list[TypeInformation[Any] | None] = [
    *(None, Types.PICKLED_BYTE_ARRAY(), STRING, Types.BYTE(), Types.BOOLEAN(), Types.SHORT(), Types.INT(), LONG),
    *(Types.FLOAT(), Types.DOUBLE(), Types.CHAR(), Types.BIG_INT(), Types.BIG_DEC(), Types.INSTANT()),
    *(Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP()),
    *(Types.TUPLE([LONG, LONG]), Types.TUPLE([LONG, Types.DOUBLE()]), Types.TUPLE([STRING, LONG]), Types.TUPLE([LONG])),
    *(Types.LIST(LONG), Types.LIST(Types.DOUBLE()), Types.LIST(Types.TUPLE([LONG, LONG])), Types.LIST(Types.BIG_INT())),
    *(Types.BASIC_ARRAY(LONG), Types.OBJECT_ARRAY(Types.LIST(LONG)), Types.PRIMITIVE_ARRAY(Types.BYTE())),
    *(Types.PRIMITIVE_ARRAY(LONG), Types.PRIMITIVE_ARRAY(Types.DOUBLE())),
    *(Types.MAP(STRING, LONG), Types.MAP(LONG, Types.LIST(LONG)), Types.MAP(LONG, Types.TUPLE([LONG, LONG]))),
    *(Types.ROW([LONG, LONG]), Types.ROW_NAMED(["total", "n"], [LONG, LONG]), Types.ROW([LONG, Types.LIST(LONG)])),
    *(Types.POJO(Order), Types.POJO(Point)),
]


class Latest(AggregateFunction):
    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_b


def states(declared: TypeInformation[Any] | None, ttl: bool) -> list[Any]:
    made = [
        ValueStateDescriptor("value", declared),
        ListStateDescriptor("added", declared),
        ListStateDescriptor("updated", declared),
        MapStateDescriptor("values", STRING, declared),
        ReducingStateDescriptor("reducing", lambda one, other: other, declared),
        AggregatingStateDescriptor("aggregating", Latest(), declared),
    ]
    if declared is None or not isinstance(declared, type(Types.LIST(LONG))):
        made.append(MapStateDescriptor("keys", declared, LONG))
    if ttl:
        for each in made:
            each.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    return made


def write(handles: dict[str, Any], name: str, value: Any) -> None:
    handle = handles[name]
    if name == "value":
        handle.update(value)
    elif name == "added":
        handle.add(value)
        handle.add_all([value])
    elif name == "updated":
        handle.update([value, value])
    elif name == "values":
        handle.put("one", value)
        handle.put_all({"all": value})
    elif name == "keys":
        handle.put(value, 1)
        handle.put_all({value: True})
        assert handle.contains(value)
    else:
        handle.add(value)
        handle.add(value)


def read(handles: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, handle in handles.items():
        if name == "value":
            found[name] = handle.value()
        elif name in ("values", "keys"):
            found[name] = sorted(handle.items(), key=repr)
        else:
            found[name] = list(handle.get()) if name in ("added", "updated") else handle.get()
    return {name: (value, list(classes(value))) for name, value in found.items()}


def classes(value: Any) -> Iterator[type]:
    """The classes of a value and all within it."""
    yield type(value)
    if isinstance(value, dict):
        for each in value.items():
            yield from classes(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from classes(each)
    elif isinstance(value, Row):
        yield from classes(value._values)
    elif dataclasses.is_dataclass(value):
        yield from classes(list(vars(value).values()))


@pytest.mark.parametrize(
    ("kind", "large", "ttl"),
    [("rocksdb", False, False), ("hashmap", True, False), ("rocksdb", True, True), ("hashmap", False, True)],
)
@pytest.mark.parametrize("declared", TYPES, ids=repr)
def a_value_that_is_accepted_is_read_back_as_it_was_at_once(
    declared: Any, ttl: bool, large: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(entries, "MOST_IN_ROW", 0)
    first = read_back(declared, VALUES, ttl, kind)
    assert len(set(first.values())) > 1  # some are accepted


Typed = tuple[TypeInformation[Any], st.SearchStrategy[Any]]
"""A type, and values of which it takes some."""

NUMERIC = (
    *(Types.BYTE(), Types.BOOLEAN(), Types.INT(), LONG, Types.FLOAT()),
    *(Types.DOUBLE(), Types.BIG_INT(), Types.BIG_DEC()),
)
LEAVES: list[Typed] = [
    *((each, st.sampled_from(NUMBERS)) for each in NUMERIC),
    *((each, st.sampled_from(TEXTS)) for each in (STRING, STRING, Types.CHAR())),
    *(
        (each, st.sampled_from(TIMES))
        for each in (Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(), Types.INSTANT())
    ),
]
WHOLES: list[Typed] = [(each, st.sampled_from(VALUES)) for each in TYPES if each is not None]


def composed(parts: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    """Types made of others, with values of their shape."""

    def of_several(typed: list[Typed], named: bool) -> Typed:
        fields = [f"f{n}" for n in range(len(typed))]
        values = st.tuples(*(value for _, value in typed))
        rows = values.map(lambda each: Row(**dict(zip(fields, each, strict=True))) if named else Row(*each))
        types = [each for each, _ in typed]
        return Types.ROW_NAMED(fields, types) if named else Types.ROW(types), values | rows

    def of_one(typed: Typed, make: Any) -> Typed:
        return make(typed[0]), st.lists(typed[1], max_size=3) | st.lists(typed[1], max_size=3).map(tuple)

    def a_map(key: Typed, value: Typed) -> Typed:
        keys = key[1].filter(lambda each: not isinstance(each, bytearray))
        return Types.MAP(key[0], value[0]), st.dictionaries(keys, value[1], max_size=3)

    some = st.lists(parts, min_size=1, max_size=3)
    keys = st.sampled_from(LEAVES)
    return st.one_of(
        st.builds(of_one, parts, st.sampled_from([Types.LIST, Types.OBJECT_ARRAY])),
        some.map(lambda typed: (Types.TUPLE([each for each, _ in typed]), st.tuples(*(value for _, value in typed)))),
        st.builds(of_several, some, st.booleans()),
        st.builds(a_map, keys, parts),
    )


@settings(max_examples=examples(10))
@given(st.recursive(st.sampled_from([*LEAVES, *WHOLES]), composed, max_leaves=4), st.data())
def a_value_of_any_shape_is_read_back_as_it_was_at_once(typed: Typed, data: st.DataObject) -> None:
    declared, fitting = typed
    values = data.draw(st.lists(fitting | fitting | st.sampled_from(VALUES), min_size=1, max_size=12))
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr(entries, "MOST_IN_ROW", 0)
        read_back(declared, values, data.draw(st.booleans()), data.draw(st.sampled_from(["hashmap", "rocksdb"])))


def read_back(declared: Any, values: list[Any], ttl: bool, kind: str) -> dict[int, str]:
    """What states hold of each value, which is the same ever after."""
    backend = Backend(kind, states(declared, ttl))
    first: dict[int, str] = {}
    for number, value in enumerate(values):
        backend.use(number)
        for name, handle in backend.handles.items():
            try:
                write(backend.handles, name, value)
                backend.state.check(number)
            except (TypeError, ValueError, OverflowError, UserCodeError):
                handle.clear()
        first[number] = repr(read(backend.handles))

    def all_are_the_same(when: str) -> None:
        for number, value in enumerate(values):
            backend.use(number)
            assert repr(read(backend.handles)) == first[number], (when, value)

    backend.checkpoint()
    all_are_the_same("after the epoch")
    backend.state.evict(1 << 40)
    all_are_the_same("after the eviction")
    backend.checkpoint()
    backend.restart(elsewhere=True)
    all_are_the_same("after a restore")
    backend.restart(elsewhere=True, kind="hashmap" if kind == "rocksdb" else "rocksdb")
    all_are_the_same("on the other backend")
    backend.close()
    return first
