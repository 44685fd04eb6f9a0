"""TimerService, under PyFlink's module name."""

from __future__ import annotations

from holdfast.functions.timer_service import TimerService

__all__ = ["TimerService"]
