"""By which clock a timer fires."""

from __future__ import annotations

from holdfast.common.time_domain import TimeDomain

__all__ = ["TimeDomain"]
