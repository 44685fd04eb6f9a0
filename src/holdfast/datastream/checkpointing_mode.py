"""CheckpointingMode, under PyFlink's module name."""

from __future__ import annotations

from holdfast.common.system.modes import CheckpointingMode

__all__ = ["CheckpointingMode"]
