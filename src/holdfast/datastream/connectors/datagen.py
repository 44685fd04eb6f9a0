"""The source of generated payments."""

from __future__ import annotations

from holdfast.connectors.datagen import PaymentsSource

__all__ = ["PaymentsSource"]
