"""TimeDomain, the clock of a timer."""

from __future__ import annotations

from holdfast.common.time_domain import TimeDomain

__all__ = ["TimeDomain"]
