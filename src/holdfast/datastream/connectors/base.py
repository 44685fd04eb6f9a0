"""What every connector is: a source or a sink, with its delivery guarantee."""

from __future__ import annotations

from holdfast.connectors.base import Sink, Source
from holdfast.connectors.delivery import DeliveryGuarantee

__all__ = ["DeliveryGuarantee", "Sink", "Source"]
