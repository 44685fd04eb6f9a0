"""Keys: which are equal, which group they are in, how they are stored."""

from __future__ import annotations

import datetime
import math
import os
import subprocess
import sys
import uuid
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common.types import Row
from holdfast.state.key_groups import (
    decode_key,
    decode_keys,
    encode_key,
    encode_keys,
    group_assigner,
    key_group,
    key_group_range,
)

QUICK = settings(deadline=None, max_examples=50)


class Place(NamedTuple):
    city: str
    pin: int


class Level(IntEnum):
    HIGH = 3


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
exotic = st.dates() | st.uuids() | st.decimals(allow_nan=False, allow_infinity=False) | st.datetimes()
keys = st.recursive(
    plain | exotic, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=6
)


def the_groups_of_keys_never_change():
    assert {key: key_group(key, 128) for key in GOLDEN} == GOLDEN


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


@QUICK
@given(plain, plain)
def test_equal_keys_have_one_group_and_one_stored_form(one: Any, other: Any):
    assert (one == other) == (encode_key(one) == encode_key(other))
    if one == other:
        assert key_group(one, 128) == key_group(other, 128)


@pytest.mark.parametrize(
    "equal",
    [
        (1, True, 1.0, np.int64(1), np.float32(1), np.bool_(True)),
        (2**70, 2.0**70),
        ("x", np.str_("x")),
        (("a", 1), ("a", 1.0), ("a", True), ("a", np.int32(1))),
        (Decimal("1.50"), Decimal("1.5"), Decimal("150e-2")),
        (1.5, np.float64(1.5)),
    ],
)
def test_keys_that_python_calls_equal_are_one_key(equal: tuple[Any, ...]):
    assert len({encode_key(key) for key in equal}) == 1
    assert len({key_group(key, 128) for key in equal}) == 1


def test_named_tuples_and_enums_share_the_group_of_what_they_equal_and_keep_their_class():
    assert key_group(Place("Pune", 411001), 128) == key_group(("Pune", 411001), 128)
    assert key_group(Level.HIGH, 128) == key_group(3, 128)
    assert type(decode_key(encode_key(Place("Pune", 411001)))) is Place
    assert decode_key(encode_key(Level.HIGH)) is Level.HIGH


def a_key_is_stored_alike_whether_its_parts_are_one_object_or_two():
    text = "".join(["a", "b"])
    assert encode_key(Row("ab", "ab")) == encode_key(Row(text, "".join(["a", "b"])))


def a_key_has_the_same_group_whatever_the_hash_seed():
    program = (
        "from holdfast.state.key_groups import *; from holdfast.common.types import Row\n"
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
        "from dataclasses import dataclass\nfrom holdfast.state.key_groups import key_group\n"
        "@dataclass(frozen=True)\nclass P:\n  a: int\n"
        "try: key_group(P(1), 128)\nexcept TypeError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert "class P, which is defined in the main module" in said


@QUICK
@given(st.integers(1, 300).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))))
def the_ranges_of_the_subtasks_part_all_groups(sizes: tuple[int, int]):
    max_parallelism, parallelism = sizes
    ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
    assert [g for r in ranges for g in range(r.first, r.last + 1)] == list(range(max_parallelism))


@QUICK
@given(st.lists(keys, max_size=20), st.integers(1, 7))
def the_assigner_sends_a_key_to_the_subtask_whose_range_has_its_group(several: list[Any], parallelism: int):
    assign = group_assigner(128, parallelism, memo_size=3)
    for batch in (several, several[::-1], several):
        for key, subtask in zip(batch, assign(batch), strict=True):
            assert key_group(key, 128) in key_group_range(128, parallelism, subtask)


@pytest.mark.parametrize("step", [1, 2, 128, 1000, 2**32, 10**12])
def test_whole_numbers_spread_over_the_groups(step: int):
    groups = [key_group(n * step, 128) for n in range(12_800)]
    assert len(set(groups)) == 128
    assert max(groups.count(group) for group in range(128)) < 400
