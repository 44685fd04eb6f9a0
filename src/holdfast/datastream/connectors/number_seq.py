"""The source of consecutive numbers."""

from __future__ import annotations

from holdfast.connectors.number_seq import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
