"""Connectors to outside systems, one module each."""

from __future__ import annotations

from holdfast.datastream.connectors.base import DeliveryGuarantee, Sink, Source

__all__ = ["DeliveryGuarantee", "Sink", "Source"]
