"""Checks before the job starts that operators of event time get timestamps."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.graph.stream_graph import StreamGraph
from holdfast.graph.transformations import OperatorTransformation, Physical, SourceTransformation

__all__ = ["check_timestamps"]


def check_timestamps(graph: StreamGraph) -> None:
    """Refuse windows, joins and patterns of event time over a source whose records have no timestamps.

    A source without the attribute ``timestamped`` counts as having timestamps.

    Raises:
        ConfigurationError: there is such an operator; its first record would fail.
    """
    for operator in graph.operators:
        if isinstance(operator, OperatorTransformation) and operator.factory.needs_timestamps:
            source = _without_timestamps(graph, operator)
            if source is not None:
                raise ConfigurationError(
                    f"{operator} works in event time, but the records of {source} have no timestamps: call "
                    "assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps()"
                    ".with_timestamp_assigner(lambda value, _: ...)) on the stream, or work in processing time."
                )


def _without_timestamps(graph: StreamGraph, operator: Physical) -> Physical | None:
    """Return a source whose records reach the operator without timestamps, or None.

    A function of two inputs may emit elements of one of them only: it counts if neither has timestamps.
    """
    by_input: dict[int, Physical | None] = {}
    for edge in graph.into(operator):
        by_input[edge.input_index] = by_input.get(edge.input_index) or _untimed(graph, edge.producer)
    needs_all = isinstance(operator, OperatorTransformation) and operator.factory.needs_timestamps
    found = list(by_input.values())
    return next((each for each in found if each is not None), None) if needs_all or all(found) else None


def _untimed(graph: StreamGraph, producer: Physical) -> Physical | None:
    """Return the source without timestamps from which a producer's records come, or None."""
    if isinstance(producer, SourceTransformation):
        has_some = getattr(producer.source, "timestamped", True) or producer.watermark_strategy.timestamp_assigner
        return None if has_some else producer
    if isinstance(producer, OperatorTransformation) and producer.factory.passes_timestamps:
        return _without_timestamps(graph, producer)
    return None
