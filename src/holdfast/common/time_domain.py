"""TimeDomain, by which clock a timer fires."""

from __future__ import annotations

from enum import Enum

__all__ = ["TimeDomain"]


class TimeDomain(Enum):
    """The time of the records (event time), or the time of the machine (processing time)."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1
