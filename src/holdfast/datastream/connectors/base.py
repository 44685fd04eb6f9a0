"""The common part of connectors: Source, Sink and DeliveryGuarantee."""

from __future__ import annotations

from holdfast.connectors.base import Sink, Source
from holdfast.connectors.delivery import DeliveryGuarantee

__all__ = ["DeliveryGuarantee", "Sink", "Source"]
