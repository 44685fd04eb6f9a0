"""TimeDomain: event time or processing time."""

from __future__ import annotations

from enum import Enum

__all__ = ["TimeDomain"]


class TimeDomain(Enum):
    """Event time (the records' timestamps) or processing time (the machine's clock)."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1
