"""The built-in aggregates of windows: Sum, Count, Min, Max, Avg and CountDistinct of fields.

Each keeps one part of an accumulator, which is a tuple of parts. Null counts as no value. `holdfast.runtime.operators.
grouped_columns` computes the same parts from whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.common.formats.columns import col
from holdfast.functions.element_functions import AggregateFunction

__all__ = ["Aggregate", "Aggregates", "Avg", "Count", "CountDistinct", "Max", "Min", "Sum"]

Part = Any
"""An aggregate's part of an accumulator."""


class Aggregate:
    """An aggregate of one field.

    Args:
        field: The field's name.

    Raises:
        TypeError: it is not a string.
    """

    start: Part = None
    """The part before the first value."""

    def __init__(self, field: str) -> None:
        if not isinstance(field, str):
            raise TypeError(f"{type(self).__name__}() takes the name of a field, not {field!r}")
        self.field: str | None = field
        self._read = col(field)

    def of(self, element: Any) -> Any:
        """The element's value; None if it has none."""
        return self._read(element)

    def add(self, part: Part, value: Any) -> Part:
        """Add a value that is not None."""
        raise NotImplementedError

    def merged(self, part: Part, other: Part) -> Part:
        """Merge two parts; may reuse the first."""
        if part is None or other is None:
            return other if part is None else part
        return self.add(part, other)

    def result(self, part: Part) -> Any:
        """The result."""
        return part

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.field!r})"


class Sum(Aggregate):
    """The sum of a field; None without values. Sums of integers are exact."""

    def add(self, part: Part, value: Any) -> Part:
        """Add a number."""
        return (0 if part is None else part) + value


class Count(Aggregate):
    """The number of elements, or of those in which a field is not None."""

    start = 0

    def __init__(self, field: str | None = None) -> None:
        if field is not None:
            super().__init__(field)
        self.field = field

    def of(self, element: Any) -> Any:
        """The field's value, or anything that is not None."""
        return 1 if self.field is None else super().of(element)

    def add(self, part: Part, value: Any) -> Part:
        """Count."""
        return part + 1

    def merged(self, part: Part, other: Part) -> Part:
        """The sum."""
        return part + other


def _number(value: Any) -> Any:
    """The value with one zero; None for NaN, which has no place in an order."""
    if type(value) is float:
        return None if value != value else value + 0.0
    return value


class Min(Aggregate):
    """The least value of a field; None without values. NaN is no value."""

    def add(self, part: Part, value: Any) -> Part:
        """Take the lesser one."""
        value = _number(value)
        return part if value is None or (part is not None and part <= value) else value


class Max(Aggregate):
    """The greatest value of a field; None without values. NaN is no value."""

    def add(self, part: Part, value: Any) -> Part:
        """Take the greater one."""
        value = _number(value)
        return part if value is None or (part is not None and part >= value) else value


class Avg(Aggregate):
    """The mean of a field; None without values. The sum of integers is exact."""

    start = (None, 0)

    def add(self, part: Part, value: Any) -> Part:
        """Add a number."""
        total, count = part
        return (0 if total is None else total) + value, count + 1

    def merged(self, part: Part, other: Part) -> Part:
        """The sums of both."""
        (total, count), (more, others) = part, other
        if total is None or more is None:
            return part if more is None else other
        return total + more, count + others

    def result(self, part: Part) -> Any:
        """The mean."""
        total, count = part
        return total / count if count else None


class CountDistinct(Aggregate):
    """The number of different values of a field; NaN is no value. Every one of them is kept in state."""

    def add(self, part: Part, value: Any) -> Part:
        """Note a value."""
        value = _number(value)
        found = set() if part is None else part
        if value is not None:
            found.add(value)
        return found

    def merged(self, part: Part, other: Part) -> Part:
        """The values of both."""
        return other if part is None else part | (other or set())

    def result(self, part: Part) -> Any:
        """The number of values."""
        return 0 if part is None else len(part)


class Aggregates(AggregateFunction[Any, tuple[Any, ...], list[Any]]):
    """Several aggregates at once; the result is the list of theirs.

    Args:
        by_name: The aggregates by the names of their results.
    """

    def __init__(self, by_name: Mapping[str, Aggregate]) -> None:
        self.names = list(by_name)
        self.each = list(by_name.values())

    def create_accumulator(self) -> tuple[Any, ...]:
        """The parts before the first element."""
        return tuple([each.start for each in self.each])

    def add(self, value: Any, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add an element to each part."""
        parts = []
        for each, part in zip(self.each, accumulator):
            given = each.of(value)
            parts.append(part if given is None else each.add(part, given))
        return tuple(parts)

    def get_result(self, accumulator: tuple[Any, ...]) -> list[Any]:
        """The results in the order of the names."""
        return [each.result(part) for each, part in zip(self.each, accumulator)]

    def merge(self, acc_a: tuple[Any, ...], acc_b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Merge each part."""
        return tuple([each.merged(a, b) for each, a, b in zip(self.each, acc_a, acc_b)])
