"""TimerService: the clocks of a subtask, and the timers of the current key."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["TimerService"]


class TimerService(ABC):
    """The clocks of a subtask, and the timers of the current key.

    Timers are durable. A key has at most one timer for a time in each time domain: registering it twice fires it once.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The machine's time, in ms since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in ms; ``-2**63`` before the first, ``2**63 - 1`` at the end of bounded input."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when processing time reaches ``timestamp`` (ms)."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the watermark reaches ``timestamp`` (ms).

        If the watermark is already there, the timer fires when the watermark next advances.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the processing-time timer at this time, if it exists."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the event-time timer at this time, if it exists."""
