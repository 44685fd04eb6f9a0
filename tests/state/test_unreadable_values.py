"""Stored values whose type changes: each is read as it was, or an error names its state and key."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Row, Time, Types
from holdfast.common.typeinfo.base import TypeInformation
from holdfast.datastream import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import IncompatibleState
from holdfast.state.cells.entries import MOST_IN_ROW
from holdfast.state.stored.elements import ElementForm

from .backend import Backend

KEY = "alice"
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES: dict[str, tuple[TypeInformation[Any], st.SearchStrategy[Any]]] = {
    "BYTE": (Types.BYTE(), st.integers(-128, 127)),
    "INT": (Types.INT(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "LONG": (Types.LONG(), LONGS),
    "BIG_INT": (Types.BIG_INT(), st.integers()),
    "BIG_DEC": (Types.BIG_DEC(), st.decimals(allow_nan=False, allow_infinity=False)),
    "FLOAT": (Types.FLOAT(), st.floats(width=32, allow_nan=False)),
    "DOUBLE": (Types.DOUBLE(), st.floats(allow_nan=False)),
    "STRING": (Types.STRING(), st.text(st.characters(codec="utf-8"))),
    "CHAR": (Types.CHAR(), st.characters(codec="utf-8")),
    "BOOLEAN": (Types.BOOLEAN(), st.booleans()),
    "list of LONG": (Types.LIST(Types.LONG()), st.lists(LONGS, max_size=3)),
    "list of DOUBLE": (Types.LIST(Types.DOUBLE()), st.lists(st.floats(allow_nan=False), max_size=3)),
    "tuple": (Types.TUPLE([Types.STRING(), Types.INT()]), st.tuples(st.text("ab"), st.integers(0, 9))),
    "tuple with LONG": (Types.TUPLE([Types.STRING(), Types.FLOAT()]), st.tuples(st.text("ab"), st.integers(0, 1 << 30))),
    "row": (Types.ROW_NAMED(["a"], [Types.LONG()]), LONGS.map(lambda n: Row(a=n))),
    "row with DOUBLE": (Types.ROW_NAMED(["a"], [Types.DOUBLE()]), st.floats(allow_nan=False).map(lambda n: Row(a=n))),
    "pickled": (Types.PICKLED_BYTE_ARRAY(), st.none()),
}


def states(declared: TypeInformation[Any], name: str = "value") -> list[Any]:
    made: list[Any] = [
        ValueStateDescriptor("value", declared),
        ListStateDescriptor("list", declared),
        MapStateDescriptor("map", Types.LONG(), declared),
        ReducingStateDescriptor("reduced", lambda _, new: new, declared),
        ValueStateDescriptor("expiring", declared),
    ]
    made[-1].enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    return [each for each in made if each.name == name]


def put(one: Backend, name: str, value: Any, size: int) -> None:
    one.use(KEY)
    handle = one.handles[name]
    if name == "list":
        handle.update([value] * size)
    elif name == "map":
        handle.put_all({n: value for n in range(size)})
    elif name == "reduced":
        handle.add(value)
    else:
        handle.update(value)


def read(one: Backend, name: str) -> Sequence[Any]:
    one.use(KEY)
    handle = one.handles[name]
    if name == "list":
        return list(handle.get())
    if name == "map":
        return [handle.get(0), *handle.values()]
    return [handle.get() if name == "reduced" else handle.value()]


def same(read: Any, stored: Any, exact: bool) -> bool:
    """Whether a value means the same as before; numbers ``exact``, or rounded as a program's own numbers are."""
    if isinstance(stored, (list, tuple)):
        return len(read) == len(stored) and all(same(*each, exact) for each in zip(read, stored))
    if isinstance(read, float) and isinstance(stored, (int, float, Decimal)):
        return Decimal(read) == Decimal(stored) if exact else math.isclose(read, stored, rel_tol=1e-6, abs_tol=1e-40)
    return bool(read == stored)


@given(
    before=st.sampled_from(sorted(VALUES)),
    after=st.sampled_from(sorted(VALUES)),
    name=st.sampled_from(["value", "list", "map", "reduced", "expiring"]),
    large=st.booleans(),
    kind=st.sampled_from(["rocksdb", "hashmap"]),
    elsewhere=st.booleans(),
    data=st.data(),
)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_stored_value_is_read_as_it_was_or_the_error_names_its_state_and_key(
    before, after, name, large, kind, elsewhere, data
):
    value = data.draw(
        VALUES[data.draw(st.sampled_from(sorted(set(VALUES) - {"pickled"})))][1]
        if before == "pickled"
        else VALUES[before][1]
    )
    with_size = MOST_IN_ROW + 5 if large else 2
    one = Backend(kind, states(VALUES[before][0], name))
    put(one, name, value, with_size)
    one.checkpoint()
    stored = read(one, name)
    one.states = states(VALUES[after][0], name)
    try:
        one.restart(elsewhere=elsewhere)
        found = read(one, name)
    except IncompatibleState as error:
        message = str(error)
        assert f"{name!r}" in message
        assert "'op' (uid 'op')" in message
        if "a stored value of state" in message:
            assert f"key {KEY!r}, cannot be read (" in message
            assert "\n    stored:   " in message
            assert before == "pickled" or "would round" in message
        else:
            assert before != "pickled"
        return
    finally:
        one.close()
    assert len(found) == len(stored)
    assert all(same(*each, before != "pickled") for each in zip(found, stored))


def restored(one: Backend) -> Sequence[Any]:
    one.restart(elsewhere=True)
    return read(one, "value")


def a_pickled_string_that_is_declared_as_a_number_is_an_error_with_both_types(tmp_path):
    one = Backend("rocksdb", states(Types.PICKLED_BYTE_ARRAY()), tmp_path)
    put(one, "value", "seven", 1)
    one.checkpoint()
    one.states = states(Types.LONG())
    with pytest.raises(IncompatibleState) as caught:
        restored(one)
    one.close()
    assert str(caught.value).splitlines()[1:3] == [
        "    stored:   a value state without declared type",
        "    declared: a value state of LONG",
    ]
    assert "'seven'" in str(caught.value)
    assert "State Processor API" in str(caught.value)


def an_element_of_operator_state_that_does_not_fit_is_an_error_with_its_state():
    read = ElementForm(Types.LONG()).reader(None, "state 'seen' of operator 'op' (uid 'op')")
    with pytest.raises(IncompatibleState, match=r"element of state 'seen' of operator 'op'.*'seven'(.|\n)*Processor"):
        read(pickle.dumps("seven"))


class Gone:
    pass


def a_pickled_class_that_is_gone_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    one = Backend("rocksdb", states(Types.PICKLED_BYTE_ARRAY()), tmp_path)
    put(one, "value", Gone(), 1)
    one.checkpoint()
    monkeypatch.delitem(globals(), "Gone")
    with pytest.raises(IncompatibleState, match=r"state 'value'.*key 'alice'(.|\n)*add_class_alias"):
        restored(one)
    one.close()
