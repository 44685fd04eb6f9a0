"""WatermarkStrategy: how a stream gets timestamps and watermarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, cast

from holdfast.common.system.jvm_only import refusing
from holdfast.common.time import Span, to_milliseconds
from holdfast.common.values.type_variables import IN, R
from holdfast.common.watermark_generator import WatermarkGenerator, WatermarkOutput

__all__ = [
    "TimestampAssigner",
    "WatermarkAlignment",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "timestamps_only",
]


class TimestampAssigner(ABC, Generic[IN]):
    """Extracts the timestamp of each record."""

    @abstractmethod
    def extract_timestamp(self, value: IN, record_timestamp: int) -> int:
        """Return the record's timestamp, in ms since 1970.

        Args:
            value: the record.
            record_timestamp: its present timestamp, e.g. from Kafka; ``-2**63`` if it has none.
        """


@dataclass(frozen=True)
class WatermarkAlignment:
    """The alignment of a source with the others of its group."""

    group: str
    max_drift_ms: int
    """The event time by which a split may be ahead of the group's lowest watermark."""


@dataclass(frozen=True)
class WatermarkStrategy(Generic[IN]):
    """How a stream gets timestamps and watermarks. Immutable: the ``with_`` methods return a new strategy.

    A watermark declares that no more records with a timestamp at or below it are expected. Each split of the source
    (a Kafka partition, a file) has its own watermark.

    Examples:
        >>> from holdfast.common import Duration
        >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
        >>> strategy = strategy.with_timestamp_assigner(lambda value, record_timestamp: value["ts_ms"])
        >>> strategy.max_out_of_orderness_ms
        5000
    """

    max_out_of_orderness_ms: int | None = None
    """The watermark is the highest timestamp minus this minus one; None: no watermarks before the input's end."""
    timestamp_assigner: Callable[[IN, int], int] | None = None
    """``(value, record_timestamp) -> timestamp``; None: records keep the timestamps that the source gives."""
    idle_timeout_ms: int | None = None
    """Idle time after which a split no longer holds the watermark back; None: it always does."""
    generator_supplier: Callable[[], WatermarkGenerator[IN]] | None = None
    """Creates the user's own generators; None: one of Holdfast's, or no watermarks."""
    alignment: WatermarkAlignment | None = None
    """None: the source does not wait for others."""

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy[Any]:
        """For timestamps that never fall within a split: the watermark is the highest timestamp minus one."""
        return WatermarkStrategy(max_out_of_orderness_ms=0)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Span) -> WatermarkStrategy[Any]:
        """For records that arrive at most this much after records with later timestamps."""
        bound = to_milliseconds(max_out_of_orderness)
        if bound < 0:
            raise ValueError(f"the out-of-orderness must not be negative, got {bound} ms")
        return WatermarkStrategy(max_out_of_orderness_ms=bound)

    @staticmethod
    def for_generator(generator_supplier: Callable[[], WatermarkGenerator[R]]) -> WatermarkStrategy[R]:
        """For an own rule. Each split gets its own generator.

        Args:
            generator_supplier: Creates a `WatermarkGenerator`: its class, or a function without arguments.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(generator_supplier):
            raise TypeError(
                "for_generator() takes a function without arguments that returns a new WatermarkGenerator, or the class of "
                f"one, got {generator_supplier!r}"
            )
        return WatermarkStrategy(generator_supplier=generator_supplier)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy[Any]:
        """For streams without event time: event-time timers and windows fire only at the input's end."""
        return WatermarkStrategy()

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner[R] | Callable[[R, int], int]
    ) -> WatermarkStrategy[R]:
        """Set the timestamp assigner: an object or a function ``(value, record_timestamp) -> ms``.

        Raises:
            TypeError: the assigner is neither.
        """
        if isinstance(timestamp_assigner, TimestampAssigner):
            assign: Callable[[Any, int], int] = timestamp_assigner.extract_timestamp
        elif isinstance(timestamp_assigner, type) or not callable(timestamp_assigner):
            raise TypeError(
                "a timestamp assigner is a TimestampAssigner object or a function (value, record_timestamp) -> ms, "
                f"got {timestamp_assigner!r}"
            )
        else:
            assign = timestamp_assigner
        return cast("WatermarkStrategy[R]", replace(self, timestamp_assigner=assign))

    def with_idleness(self, idle_timeout: Span) -> WatermarkStrategy[IN]:
        """Let a split without records for this long no longer hold the watermark back."""
        timeout = to_milliseconds(idle_timeout)
        if timeout <= 0:
            raise ValueError(f"the idle timeout must be positive, got {timeout} ms")
        return replace(self, idle_timeout_ms=timeout)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Span, update_interval: Span | None = None
    ) -> WatermarkStrategy[IN]:
        """Let no split of the source run ahead of the other sources of a group; for ``from_source``.

        A split whose watermark is further ahead of the group's lowest one than the drift gets no input until the others
        have caught up.

        Args:
            watermark_group: The name of the group; all sources of the job with this name belong to it.
            max_allowed_watermark_drift: The event time by which a split may be ahead.
            update_interval: Checked, without effect: every epoch compares the watermarks.

        Raises:
            ValueError: the name is empty, a span is not positive, or the strategy has no watermarks.
        """
        drift = to_milliseconds(max_allowed_watermark_drift)
        if not watermark_group:
            raise ValueError("the name of a watermark group must not be empty")
        if drift <= 0:
            raise ValueError(f"the allowed watermark drift must be positive, got {drift} ms")
        if update_interval is not None and to_milliseconds(update_interval) <= 0:
            raise ValueError(f"the update interval must be positive, got {to_milliseconds(update_interval)} ms")
        if self.max_out_of_orderness_ms is None and self.generator_supplier is None:
            raise ValueError("a strategy without watermarks cannot be aligned: its group would wait for it for ever")
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift))


def timestamps_only(strategy: WatermarkStrategy[R]) -> WatermarkStrategy[R]:
    """The strategy without watermarks, for BATCH mode: event time ends at the end of the input, and not before."""
    return WatermarkStrategy(timestamp_assigner=strategy.timestamp_assigner)


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "AssignerWithPeriodicWatermarksWrapper": "it wraps an object of the JVM; use with_timestamp_assigner()",
        },
    )
