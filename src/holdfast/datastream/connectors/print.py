"""The sink that prints."""

from __future__ import annotations

from holdfast.connectors.print import PrintSink

__all__ = ["PrintSink"]
