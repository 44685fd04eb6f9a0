"""WindowedTransformation: the elements of a DataFrame in the windows of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.runtime.operators.windows.window import WindowOperator
from holdfast.runtime.plan.operator import StateKind

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.common.typeinfo import TypeInformation
    from holdfast.datastream.data_stream import DataStream

__all__ = ["WindowedTransformation"]

Make = Callable[..., Any]
"""From what makes the operator, and its definition, to the transformation."""


class WindowedTransformation:
    """The windows of keyed elements; each method means what it means on a job's `WindowedStream`.

    The windows are those of the job's operator: they are stored with the elements in them, and fire when the job's event
    time or processing time reaches them. Triggers see the elements; what they fire now is dropped.
    """

    def __init__(
        self,
        make: Make,
        assigner: Any,
        select: Callable[[Any], Any],
        key_type: TypeInformation[Any],
        element_type: TypeInformation[Any] | None,
        timed: bool,
    ) -> None:
        self._make = make
        self._env = StreamExecutionEnvironment.get_execution_environment()
        stream: Any = self._env.from_collection([], element_type)
        if timed:
            strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda value, stamp: stamp)
            stream = stream.assign_timestamps_and_watermarks(strategy)
        self._windows = stream.key_by(select, key_type).window(assigner)

    def trigger(self, trigger: Any) -> Self:
        """Set the trigger, as the job does."""
        self._windows.trigger(trigger)
        return self

    def evictor(self, evictor: Any) -> Self:
        """Set the evictor, as the job does: windows then keep all their elements."""
        self._windows.evictor(evictor)
        return self

    def allowed_lateness(self, time_ms: int) -> Self:
        """Set the allowed lateness, as the job does."""
        self._windows.allowed_lateness(time_ms)
        return self

    def reduce(self, *arguments: Any, **named: Any) -> Any:
        """Windows that reduce their elements; the arguments are those of `WindowedStream.reduce`."""
        return self._made(self._windows.reduce(*arguments, **named))

    def aggregate(self, *arguments: Any, **named: Any) -> Any:
        """Windows that aggregate their elements; the arguments are those of `WindowedStream.aggregate`."""
        return self._made(self._windows.aggregate(*arguments, **named))

    def apply(self, *arguments: Any, **named: Any) -> Any:
        """Windows that keep their elements for a WindowFunction; the arguments are those of `WindowedStream.apply`."""
        return self._made(self._windows.apply(*arguments, **named))

    def process(self, *arguments: Any, **named: Any) -> Any:
        """Windows that keep their elements for a function; the arguments are those of `WindowedStream.process`."""
        return self._made(self._windows.process(*arguments, **named))

    def _made(self, results: DataStream[Any]) -> Any:
        results.print()
        chains = [vertex.chain for vertex in self._env._plan("bootstrap").vertices]
        (factory,) = [
            chained.factory
            for chain in chains
            for chained in chain
            if StateKind.KEYED in chained.factory.state and isinstance(chained.factory, WindowOperator)
        ]
        return self._make(factory.create, definition=factory.definition())
