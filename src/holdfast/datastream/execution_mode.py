"""How results of a program are given."""

from __future__ import annotations

from holdfast.common.modes import RuntimeExecutionMode

__all__ = ["RuntimeExecutionMode"]
