"""GlobalKTable, a table that every subtask has as a whole, and the join of a stream with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic

from holdfast.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import BroadcastProcessFunction
from holdfast.datastream.state import MapStateDescriptor
from holdfast.runtime.records.copies import copied
from holdfast.table.variables import K, V

__all__ = ["GlobalKTable", "JoinGlobal"]

_ROWS: MapStateDescriptor[Any, Any] = MapStateDescriptor("global table")


class GlobalKTable(Generic[K, V]):
    """A table that every subtask has as a whole. ``StreamsBuilder.global_table`` and ``KStream.to_global_table`` make one.

    Streams are joined with it by any key, and stay where they are. It is kept in memory, as broadcast state.
    """

    def __init__(self, pairs: DataStream[Any]) -> None:
        """Create a table of pairs of key and value."""
        times = WatermarkStrategy.for_generator(_Timeless)  # the time of a join is that of the stream
        self._pairs = pairs.assign_timestamps_and_watermarks(times).name("GlobalKTable")

    def _joined(self, pairs: DataStream[Any], function: JoinGlobal) -> DataStream[Any]:
        return pairs.connect(self._pairs.broadcast(_ROWS)).process(function)


class _Timeless(WatermarkGenerator[Any]):
    """Excludes a stream from event time."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.mark_idle()

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.mark_idle()


class JoinGlobal(BroadcastProcessFunction[Any, Any, Any]):
    """Joins each pair of a stream with the row of a global table that a selector names."""

    def __init__(self, selector: Callable[[Any, Any], Any], joiner: Callable[[Any, Any], Any], keeps_left: bool) -> None:
        self._selector = selector
        self._joiner = joiner
        self._keeps_left = keeps_left

    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any]:
        """Join a pair of the stream."""
        key, left = value
        if left is None:
            return ()
        named = self._selector(key, left)
        if named is None and not (self._keeps_left and key is None):
            return ()
        right = None if named is None else ctx.get_broadcast_state(_ROWS).get(named)
        if right is None and not self._keeps_left:
            return ()
        return ((key, self._joiner(left, copied(right))),)  # the joiner may change it; all pairs share the row

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Iterable[Any]:
        """Replace or remove a row; one without a key is none."""
        key, row = value
        if key is not None:
            rows = ctx.get_broadcast_state(_ROWS)
            if row is None:
                rows.remove(key)
            else:
                rows.put(key, row)
        return ()
