"""Tables as streams and streams as tables: Kafka Streams' KStream and KTable."""

from __future__ import annotations

from holdfast.table.builder import StreamsBuilder
from holdfast.table.tables import KGroupedStream, KGroupedTable, KStream, KTable

__all__ = ["KGroupedStream", "KGroupedTable", "KStream", "KTable", "StreamsBuilder"]
