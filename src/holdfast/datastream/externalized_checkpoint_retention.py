"""What becomes of the checkpoints of a cancelled job."""

from __future__ import annotations

from holdfast.common.system.modes import ExternalizedCheckpointRetention

__all__ = ["ExternalizedCheckpointRetention"]
