"""WindowContent: the content of windows: a reduced value, an accumulator, or all elements."""

from __future__ import annotations

import dis
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.batches import fitted
from holdfast.functions.element_functions import AggregateFunction
from holdfast.runtime.operators.windows.window_calls import accumulate_each, reduce_rows
from holdfast.runtime.records.user_code import user_callable
from holdfast.state.cells.column import Column
from holdfast.state.cells.handles import NO_REDUCED
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.cells.typed import fitter

__all__ = ["CONTENTS", "Accumulator", "Adder", "Elements", "Reduced", "WindowContent", "can_merge"]

CONTENTS = "window-contents"
"""The name of the state of a window's elements or accumulator, as in Flink."""
NO_MERGED = "merge() returned None; it must return the merged accumulator"


def can_merge(function: Any) -> bool:
    """Whether an AggregateFunction implements ``merge``; a method that only passes or raises does not count."""
    merge = getattr(type(function), "merge", None)
    code = getattr(merge, "__code__", None)
    if merge is AggregateFunction.merge or merge is None:
        return False
    return code is None or any(each.opname.startswith("LOAD_FAST") for each in dis.get_instructions(code))


Adder = Callable[[list[Row], Iterable[Any]], None]
"""Adds each value to the content in its row."""


class WindowContent(ABC):
    """The content of windows, in one column of their rows. Immutable, as part of the job's plan."""

    declared: TypeInformation | None
    """The declared type of the elements or the accumulator."""
    function: Any
    """The user's function that adds elements; None for `Elements`."""
    keeps_elements = False
    """Whether window functions get all elements, not a single value."""

    def column(self) -> Column:
        """The column."""
        return Column.declared(CONTENTS, "list" if self.keeps_elements else "value", [self.declared])

    @abstractmethod
    def adder(self, cell: int) -> Adder:
        """Make the adder of elements to the contents in this cell of the rows."""

    @abstractmethod
    def merged(self, content: Any, other: Any) -> Any:
        """Merge the contents of two windows; may reuse either."""

    def merges(self) -> bool:
        """Whether `merged` works."""
        return True

    @abstractmethod
    def of(self, values: list[Any]) -> Any:
        """The window function's argument for a window with these elements; None without elements."""

    def result(self) -> Callable[[Any], Any] | None:
        """Turns a content into its result; None if the content is the result."""
        return None

    def checks_at_firing(self) -> bool:
        """Whether contents are converted to the declared type when they fire, rather than by `adder`."""
        return self.declared is not None and not self.declared.is_pickled and fitter(self.declared, CONTENTS) is None

    def fitted(self, contents: list[Any]) -> list[Any]:
        """Convert contents of rows to the declared type.

        Raises:
            Misfit: a content does not fit.
        """
        assert self.declared is not None
        return fitted(self.declared, contents)


@dataclass(frozen=True)
class Reduced(WindowContent):
    """A value reduced from the elements."""

    function: Any
    declared: TypeInformation | None = None

    def adder(self, cell: int) -> Adder:
        """Reduces each value into the content."""
        return partial(reduce_rows, user_callable(self.function, "reduce"), cell, fitter(self.declared, CONTENTS))

    def merged(self, content: Any, other: Any) -> Any:
        """Reduce both contents to one."""
        reduced = user_callable(self.function, "reduce")(content, other)
        if reduced is None:
            raise TypeError(NO_REDUCED)
        return reduced

    def of(self, values: list[Any]) -> Any:
        """The values reduced to one."""
        return functools.reduce(user_callable(self.function, "reduce"), values) if values else None


@dataclass(frozen=True)
class Accumulator(WindowContent):
    """The accumulator of an AggregateFunction."""

    function: Any
    declared: TypeInformation | None = None

    def adder(self, cell: int) -> Adder:
        """Adds each value to the accumulator."""
        function = self.function
        return partial(accumulate_each, function.create_accumulator, function.add, cell, fitter(self.declared, CONTENTS))

    def merges(self) -> bool:
        """Whether the AggregateFunction has a ``merge``."""
        return can_merge(self.function)

    def merged(self, content: Any, other: Any) -> Any:
        """Merge the accumulators."""
        accumulator = self.function.merge(content, other)
        if accumulator is None:
            raise TypeError(NO_MERGED)
        return accumulator

    def of(self, values: list[Any]) -> Any:
        """The result of the values' accumulator."""
        accumulator = self.function.create_accumulator()
        for value in values:
            accumulator = self.function.add(value, accumulator)
        return self.function.get_result(accumulator)

    def result(self) -> Callable[[Any], Any]:
        """The AggregateFunction's ``get_result``."""
        return self.function.get_result  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Elements(WindowContent):
    """All elements, in order of arrival."""

    declared: TypeInformation | None = None
    function = None
    keeps_elements = True

    def adder(self, cell: int) -> Adder:
        """Appends each value."""
        fit = fitter(self.declared, CONTENTS)

        def add(rows: list[Row], values: Iterable[Any]) -> None:
            for row, value in zip(rows, values):
                if fit is not None:
                    value = fit(value)
                if row[cell] is None:
                    row[cell] = [value]
                else:
                    row[cell].append(value)
                row[0] |= DIRTY

        return add

    def merged(self, content: Any, other: Any) -> Any:
        """The elements of both, in the first one's list, which may be stored outside of its row."""
        content.extend(list(other))
        return content

    def of(self, values: list[Any]) -> Any:
        """The values."""
        return values
