"""The rolling aggregations of a keyed stream: sum, min, max, min_by, max_by, as reduce functions.

A position is an index, a field's name (of a Row, a named tuple or a dict), or 0 for elements that are plain numbers.
Results are new elements; stored elements are never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.common.types import Row
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Max", "MaxBy", "Min", "MinBy", "Sum"]


class _ByPosition(DefinedState):
    """Base of the aggregations: reads and replaces one field."""

    def __init__(self, position: int | str) -> None:
        if isinstance(position, bool) or not isinstance(position, (int, str)):
            raise TypeError(
                f"{type(self).__name__} takes a field's index or name, not a {type(position).__name__} ({position!r})."
            )
        self.position = position

    def definition(self) -> dict[str, Any]:
        """Which aggregate of which field the stored element has."""
        return {"of": "a rolling aggregation", "aggregate": type(self).__name__, "field": self.position}

    def continuing(self, stored: Mapping[str, Any]) -> Self:
        """None goes on with another aggregate.

        Raises:
            IncompatibleState: always.
        """
        before, now = (f"{each['aggregate']} of field {each['field']!r}" for each in (stored, self.definition()))
        raise IncompatibleState(f"it has the {before} of each key, and the program's is the {now}")

    def read(self, element: Any) -> Any:
        """Return the field of ``element`` at the position."""
        position = self.position
        if type(element) is tuple and type(position) is int:  # the usual case
            return element[position]
        if isinstance(element, (Row, dict)):
            return element[position]
        if isinstance(element, (tuple, list)):
            return getattr(element, position) if isinstance(position, str) else element[position]
        if position != 0:
            raise TypeError(
                f"there is no field {position!r} in a {type(element).__name__} ({element!r}): an element that is not a "
                "tuple, list, Row or dict is aggregated as a whole, with position 0"
            )
        return element

    def replaced(self, element: Any, field: Any) -> Any:
        """Return a copy of ``element`` with the field at the position replaced."""
        position = self.position
        if isinstance(element, dict):
            return {**element, position: field}
        if isinstance(element, Row):
            row = Row.of_values(list(element), element._fields, element.get_row_kind())
            row[position] = field
            return row
        if isinstance(element, (tuple, list)):
            names = getattr(element, "_fields", ())
            fields = list(element)
            fields[names.index(position) if isinstance(position, str) else position] = field
            if isinstance(element, list):
                return fields
            return type(element)._make(fields) if names else tuple(fields)  # type: ignore[attr-defined]
        return field


class Sum(_ByPosition):
    """Sums one field; the other fields stay those of the first element."""

    def __call__(self, first: Any, second: Any) -> Any:
        """Return the sum so far."""
        return self.replaced(first, self.read(first) + self.read(second))


class Min(_ByPosition):
    """Minimum of one field; the other fields stay those of the first element."""

    def __call__(self, first: Any, second: Any) -> Any:
        """Return the minimum so far."""
        return self.replaced(first, min(self.read(first), self.read(second)))


class Max(_ByPosition):
    """Maximum of one field; the other fields stay those of the first element."""

    def __call__(self, first: Any, second: Any) -> Any:
        """Return the maximum so far."""
        return self.replaced(first, max(self.read(first), self.read(second)))


class MinBy(_ByPosition):
    """The element with the smallest field; the first one on ties."""

    def __call__(self, first: Any, second: Any) -> Any:
        """Return the element with the minimum so far."""
        return second if self.read(second) < self.read(first) else first


class MaxBy(_ByPosition):
    """The element with the largest field; the first one on ties."""

    def __call__(self, first: Any, second: Any) -> Any:
        """Return the element with the maximum so far."""
        return second if self.read(second) > self.read(first) else first
