"""Keys: which are equal, which group they are in, how they are stored."""

from __future__ import annotations

import datetime
import itertools
import math
import os
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common.typeinfo import Types
from holdfast.common.types import Row
from holdfast.datastream.functions import KeyedProcessFunction
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.state.cells.codec import RowCodec
from holdfast.state.cells.column import Column
from holdfast.state.keys.key_codec import (
    comparable_keys,
    decode_key,
    decode_keys,
    encode_each,
    encode_entry,
    encode_key,
    encode_keys,
)
from holdfast.state.keys.key_groups import group_assigner, key_group, key_group_range, key_grouper
from holdfast.state.rows.table import DIRTY, RowTable
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import ROWS
from holdfast.testing import OneInputTestHarness

QUICK = settings(deadline=None, max_examples=examples(30))


class Place(NamedTuple):
    city: str
    pin: int


class Level(IntEnum):
    HIGH = 3


class Color(Enum):
    RED = frozenset("rgb")


class Name(str, Enum):
    RED = "red"


class Right(Flag):
    READ = 1
    WRITE = 2


class Text(str):
    """A str by another name."""


@dataclass(frozen=True)
class Basket:
    owner: Any
    goods: frozenset[Any]


@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any


class Odd:
    """Equal to whatever is odd."""

    def __eq__(self, other: object) -> bool:
        return other == 1

    def __hash__(self) -> int:
        return hash(1)


class OddText(str):
    def __eq__(self, other: object) -> bool:
        return str(self).lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(str(self).lower())


@dataclass(frozen=True)
class Noted:
    name: str
    note: str = field(compare=False)


@dataclass(frozen=True)
class Judged:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Judged) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


GOLDEN = {
    0: 0,
    1: 57,
    -5: 96,
    2**63: 0,
    2**70: 0,
    "": 66,
    "x": 17,
    "मुंबई": 66,
    b"x": 7,
    None: 76,
    1.5: 104,
    ("a", 1): 61,
    (): 76,
    (("a", None), 2.5, b""): 20,
    frozenset("abc"): 125,
    Decimal("0.1"): 57,
    uuid.UUID(int=5): 12,
    datetime.date(2020, 1, 1): 16,
    2**70 + 1: 57,
}
"""Groups of 128. They must never change: state that is stored would be looked for in the wrong subtask."""

any_text = st.text(st.characters())  # lone surrogates, too
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | any_text | st.binary()
exotic = st.dates() | st.uuids() | st.decimals(allow_nan=False, allow_infinity=False) | st.datetimes() | st.times()
keys = st.recursive(
    plain | exotic | st.fractions() | st.complex_numbers(allow_nan=False) | st.sampled_from([*Color, *Name, *Level]),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)


def the_groups_of_keys_never_change():
    assert {key: key_group(key, 128) for key in GOLDEN} == GOLDEN


STORED: list[tuple[Any, str]] = [
    ("", "a0"),
    ("मुंबई", "afe0a4aee0a581e0a482e0a4ace0a488"),
    ("\ud800", "c7110180059506000000000000008c03eda0802e"),
    (b"x", "c40178"),
    (-1, "ff"),
    (2**63, "cf8000000000000000"),
    (2**64, "c717018005950c000000000000008a090000000000000000012e"),
    (1.5, "cb3ff8000000000000"),
    (None, "c0"),
    ((), "90"),
    ((("a", None), 2.5), "9292a161c0cb4004000000000000"),
    (Decimal("0.1"), "c726018005951b000000000000008c07646563696d616c8c07446563696d616c938c03302e3185522e"),
    (Decimal("1e30"), "c71b0180059510000000000000008a0d00000040eaed7446d09c2c9f0c2e"),
    (Fraction(1, 3), "c70303920103"),
    (
        1 + 2j,
        "c7340180059529000000000000008c086275696c74696e738c07636f6d706c657893473ff000000000000047400000000000000086522e",
    ),
    (
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
        "c72f0180059524000000000000008c086461746574696d658c086461746574696d6593430a07e4010203040500000685522e",
    ),
    (datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc), "c70904cf00059b1f7226f346"),
    (datetime.date(2020, 1, 2), "c725018005951a000000000000008c086461746574696d658c046461746593430407e4010285522e"),
    (datetime.time(3, 4, 5, 6), "c727018005951c000000000000008c086461746574696d658c0474696d6593430603040500000685522e"),
    (
        datetime.timedelta(1, 2, 3),
        "c72a018005951f000000000000008c086461746574696d658c0974696d6564656c7461934b014b024b0387522e",
    ),
    (uuid.UUID(int=5), "c725018005951a000000000000008c04757569648c04555549449329817d8c03696e744b0573622e"),
    (
        IPv4Address("10.0.0.1"),
        "c72c0180059521000000000000008c096970616464726573738c0b4950763441646472657373934a0100000a85522e",
    ),
    (IPv6Address("::1"), "c72c0180059521000000000000008c096970616464726573738c0b4950763641646472657373938c033a3a3185522e"),
    (Row(b=1, a=(2,)), "c70b07930092a162a16192019102"),
    (Row(1, "a"), "c70d07930092a26630a266319201a161"),
]


@pytest.mark.parametrize(("key", "stored"), STORED, ids=[repr(key) for key, _ in STORED])
def the_stored_form_of_each_type_of_key_never_changes(key: Any, stored: str):
    assert encode_key(key).hex() == stored
    assert (decode_key(bytes.fromhex(stored)), encode_keys([key])) == (key, bytes.fromhex(f"91{stored}"))


def the_stored_form_of_keys_never_changes():
    assert encode_key("x") == b"\xa1x"
    assert encode_key(("a", 1, None)) == b"\x93\xa1a\x01\xc0"
    assert encode_key(2**70).hex() == "c717018005950c000000000000008a090000000000000000402e"
    assert encode_key(frozenset("ba")).hex() == "c7090292c402a161c402a162"


@QUICK
@given(keys)
def a_hashable_key_comes_back_from_its_stored_form(key: Any):
    assert decode_key(encode_key(key)) == key


@QUICK
@given(st.lists(keys, max_size=5))
def a_list_of_keys_comes_back_from_its_stored_form(several: list[Any]):
    assert decode_keys(encode_keys(several)) == several


@QUICK
@given(st.lists(keys, max_size=5))
def the_keys_are_stored_alike_alone_and_in_a_list(several: list[Any]):
    assert [encode_key(key) for key in decode_keys(encode_keys(several))] == [encode_key(key) for key in several]


ZONES = [datetime.timezone.utc, *map(ZoneInfo, ("Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"))]


def spellings_of_number(number: Fraction, numpy: bool) -> list[Any]:
    """Objects of many classes that equal the number.

    Args:
        number: The number.
        numpy: Whether NumPy's are among them; else decimals (``Decimal(1) == np.int64(1)`` is a TypeError).
    """
    made: list[Any] = [number, complex(number), float(number)]
    whole = int(number)
    made += [whole, bool(whole), Level(3)]
    if numpy:
        with np.errstate(over="ignore"):
            made += [np.float64(number), np.float32(number), np.complex64(number)]
        made += [np.int64(whole)] if abs(whole) < 2**63 else []
    else:
        ratio = Decimal(number.numerator) / Decimal(number.denominator)
        made += [Decimal(whole), Decimal(whole) * Decimal("1.00"), ratio, ratio.normalize()]
    return [key for key in made if key == number and hash(key) == hash(number)]


def spellings_of_instant(at: datetime.datetime) -> list[Any]:
    return [at.astimezone(zone) for zone in ZONES] + [at.astimezone(datetime.timezone(datetime.timedelta(minutes=-7)))]


numbers = (
    st.integers(-5, 5).map(Fraction)
    | st.integers().map(Fraction)
    | st.fractions()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3).map(Fraction)
    | st.floats(allow_nan=False, allow_infinity=False).map(Fraction)
    | st.builds(lambda n, e: Fraction(n) * Fraction(10) ** e, st.integers(-99, 99), st.integers(-30, 30))
)
instants = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2060, 1, 1)).map(
    lambda at: at.replace(tzinfo=datetime.timezone.utc)
)
texts = st.sampled_from(["", "red", "x", "\ud800"]).map(lambda text: [text, Text(text), np.str_(text)])


def families(numpy: bool) -> st.SearchStrategy[list[Any]]:
    """Lists of keys, some of which are equal although their classes differ."""
    return st.recursive(
        st.builds(spellings_of_number, numbers.filter(lambda n: abs(n) < 10**300), st.just(numpy))
        | instants.map(spellings_of_instant)
        | texts
        | st.just([Name.RED, "red", Text("red")])
        | st.just([Decimal("Infinity"), math.inf, np.float64("inf"), complex(math.inf, 0)])
        | st.just([complex(-0.0, 2), complex(0, 2)])
        | exotic.map(lambda key: [key]),
        lambda inner: st.builds(
            lambda one, other: [
                made
                for a, b in itertools.islice(itertools.product(one, other), 12)
                for made in (
                    (a, b),
                    Place(a, b),
                    Point(a, b),
                    Row(a, b),
                    Row(f0=a, f1=b),
                    Row(x=a, y=b),
                    Basket(a, frozenset([b, "z", 5])),
                )
            ],
            inner,
            inner,
        ),
        max_leaves=3,
    )


some_families = st.booleans().flatmap(lambda numpy: st.lists(families(numpy), min_size=1, max_size=3))


def python_equal(one: Any, other: Any) -> bool:
    """Equal as a dict sees it."""
    return hash(one) == hash(other) and bool(one == other)


@settings(deadline=None, max_examples=examples(60))
@given(some_families, st.randoms(use_true_random=False))
def test_keys_that_python_calls_equal_are_one_key_and_others_are_not(some: list[list[Any]], draw: Any):
    several = [key for family in some for key in family]
    draw.shuffle(several)
    several = several[:12]
    stored = [encode_key(key) for key in several]
    groups = [key_group(key, 128) for key in several]
    for (one, first, group), (other, second, another) in itertools.combinations(zip(several, stored, groups), 2):
        assert python_equal(one, other) == (first == second), (one, other)
        assert first != second or group == another, (one, other)
    assert encode_keys(several) == encode_keys([decode_key(data) for data in stored])
    for data in stored:
        assert encode_key(decode_key(data)) == data


@settings(deadline=None, max_examples=examples(30))
@given(some_families, st.randoms(use_true_random=False), st.sampled_from([1, 3, 200_000]))
def the_subtask_of_a_key_does_not_depend_on_the_keys_before_it(some: list[list[Any]], draw: Any, memo_size: int):
    several = [key for family in some for key in family] * 2
    draw.shuffle(several)
    several = several[:20]
    alone = [group_assigner(128, 7)([key])[0] for key in several]
    assign = group_assigner(128, 7, memo_size)
    assert [assign([key])[0] for key in several] == alone
    assert assign(several) == alone


@settings(deadline=None, max_examples=examples(20))
@given(some_families, st.randoms(use_true_random=False), st.sampled_from([0, 1, 100]))
def test_equal_keys_share_a_row_however_few_the_cache_keeps(some: list[list[Any]], draw: Any, evicted: int):
    several = [key for family in some for key in family] * 2
    draw.shuffle(several)
    several = several[:15]
    counts: dict[Any, int] = {}
    registry = OperatorSchemaRegistry("here")
    registry.state("keyed", ROWS)
    codec = RowCodec(registry, "keyed")
    codec.register(Column.of(ValueStateDescriptor("count", Types.LONG())))
    with tempfile.TemporaryDirectory() as directory:
        store = RocksDBStore(directory, rocksdb_settings({}))
        table = RowTable(codec, store, b"r", key_grouper(128), True, *[lambda *_: None] * 3)
        for key in several:
            (row,) = table.load([key])
            counts[key] = counts.get(key, 0) + 1
            row[1] = (row[1] or 0) + 1
            row[0] |= DIRTY
            assert row[1] == counts[key], key
            table.collect("")
            registry.complete()
            if evicted:
                table.evict(evicted)
        store.close()


@pytest.mark.parametrize(
    "equal",
    [
        (1, True, 1.0, np.int64(1), np.float32(1), np.bool_(True)),
        (2**70, 2.0**70),
        ("x", np.str_("x")),
        (("a", 1), ("a", 1.0), ("a", True), ("a", np.int32(1))),
        (Decimal("1.50"), Decimal("1.5"), Decimal("150e-2"), 1.5, np.float64(1.5), Fraction(3, 2), 1.5 + 0j),
        (1, Decimal(1), Fraction(1), 1 + 0j, Decimal("1.000"), np.complex64(1)),
        (10**30, Decimal("1e30"), Fraction(10**30)),
        (0, -0.0, Decimal("-0"), Decimal("0e99999"), -0j),
        (Decimal("0.1"), Fraction(1, 10), Decimal("0.100")),
        (3, Level.HIGH, Decimal(3)),
        (("Pune", 411001), Place("Pune", 411001), Place(Text("Pune"), Decimal(411001))),
        ("red", Name.RED, Text("red")),
        tuple(spellings_of_instant(datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc))),
        (Basket("a", frozenset("xyz")), Basket(Text("a"), frozenset("zyx"))),
        (uuid.UUID(int=5), uuid.UUID(int=5, is_safe=uuid.SafeUUID.safe)),
    ],
)
def test_keys_that_python_calls_equal_are_one_key(equal: tuple[Any, ...]):
    assert len({encode_key(key) for key in equal}) == 1
    assert len({key_group(key, 128) for key in equal}) == 1


def test_storage_returns_the_canonical_key():
    def back(key: Any) -> Any:
        return decode_key(encode_key(key))

    assert type(back(Place("Pune", 411001))) is tuple
    assert type(back(Level.HIGH)) is int
    assert repr(back(datetime.datetime(2020, 1, 1, 5, 30, tzinfo=ZoneInfo("Asia/Kolkata")))) == (
        "datetime.datetime(2020, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"
    )
    assert back(Color.RED) is Color.RED
    assert back(Right.READ | Right.WRITE) is Right.READ | Right.WRITE
    basket = back(Basket(1.0, frozenset([Decimal("0.1")])))
    assert (type(basket), basket) == (Basket, Basket(1, frozenset([Decimal("0.1")])))
    assert back(Point(1, ("a",))) == Point(1, ("a",))
    assert repr(back(Row(b=1, a=(2,)))) == "Row(b=1, a=(2,))"
    assert back(IPv4Address("10.0.0.1")) == IPv4Address("10.0.0.1")


@pytest.mark.parametrize("fold", [0, 1])
def a_time_that_the_clocks_show_twice_is_its_first(fold: int):
    twice = datetime.datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=fold)
    assert decode_key(encode_key(twice)) == datetime.datetime(2024, 11, 3, 5, 30, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    "key",
    [
        Odd(),
        OddText("A"),
        Noted("a", "b"),
        Judged("a"),
        object(),
        Path("/x"),
        range(3),
        memoryview(b"x"),
        np.datetime64("2020-01-01"),
        np.longdouble("0.1"),
        datetime.time(1, tzinfo=datetime.timezone.utc),
        Decimal("1e99999"),
        Decimal("1e-99999"),
        ("a", Odd()),
        Basket("a", frozenset([Odd()])),
        datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    ],
)
def a_key_without_a_canonical_form_is_refused_wherever_it_comes(key: Any):
    for use in (lambda: key_group(key, 128), lambda: encode_key(key), lambda: group_assigner(128, 1)([key])):
        with pytest.raises(TypeError, match="cannot be a key, or be in one"):
            use()


def a_stored_key_whose_class_is_gone_says_so():
    stored = encode_key(Color.RED).replace(b"Color", b"Colou")
    with pytest.raises(IncompatibleState, match=r"class .*test_keys.Colou, which is not found"):
        decode_key(stored)


def a_key_is_stored_alike_whether_its_parts_are_one_object_or_two():
    text = "".join(["a", "b"])
    assert encode_key(Row("ab", "ab")) == encode_key(Row(text, "".join(["a", "b"])))


def a_key_has_the_same_group_whatever_the_hash_seed():
    program = (
        "from holdfast.state.keys.key_groups import key_group\nfrom holdfast.state.keys.key_codec import encode_key\n"
        "from holdfast.common.types import Row\n"
        "keys = [frozenset(['a', 'b', 'c']), ('x', frozenset([1, 'y'])), Row('p', 2)]\n"
        "print([(key_group(k, 128), encode_key(k).hex()) for k in keys])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


@pytest.mark.parametrize("key", [[1], ("a", [1]), {"a": 1}])
def a_key_that_cannot_be_hashed_is_refused_with_the_remedy(key: Any):
    with pytest.raises(TypeError, match=r"must be hashable.*make it a tuple or a string"):
        key_group(key, 128)
    with pytest.raises(TypeError, match="make it a tuple or a string"):
        group_assigner(128, 2)([key])


@pytest.mark.parametrize("key", [math.nan, ("a", math.nan), frozenset([math.nan]), np.float32("nan"), Decimal("nan")])
def a_key_that_does_not_equal_itself_is_refused(key: Any):
    with pytest.raises(TypeError, match="does not equal itself"):
        key_group(key, 128)
    with pytest.raises(TypeError, match="does not equal itself"):
        group_assigner(128, 1)([1, key])


def a_key_of_a_class_of_the_main_module_is_refused():
    program = (
        "from dataclasses import dataclass\nfrom holdfast.state.keys.key_groups import key_group\n"
        "@dataclass(frozen=True)\nclass P:\n  a: int\n"
        "try: key_group(P(1), 128)\nexcept TypeError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert "class P, which is defined in the main module" in said


@pytest.mark.parametrize(("module", "where"), [("__main__", "in the main module"), ("elsewhere", "within a function")])
def a_key_of_a_class_that_no_import_finds_is_refused(module: str, where: str):
    @dataclass(frozen=True)
    class P:
        x: int

    P.__module__ = module
    with pytest.raises(TypeError, match=f"P, which is defined {where}, has no lasting identity"):
        encode_key(P(1))


@QUICK
@given(st.lists(keys, max_size=20), st.integers(1, 7))
def the_assigner_sends_a_key_to_the_subtask_whose_range_has_its_group(several: list[Any], parallelism: int):
    assign = group_assigner(128, parallelism, memo_size=3)
    for batch in (several, several[::-1], several):
        for key, subtask in zip(batch, assign(batch), strict=True):
            assert key_group(key, 128) in key_group_range(128, parallelism, subtask)


@pytest.mark.parametrize("key", [-(2**63) - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 2**64 + 1])
def an_integer_at_the_ends_of_64_bits_comes_back(key: int):
    assert decode_key(encode_key(key)) == key
    assert decode_keys(encode_keys([key, 1])) == [key, 1]
    assert [decode_key(stored) for stored in encode_each([key, 1])] == [key, 1]


BERLIN = ZoneInfo("Europe/Berlin")
TWICE = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
"""Half past two, which the clocks show twice."""


@pytest.mark.parametrize(
    "key", [1, "a", ("a", 1), datetime.datetime(2026, 1, 1), TWICE.replace(hour=5), (TWICE.replace(hour=1),)]
)
def a_key_of_a_map_has_the_stored_form_of_a_key(key: Any):
    assert encode_entry(key) == encode_key(key)
    assert comparable_keys([key]) == [key]


def a_time_that_the_clocks_show_twice_is_an_instant_as_a_key_and_of_its_zone_in_a_map():
    for fold in (0, 1):
        time = TWICE.replace(fold=fold)
        instant = time.astimezone(datetime.timezone.utc)
        assert encode_key(time) == encode_key(TWICE) == encode_key(TWICE.astimezone(datetime.timezone.utc))
        assert encode_entry(time) == encode_entry(TWICE) != encode_entry(instant)
        assert encode_entry((1, time)) == encode_entry((1, TWICE)) != encode_entry((1, instant))
        assert comparable_keys([time, (1, time)]) == comparable_keys([TWICE.astimezone(datetime.timezone.utc), (1, TWICE)])
    assert comparable_keys([]) == []
    with pytest.raises(TypeError, match="its zone is no ZoneInfo"):
        encode_entry(TWICE.replace(tzinfo=Shown()))


class Shown(datetime.tzinfo):
    """A zone of the program's own, which sets its clocks back."""

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=1 if when is None or when.fold else 2)


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield self.count.value()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("within", [False, True])
def a_key_in_the_hour_that_a_zone_shows_twice_keeps_its_state(backend: str, within: bool):
    key = datetime.datetime(2021, 10, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    same = [key, datetime.datetime(2021, 10, 31, 0, 30, tzinfo=datetime.timezone.utc)]
    snapshot, counts = None, []
    for _ in range(2):
        with OneInputTestHarness(
            lambda stream: stream.key_by(lambda value: ("a", value) if within else value).process(Count()),
            configuration={"state.backend.type": backend},
            snapshot=snapshot,
        ) as harness:
            for each in same:
                harness.process_element(each)
            counts += harness.extract_output_values()
            snapshot = harness.snapshot()
    assert counts == [1, 2, 3, 4]
