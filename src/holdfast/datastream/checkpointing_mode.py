"""CheckpointingMode, under PyFlink's module name."""

from __future__ import annotations

from holdfast.common.modes import CheckpointingMode

__all__ = ["CheckpointingMode"]
