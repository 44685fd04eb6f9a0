"""Values that travel by value, because their class is in the program's main module."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle
import pytest

import holdfast.common.values.pickling as pickling
from holdfast.common.values.pickling import dumps, dumps_program, loads


@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: [1, ("\u0093 \u4e93", value)], lambda value: {value: 2.5}]
)
def test_a_class_of_the_main_module_goes_by_value(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Local", (), {"__module__": "__main__", "__reduce__": lambda self: (type(self), ())})
    monkeypatch.setattr(sys.modules["__main__"], "Local", kind, raising=False)
    data = [dumps(wrap(kind)), dumps(wrap(kind()))]
    monkeypatch.delattr(sys.modules["__main__"], "Local")  # another process has no such class there
    assert [repr(loads(each)).count("Local") for each in data] == [1, 1]


@pytest.mark.parametrize("value", [(1, "a"), "__main__", "\u0093__main__", [b"\x93", None], 0x93])
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert loads(dumps(value)) == value


def _without_file_names(code: CodeType) -> tuple[Any, ...]:
    """As cloudpickle reduces code since 3.1.3."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple("<dynamic-code>" if each == code.co_filename else each for each in arguments)


@pytest.mark.parametrize("reduce", [pickling._reduce_code, _without_file_names])
def test_functions_of_the_program_keep_their_file_names(reduce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickling, "_reduce_code", reduce)

    def outer(number: int) -> Callable[[], int]:
        return lambda: number + 1

    copied = pickle.loads(dumps_program(outer))
    assert copied(1)() == 2
    assert {copied.__code__.co_filename, copied(1).__code__.co_filename} == {__file__}
    assert copied.__code__.co_firstlineno == outer.__code__.co_firstlineno
