"""What windows hold of their elements: a reduced value, an accumulator, or all elements."""

from __future__ import annotations

import dis
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.batches import fitted
from holdfast.functions.element_functions import AggregateFunction
from holdfast.runtime.user_code import user_callable
from holdfast.state.codec import Column
from holdfast.state.handles import NO_ACCUMULATOR, NO_REDUCED
from holdfast.state.row import DIRTY, Row
from holdfast.state.typed import fitter

__all__ = ["CONTENTS", "Accumulator", "Adder", "Elements", "Reduced", "WindowContent", "can_merge"]

CONTENTS = "window-contents"
"""The name of the state of a window's elements or accumulator, as in Flink."""
NO_MERGED = "merge() returned None; it must return the merged accumulator"


def can_merge(function: Any) -> bool:
    """Whether an AggregateFunction has a ``merge``: one that only passes, or raises an error, is none."""
    merge = getattr(type(function), "merge", None)
    code = getattr(merge, "__code__", None)
    if merge is AggregateFunction.merge or merge is None:
        return False
    return code is None or any(each.opname.startswith("LOAD_FAST") for each in dis.get_instructions(code))


Adder = Callable[[list[Row], Iterable[Any]], None]
"""Adds each value to the content in its row."""


class WindowContent(ABC):
    """What a window holds, in one column of its row. A value: it is part of the job's plan."""

    declared: TypeInformation | None
    """The declared type of the elements or the accumulator."""
    function: Any
    """The user's function that adds elements; None if there is none."""
    keeps_elements = False
    """Whether window functions get all elements, not one value."""

    def column(self) -> Column:
        """The column."""
        return Column.declared(CONTENTS, "list" if self.keeps_elements else "value", [self.declared])

    @abstractmethod
    def adder(self, slot: int) -> Adder:
        """What adds elements to the contents at this position of the rows."""

    @abstractmethod
    def merged(self, content: Any, other: Any) -> Any:
        """The content of two windows that merge; it may reuse either."""

    @abstractmethod
    def of(self, values: list[Any]) -> Any:
        """What the window function gets of a window with these elements; None: there is no result."""

    def result(self) -> Callable[[Any], Any] | None:
        """What makes the result of a content; None: the content is the result."""
        return None

    def checks_at_firing(self) -> bool:
        """Whether contents are made to fit the declared type when they fire, because `adder` does not do it."""
        return self.declared is not None and not self.declared.is_pickled and fitter(self.declared, CONTENTS) is None

    def fitted(self, contents: list[Any]) -> list[Any]:
        """The contents of some rows, made to fit the declared type.

        Raises:
            Misfit: one does not fit.
        """
        assert self.declared is not None
        return fitted(self.declared, contents)


@dataclass(frozen=True)
class Reduced(WindowContent):
    """The elements reduced to one."""

    function: Any
    declared: TypeInformation | None = None

    def adder(self, slot: int) -> Adder:
        """Reduces each value into the content."""
        reduce, fit = user_callable(self.function, "reduce"), fitter(self.declared, CONTENTS)

        def add(rows: list[Row], values: Iterable[Any]) -> None:
            for row, value in zip(rows, values):
                current = row[slot]
                if current is not None:
                    value = reduce(current, value)
                    if value is None:
                        raise TypeError(NO_REDUCED)
                row[slot] = value if fit is None else fit(value)
                row[0] |= DIRTY

        return add

    def merged(self, content: Any, other: Any) -> Any:
        """Both reduced to one."""
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

    def adder(self, slot: int) -> Adder:
        """Adds each value to the accumulator."""
        create, accumulate = self.function.create_accumulator, self.function.add
        fit = fitter(self.declared, CONTENTS)

        def add(rows: list[Row], values: Iterable[Any]) -> None:
            for row, value in zip(rows, values):
                current = row[slot]
                current = accumulate(value, create() if current is None else current)
                if current is None:
                    raise TypeError(NO_ACCUMULATOR)
                row[slot] = current if fit is None else fit(current)
                row[0] |= DIRTY

        return add

    def merged(self, content: Any, other: Any) -> Any:
        """Both accumulators merged."""
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
    """All elements, in the order in which they came."""

    declared: TypeInformation | None = None
    function = None
    keeps_elements = True

    def adder(self, slot: int) -> Adder:
        """Appends each value."""
        fit = fitter(self.declared, CONTENTS)

        def add(rows: list[Row], values: Iterable[Any]) -> None:
            for row, value in zip(rows, values):
                if fit is not None:
                    value = fit(value)
                if row[slot] is None:
                    row[slot] = [value]
                else:
                    row[slot].append(value)
                row[0] |= DIRTY

        return add

    def merged(self, content: Any, other: Any) -> Any:
        """The elements of both."""
        return [*content, *other]

    def of(self, values: list[Any]) -> Any:
        """The values."""
        return values
