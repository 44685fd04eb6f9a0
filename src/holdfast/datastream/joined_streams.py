"""Joins of two streams: by key and window (join, co_group), and by key and an interval of time (interval_join)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, overload

from holdfast.common.time import to_milliseconds
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import A, B, R, V
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    KeySelector,
    ProcessJoinFunction,
    RuntimeContext,
    WindowFunction,
)
from holdfast.datastream.keyed_stream import KeyedStream
from holdfast.datastream.operations.function_checks import check_function, check_object
from holdfast.datastream.operations.two_inputs import LateSides, two_inputs
from holdfast.datastream.window import WindowAssigner
from holdfast.datastream.windowed_stream import Functions, WindowedStream
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.joins.interval_join import IntervalJoinOperator
from holdfast.runtime.operators.windows.window_content import Elements
from holdfast.runtime.records.copies import copied
from holdfast.runtime.records.user_code import close_function, open_function

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.runtime.plan.operator import OperatorFactory

__all__ = ["CoGroupedStreams", "CoGroupedWindows", "IntervalJoin", "IntervalJoined", "JoinedStreams", "JoinedWindows"]

_MOST = 1 << 62
"""The limit of interval bounds, so that their sums with timestamps do not overflow."""


class _Sides(WindowFunction[Any, Any, Any, Any]):
    """Calls a function with the elements of both sides of a window."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        open_function(self._function, runtime_context)

    def close(self) -> None:
        """Close the function."""
        close_function(self._function)

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """Call the function."""
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, element in inputs:
            sides[side].append(element)
        return self._results(*sides)

    def _results(self, left: list[Any], right: list[Any]) -> Iterable[Any]:
        results: Iterable[Any] = getattr(self._function, "co_group", self._function)(left, right)
        return results


class _Pairs(_Sides):
    """Calls a JoinFunction, or a FlatJoinFunction, with each pair."""

    def _results(self, left: list[Any], right: list[Any]) -> Iterable[Any]:
        join = getattr(self._function, "join", self._function)
        for first in left:
            for second in right:
                one, two = copied(first), copied(second)  # the function may change them; other pairs have them
                if isinstance(self._function, FlatJoinFunction):
                    yield from join(one, two) or ()
                else:
                    yield join(one, two)


class _WindowsOfTwo(WindowedStream):
    """The windows of two streams. Trigger, evictor and lateness as for one stream."""

    _two_inputs = True
    _kind: str

    def __init__(self, left: KeyedStream, right: KeyedStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(left, window_assigner)
        self._right = right

    def _add(self, kind: str, factory: OperatorFactory, output_type: Any, functions: Functions) -> DataStream:
        return two_inputs((self._keyed_stream, self._right), self._kind, factory, functions, output_type)


class JoinedWindows(_WindowsOfTwo, Generic[A, B]):
    """The windows of two streams, whose pairs of elements ``apply`` joins."""

    _kind = "Join"

    @overload  # type: ignore[override]  # functions of two elements
    def apply(
        self,
        function: JoinFunction[A, B, R] | FlatJoinFunction[A, B, R] | Callable[[A, B], R],
        output_type: None = None,
    ) -> DataStream[R]: ...

    @overload
    def apply(
        self,
        function: JoinFunction[A, B, Any] | FlatJoinFunction[A, B, Any] | Callable[[A, B], Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...

    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream[Any]:
        """Apply a function to each pair of elements with the same key in the same window.

        Args:
            function: A callable ``(first, second) -> result``, a JoinFunction or a FlatJoinFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        if isinstance(function, FlatJoinFunction):
            check_object(function, FlatJoinFunction, {}, "apply() after join()")
        else:
            check_function(function, "join", ("first", "second"), "apply() after join()")
        return self._windows(Elements(), _Pairs(function), output_type)


class CoGroupedWindows(_WindowsOfTwo, Generic[A, B]):
    """The windows of two streams, whose elements ``apply`` joins as two lists."""

    _kind = "CoGroup"

    @overload  # type: ignore[override]  # functions of two lists
    def apply(
        self,
        function: CoGroupFunction[A, B, R] | Callable[[Iterable[A], Iterable[B]], Iterable[R]],
        output_type: None = None,
    ) -> DataStream[R]: ...

    @overload
    def apply(
        self,
        function: CoGroupFunction[A, B, Any] | Callable[[Iterable[A], Iterable[B]], Iterable[Any]],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...

    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream[Any]:
        """Apply a function to all elements of both streams with the same key in the same window.

        Args:
            function: A callable ``(firsts, seconds) -> results`` or a CoGroupFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        check_function(function, "co_group", ("first", "second"), "apply() after co_group()")
        return self._windows(Elements(), _Sides(function), output_type)


class _EqualTo(Generic[V]):
    """``join(other).where(selector).equal_to(selector)``: waits for the windows, of class ``V``."""

    def __init__(self, left: KeyedStream, right: KeyedStream, windows: Callable[..., V]) -> None:
        self._left = left
        self._right = right
        self._windows = windows

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> V:
        """Choose the windows in which elements are joined."""
        return self._windows(self._left, self._right, window_assigner)


class _Where(Generic[B, V]):
    """``join(other).where(selector)``: waits for the other selector."""

    def __init__(self, left: KeyedStream, stream2: DataStream[B], windows: Callable[..., V]) -> None:
        self._left = left
        self._stream2 = stream2
        self._windows = windows

    def equal_to(
        self, key_selector: Callable[[B], Any] | KeySelector[B, Any], key_type: TypeInformation | None = None
    ) -> _EqualTo[V]:
        """Choose the key of the second stream's elements; equal keys are joined."""
        select: Any = key_selector
        right = self._stream2.key_by(select, key_type or self._left._transformation.key_type)
        return _EqualTo(self._left, right, self._windows)


class _TwoStreams(Generic[A, B]):
    """Two streams of one environment."""

    def __init__(self, stream1: DataStream[A], stream2: DataStream[B]) -> None:
        if stream1._env is not stream2._env:
            raise ConfigurationError("join() and co_group() take streams of one environment; these belong to two.")
        self._stream1 = stream1
        self._stream2 = stream2


class JoinedStreams(_TwoStreams[A, B]):
    """Two streams, as returned by ``join``: the pairs of elements with the same key in the same window.

    Examples:
        ``orders.join(payments).where(order_id).equal_to(payment_id).window(assigner).apply(function)``
    """

    def where(
        self, key_selector: Callable[[A], Any] | KeySelector[A, Any], key_type: TypeInformation | None = None
    ) -> _Where[B, JoinedWindows[A, B]]:
        """Choose the key of the first stream's elements."""
        select: Any = key_selector
        return _Where(self._stream1.key_by(select, key_type), self._stream2, JoinedWindows)


class CoGroupedStreams(_TwoStreams[A, B]):
    """Two streams, as returned by ``co_group``: all elements with the same key in the same window."""

    def where(
        self, key_selector: Callable[[A], Any] | KeySelector[A, Any], key_type: TypeInformation | None = None
    ) -> _Where[B, CoGroupedWindows[A, B]]:
        """Choose the key of the first stream's elements."""
        select: Any = key_selector
        return _Where(self._stream1.key_by(select, key_type), self._stream2, CoGroupedWindows)


class IntervalJoin(Generic[A, B]):
    """Two keyed streams, as returned by ``interval_join``."""

    def __init__(self, stream1: KeyedStream[Any, A], stream2: KeyedStream[Any, B]) -> None:
        self._streams = (stream1, stream2)

    def between(self, lower_bound: Any, upper_bound: Any) -> IntervalJoined[A, B]:
        """Join each left element with the right ones from ``left + lower_bound`` to ``left + upper_bound``.

        Args:
            lower_bound: A span of time (Time, Duration, timedelta); negative: right elements before the left one.
            upper_bound: A span of time that is not shorter.

        Raises:
            ConfigurationError: the upper bound is below the lower one.
        """
        lower, upper = to_milliseconds(lower_bound), to_milliseconds(upper_bound)
        if not -_MOST < lower <= upper < _MOST:
            raise ConfigurationError(f"between() takes bounds in order, got {lower} ms and {upper} ms.")
        return IntervalJoined(self._streams, lower, upper)


class IntervalJoined(LateSides[A, B]):
    """Two keyed streams with an interval, as returned by ``between``. Both bounds belong to it unless excluded."""

    def __init__(self, streams: tuple[KeyedStream[Any, A], KeyedStream[Any, B]], lower: int, upper: int) -> None:
        super().__init__(streams)
        self._lower = lower
        self._upper = upper
        self._outer = (False, False)

    def lower_bound_exclusive(self) -> Self:
        """Leave out pairs that are exactly the lower bound apart."""
        self._lower += 1
        return self

    def upper_bound_exclusive(self) -> Self:
        """Leave out pairs that are exactly the upper bound apart."""
        self._upper -= 1
        return self

    def left_outer(self) -> IntervalJoined[A, B | None]:
        """Emit the left elements without a partner, too: the function gets None in the partner's place.

        It is called once for each, when the watermark has passed the interval; the results have the timestamp of the
        interval's end (of the element itself, if its interval lies before it).
        """
        self._outer = (True, False)
        return self

    def right_outer(self) -> IntervalJoined[A | None, B]:
        """Emit the right elements without a partner, too; see `left_outer`."""
        self._outer = (False, True)
        return self

    def full_outer(self) -> IntervalJoined[A | None, B | None]:
        """Emit the elements of both streams without a partner, too; see `left_outer`."""
        self._outer = (True, True)
        return self

    @overload
    def process(self, process_join_function: ProcessJoinFunction[A, B, R], output_type: None = None) -> DataStream[R]: ...

    @overload
    def process(
        self, process_join_function: ProcessJoinFunction[A, B, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...

    def process(
        self, process_join_function: ProcessJoinFunction[A, B, Any], output_type: TypeInformation | None = None
    ) -> DataStream[Any]:
        """Apply a ProcessJoinFunction to each pair. Its results have the later one of the two timestamps.

        In an outer join also to each element without a partner.

        Args:
            process_join_function: The ProcessJoinFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            ConfigurationError: no pair can be in the interval.
        """
        calls = {"process_element": ("left", "right", "ctx")}
        check_object(process_join_function, ProcessJoinFunction, calls, "process() after interval_join()")
        if self._lower > self._upper:
            raise ConfigurationError("The interval of the join is empty: without its bounds no pair is left in it.")
        left, right = self._types()
        factory = IntervalJoinOperator(
            process_join_function, self._lower, self._upper, left, right, self._late[0], self._late[1], self._outer
        )
        functions = (("join function", process_join_function),)
        return two_inputs(self._streams, "IntervalJoin", factory, functions, output_type)
