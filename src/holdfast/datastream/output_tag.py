"""The names of side outputs."""

from __future__ import annotations

from holdfast.common.output_tag import OutputTag

__all__ = ["OutputTag"]
