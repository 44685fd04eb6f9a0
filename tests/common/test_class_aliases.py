"""Pickles of classes that have moved, gained fields, or were defined in the main module."""

from __future__ import annotations

import pickle
import sys
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle
import pytest

from holdfast.common.values.class_aliases import aliased_loads


@dataclass
class Order:
    id: int
    note: str = "none"
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slotted:
    id: int
    tags: list[str] = field(default_factory=list)


class Point(NamedTuple):
    x: int
    y: int = 5


def stored_in(module: str, code: str, expression: str) -> bytes:
    """A pickle written when this code was a module of this name."""
    made = types.ModuleType(module)
    before = sys.modules.get(module)
    sys.modules[module] = made
    try:
        exec(code, made.__dict__)
        data: bytes = (cloudpickle if module == "__main__" else pickle).dumps(eval(expression, made.__dict__))
        return data
    finally:
        del sys.modules[module]
        if before is not None:
            sys.modules[module] = before


OLD = """
from dataclasses import dataclass
from typing import NamedTuple
@dataclass
class Old:
    id: int
@dataclass(frozen=True, slots=True)
class Slots:
    id: int
class Pair(NamedTuple):
    x: int
"""


@pytest.mark.parametrize("module", ["a_module_that_is_gone", "__main__"])
@pytest.mark.parametrize(
    ("name", "expression", "present", "expected"),
    [
        ("Old", "Old(7)", Order, Order(7)),
        ("Old", "[{'k': (Old(7), None)}, Old(8)]", Order, [{"k": (Order(7), None)}, Order(8)]),
        ("Slots", "Slots(7)", Slotted, Slotted(7)),
        ("Pair", "Pair(3)", Point, Point(3)),
    ],
)
def an_object_of_a_former_class_is_one_of_the_present_class(module, name, expression, present, expected):
    data = stored_in(module, OLD, expression)
    read = aliased_loads({f"{module}.{name}": present})(data)
    assert read == expected
    if isinstance(read, Order):
        assert type(read) is Order
        assert read.tags is not aliased_loads({f"{module}.{name}": present})(data).tags


def test_other_classes_and_plain_values_are_read_as_ever():
    loads = aliased_loads({"gone.Old": Order})
    for value in (1, "x", [Point(1)], {"a": Order(1, "b", ["c"])}, None):
        assert loads(pickle.dumps(value)) == value
    main = stored_in("__main__", OLD, "Old(7)")
    read: Any = loads(main)
    assert (type(read).__name__, read.id) == ("Old", 7)
    assert aliased_loads({}) is pickle.loads
