"""OutputTag, under PyFlink's module name."""

from __future__ import annotations

from holdfast.common.output_tag import OutputTag

__all__ = ["OutputTag"]
