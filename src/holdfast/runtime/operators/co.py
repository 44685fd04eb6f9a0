"""Operators of two connected streams: one function, with a method for each input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.functions.co_functions import KeyedCoProcessFunction
from holdfast.runtime.operators.base import Operator
from holdfast.runtime.operators.keyed import (
    ElementContext,
    KeyedEach,
    KeyedFactory,
    KeyedProcess,
    TimerContext,
    take_many,
    take_one,
)
from holdfast.runtime.operators.stateless import FlatMap, FunctionFactory, FunctionOperator, Map, Process
from holdfast.runtime.records import RecordBatch

__all__ = [
    "CoFlatMapOperator",
    "CoMapOperator",
    "CoProcessOperator",
    "KeyedCoFlatMapOperator",
    "KeyedCoMapOperator",
    "KeyedCoProcessOperator",
]


class TwoInputs(FunctionOperator):
    """Two operators, one for each input, around methods of one function, which is opened and closed once."""

    def __init__(self, function: Any, first: FunctionOperator, second: FunctionOperator) -> None:
        super().__init__(function)
        self._sides = (first, second)

    def open(self) -> None:
        super().open()
        self.open_sides()

    def open_sides(self) -> None:
        """Open the operators of the inputs; the function is open."""
        for side in self._sides:
            side.context = self.context
            side.open()

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return [side.process for side in self._sides]


class _KeyedCoEach(KeyedEach):
    """map and flat_map of two keyed streams, whose functions may hold keyed state."""

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        methods = (getattr(self.function, f"{self.method}{number}") for number in (1, 2))
        return [partial(self.process_by, method) for method in methods]


class _CoElementContext(ElementContext, KeyedCoProcessFunction.Context):
    __slots__ = ()


class _CoTimerContext(TimerContext, KeyedCoProcessFunction.OnTimerContext):
    __slots__ = ()


class _KeyedCoProcess(KeyedProcess):
    method = "process_element1"

    def contexts(self) -> tuple[ElementContext, TimerContext]:
        timers = (self.context.clock, self.event_timers, self.processing_timers, self.space)
        return _CoElementContext(*timers), _CoTimerContext(*timers)

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return (self.process, partial(self.process_by, self.function.process_element2))


@dataclass(frozen=True)
class CoMapOperator(FunctionFactory):
    """A CoMapFunction."""

    def create(self) -> Operator:
        """A fresh instance."""
        return TwoInputs(self.func, Map(self.func.map1), Map(self.func.map2))


@dataclass(frozen=True)
class CoFlatMapOperator(FunctionFactory):
    """A CoFlatMapFunction."""

    def create(self) -> Operator:
        """A fresh instance."""
        return TwoInputs(self.func, FlatMap(self.func.flat_map1), FlatMap(self.func.flat_map2))


@dataclass(frozen=True)
class CoProcessOperator(FunctionFactory):
    """A CoProcessFunction."""

    def create(self) -> Operator:
        """A fresh instance."""
        return TwoInputs(self.func, Process(self.func.process_element1), Process(self.func.process_element2))


class KeyedCoMapOperator(KeyedFactory):
    """A CoMapFunction of two keyed streams."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _KeyedCoEach(self.func, "map", take_one)


class KeyedCoFlatMapOperator(KeyedFactory):
    """A CoFlatMapFunction of two keyed streams."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _KeyedCoEach(self.func, "flat_map", take_many)


class KeyedCoProcessOperator(KeyedFactory):
    """A KeyedCoProcessFunction."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _KeyedCoProcess(self.func)
