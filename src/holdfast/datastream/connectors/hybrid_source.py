"""Several sources one after the other."""

from __future__ import annotations

from holdfast.connectors.hybrid_source import HybridSource, HybridSourceBuilder

__all__ = ["HybridSource", "HybridSourceBuilder"]
