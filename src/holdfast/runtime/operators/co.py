"""Operators of two connected streams: one function, with a method for each input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.functions.co_functions import KeyedCoProcessFunction
from holdfast.runtime.operators.keyed import ElementContext, KeyedFlatMap, KeyedMap, KeyedProcess, TimerContext
from holdfast.runtime.operators.stateless import FlatMap, FunctionOperator, Map, Process
from holdfast.runtime.records.records import RecordBatch

__all__ = ["CoFlatMap", "CoMap", "CoProcess", "KeyedCoFlatMap", "KeyedCoMap", "KeyedCoProcess", "TwoInputs"]


class TwoInputs(FunctionOperator):
    """Two operators, one for each input, around one function, which is opened and closed once."""

    def __init__(self, function: Any, first: FunctionOperator, second: FunctionOperator) -> None:
        super().__init__(function)
        self._sides = (first, second)

    def open(self) -> None:
        super().open()
        self.open_sides()

    def open_sides(self) -> None:
        """Open the operators of the inputs, after the function."""
        for side in self._sides:
            side.context = self.context
            side.open()

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return [side.process for side in self._sides]


class CoMap(TwoInputs):
    """A CoMapFunction."""

    def __init__(self, function: Any) -> None:
        super().__init__(function, Map(function.map1), Map(function.map2))


class CoFlatMap(TwoInputs):
    """A CoFlatMapFunction."""

    def __init__(self, function: Any) -> None:
        super().__init__(function, FlatMap(function.flat_map1), FlatMap(function.flat_map2))


class CoProcess(TwoInputs):
    """A CoProcessFunction."""

    def __init__(self, function: Any) -> None:
        super().__init__(function, Process(function.process_element1), Process(function.process_element2))


class KeyedCoMap(KeyedMap):
    """A CoMapFunction on two keyed streams."""

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return partial(self.process_by, self.function.map1), partial(self.process_by, self.function.map2)


class KeyedCoFlatMap(KeyedFlatMap):
    """A CoFlatMapFunction on two keyed streams."""

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return partial(self.process_by, self.function.flat_map1), partial(self.process_by, self.function.flat_map2)


class _CoElementContext(ElementContext, KeyedCoProcessFunction.Context):
    __slots__ = ()


class _CoTimerContext(TimerContext, KeyedCoProcessFunction.OnTimerContext):
    __slots__ = ()


class KeyedCoProcess(KeyedProcess):
    """A KeyedCoProcessFunction."""

    method = "process_element1"

    def contexts(self) -> tuple[ElementContext, TimerContext]:
        timers = (self.context.clock, self.event_timers, self.processing_timers, self.space)
        return _CoElementContext(*timers), _CoTimerContext(*timers)

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return (self.process, partial(self.process_by, self.function.process_element2))
