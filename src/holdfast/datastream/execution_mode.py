"""How results of a program are given."""

from __future__ import annotations

from holdfast.common.system.modes import RuntimeExecutionMode

__all__ = ["RuntimeExecutionMode"]
