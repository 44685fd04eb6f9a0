"""ProcessFunctionTestHarnesses: the harness of one function, by Flink's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import IN1, IN2, KEY, OUT, R, S, V
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    ProcessFunction,
)
from holdfast.state.api.descriptors import MapStateDescriptor
from holdfast.testing.harness import OneInputTestHarness, TwoInputTestHarness

__all__ = ["ProcessFunctionTestHarnesses"]


class ProcessFunctionTestHarnesses:
    """Harnesses of single process functions. ``harness`` stands for the options of `OneInputTestHarness`.

    Examples:
        >>> class Limit(KeyedProcessFunction[str, int, int]):
        ...     def process_element(self, value, ctx):
        ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        ...         yield value
        ...
        ...     def on_timer(self, timestamp, ctx):
        ...         yield -timestamp
        >>> with ProcessFunctionTestHarnesses.for_keyed_process_function(Limit(), str) as harness:
        ...     harness.process_element(7, timestamp=100).event_time_timers()
        ...     harness.process_watermark(110).extract_output_values()
        [(110, '7')]
        [7, -110]
    """

    @staticmethod
    def for_process_function(function: ProcessFunction[V, R], **harness: Any) -> OneInputTestHarness[V, R]:
        """The harness of a ProcessFunction."""
        return OneInputTestHarness(lambda stream: stream.process(function), **harness)

    @staticmethod
    def for_keyed_process_function(
        function: KeyedProcessFunction[S, V, R],
        key_selector: Callable[[V], S] | KeySelector[V, S],
        key_type: TypeInformation | None = None,
        **harness: Any,
    ) -> OneInputTestHarness[V, R]:
        """The harness of a KeyedProcessFunction.

        Args:
            function: The function.
            key_selector: The key of an element.
            key_type: The declared type of the keys.
            **harness: Options of `OneInputTestHarness`.
        """

        def build(stream: DataStream[Any]) -> DataStream[Any]:
            return stream.key_by(key_selector, key_type).process(function)

        return OneInputTestHarness(build, **harness)

    @staticmethod
    def for_co_process_function(
        function: CoProcessFunction[IN1, IN2, OUT], **harness: Any
    ) -> TwoInputTestHarness[Any, Any, OUT]:
        """The harness of a CoProcessFunction."""
        return TwoInputTestHarness(lambda first, second: first.connect(second).process(function), **harness)

    @staticmethod
    def for_keyed_co_process_function(
        function: KeyedCoProcessFunction[KEY, IN1, IN2, OUT],
        key_selector1: Callable[[Any], Any] | KeySelector[Any, Any],
        key_selector2: Callable[[Any], Any] | KeySelector[Any, Any],
        key_type: TypeInformation | None = None,
        **harness: Any,
    ) -> TwoInputTestHarness[Any, Any, OUT]:
        """The harness of a KeyedCoProcessFunction.

        Args:
            function: The function.
            key_selector1: The key of an element of the first stream.
            key_selector2: The key of an element of the second stream.
            key_type: The declared type of the keys.
            **harness: Options of `TwoInputTestHarness`.
        """

        def build(first: DataStream[Any], second: DataStream[Any]) -> DataStream[Any]:
            return first.connect(second).key_by(key_selector1, key_selector2, key_type).process(function)

        return TwoInputTestHarness(build, **harness)

    @staticmethod
    def for_broadcast_process_function(
        function: BroadcastProcessFunction[IN1, IN2, OUT], *descriptors: MapStateDescriptor, **harness: Any
    ) -> TwoInputTestHarness[Any, Any, OUT]:
        """The harness of a BroadcastProcessFunction; its second input is broadcast.

        Args:
            function: The function.
            *descriptors: The broadcast states.
            **harness: Options of `TwoInputTestHarness`.
        """

        def build(elements: DataStream[Any], rules: DataStream[Any]) -> DataStream[Any]:
            return elements.connect(rules.broadcast(*descriptors)).process(function)

        return TwoInputTestHarness(build, **harness)

    @staticmethod
    def for_keyed_broadcast_process_function(
        function: KeyedBroadcastProcessFunction[KEY, IN1, IN2, OUT],
        key_selector: Callable[[Any], Any] | KeySelector[Any, Any],
        *descriptors: MapStateDescriptor,
        **harness: Any,
    ) -> TwoInputTestHarness[Any, Any, OUT]:
        """The harness of a KeyedBroadcastProcessFunction; its second input is broadcast.

        Args:
            function: The function.
            key_selector: The key of an element of the first stream.
            *descriptors: The broadcast states.
            **harness: Options of `TwoInputTestHarness`.
        """

        def build(elements: DataStream[Any], rules: DataStream[Any]) -> DataStream[Any]:
            return elements.key_by(key_selector).connect(rules.broadcast(*descriptors)).process(function)

        return TwoInputTestHarness(build, **harness)
