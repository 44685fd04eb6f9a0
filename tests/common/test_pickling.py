"""Values that travel by value, because their class is in the program's main module."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from holdfast.common.pickling import dumps, loads


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
