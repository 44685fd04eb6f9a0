"""Tables as streams and streams as tables: Kafka Streams' KStream and KTable."""

from __future__ import annotations

from holdfast.table.builder import StreamsBuilder
from holdfast.table.global_tables import GlobalKTable
from holdfast.table.grouped import CogroupedKStream, KGroupedStream, KGroupedTable
from holdfast.table.suppressed import BufferConfig, EagerBufferConfig, StrictBufferConfig, Suppressed
from holdfast.table.tables import KStream, KTable
from holdfast.table.windowed_streams import (
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from holdfast.table.windows import SessionWindows, SlidingWindows, TimeWindows, Windowed

__all__ = [
    "BufferConfig",
    "CogroupedKStream",
    "EagerBufferConfig",
    "GlobalKTable",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "StreamsBuilder",
    "StrictBufferConfig",
    "Suppressed",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "Windowed",
]
