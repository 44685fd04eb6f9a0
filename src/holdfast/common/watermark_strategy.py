"""WatermarkStrategy: where a record's timestamp comes from, and how far event time has come."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.common.time import Duration, Time, to_milliseconds

__all__ = ["TimestampAssigner", "WatermarkStrategy"]

Span = Duration | Time | datetime.timedelta


class TimestampAssigner(ABC):
    """Gives each record its timestamp."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The record's timestamp, in ms since 1970.

        Args:
            value: the record.
            record_timestamp: the one it has already, e.g. from Kafka; ``-2**63`` if none.
        """


@dataclass(frozen=True)
class WatermarkStrategy:
    """How timestamps and watermarks of a stream are made; a value: the ``with_`` methods return another strategy.

    A watermark says that no record with a timestamp at or below it is expected any more. Watermarks are made per
    split of the source (a Kafka partition, a file).

    Examples:
        >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
        >>> strategy = strategy.with_timestamp_assigner(lambda value, record_timestamp: value["ts_ms"])
        >>> strategy.max_out_of_orderness_ms
        5000
    """

    max_out_of_orderness_ms: int | None = None
    """The watermark is the highest timestamp minus this minus one; None: no watermarks before the input's end."""
    timestamp_assigner: Callable[[Any, int], int] | None = None
    """``(value, record_timestamp) -> timestamp``; None: records keep the timestamps that the source gives."""
    idle_timeout_ms: int | None = None
    """A split without records for so long no longer holds the watermark back; None: it always does."""

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """For timestamps that never fall within a split: the watermark is the highest timestamp minus one."""
        return WatermarkStrategy(max_out_of_orderness_ms=0)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Span) -> WatermarkStrategy:
        """For records that come at most this much later than others with later timestamps."""
        bound = to_milliseconds(max_out_of_orderness)
        if bound < 0:
            raise ValueError(f"the out-of-orderness must not be negative, got {bound} ms")
        return WatermarkStrategy(max_out_of_orderness_ms=bound)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """For streams without event time: timers and windows of event time fire at the input's end only."""
        return WatermarkStrategy()

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> WatermarkStrategy:
        """The same with timestamps from this assigner, an object or a function ``(value, record_timestamp) -> ms``.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(timestamp_assigner, TimestampAssigner):
            return replace(self, timestamp_assigner=timestamp_assigner.extract_timestamp)
        if isinstance(timestamp_assigner, type) or not callable(timestamp_assigner):
            raise TypeError(
                "a timestamp assigner is a TimestampAssigner object or a function (value, record_timestamp) -> ms, "
                f"got {timestamp_assigner!r}"
            )
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: Span) -> WatermarkStrategy:
        """The same, with splits left out of the watermark after so long without records."""
        timeout = to_milliseconds(idle_timeout)
        if timeout <= 0:
            raise ValueError(f"the idle timeout must be positive, got {timeout} ms")
        return replace(self, idle_timeout_ms=timeout)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Span, update_interval: Span | None = None
    ) -> WatermarkStrategy:
        """Not available: within an epoch, readers take their splits in the order of their watermarks anyway."""
        raise NotImplementedError(
            "watermark alignment is not needed: a reader takes its splits in the order of their watermarks, and a "
            "keyed task its channels, so a slow split does not make the others run ahead within an epoch"
        )
