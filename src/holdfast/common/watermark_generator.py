"""WatermarkGenerator: a user's own rule for the watermarks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from holdfast.common.values.type_variables import IN

__all__ = ["WatermarkGenerator", "WatermarkOutput"]


class WatermarkOutput(ABC):
    """Takes the watermarks of a `WatermarkGenerator`."""

    @abstractmethod
    def emit_watermark(self, watermark: int) -> None:
        """Emit a watermark, in ms: no more records at or before it are expected. One that goes back has no effect."""

    @abstractmethod
    def mark_idle(self) -> None:
        """Exclude the split from the minimum over all splits, until `mark_active` or the next watermark."""

    @abstractmethod
    def mark_active(self) -> None:
        """Include the split again."""


class WatermarkGenerator(ABC, Generic[IN]):
    """Generates the watermarks of one split, from its records (punctuated) or from time to time (periodic).

    The attributes of a generator are its state: plain data that every checkpoint holds, so that a restarted job continues
    with the same watermarks. ``__getstate__`` and ``__setstate__`` select and restore other state, as for pickle.

    Examples:
        >>> class AtMarkers(WatermarkGenerator):
        ...     def on_event(self, event, timestamp, output):
        ...         if event["kind"] == "end of hour":
        ...             output.emit_watermark(timestamp)
    """

    @abstractmethod
    def on_event(self, event: IN, timestamp: int, output: WatermarkOutput) -> None:
        """Handle a record, after it has been passed on: remember its timestamp, or emit a watermark.

        Args:
            event: The record.
            timestamp: Its timestamp in ms; ``-2**63`` if it has none.
            output: Takes the watermarks.
        """

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark, or none. Called behind each batch of records, and at the end of each epoch.

        Without input, it is called every ``pipeline.auto-watermark-interval``, but at most once a second; never if that
        is 0.
        """
