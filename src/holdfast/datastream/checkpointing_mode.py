"""What a restored job may show."""

from __future__ import annotations

from holdfast.common.modes import CheckpointingMode

__all__ = ["CheckpointingMode"]
