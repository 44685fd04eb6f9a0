"""The common part of connectors: Source, Sink and DeliveryGuarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.system.jvm_only import refusing
from holdfast.connectors.base import Sink, Source
from holdfast.connectors.delivery import DeliveryGuarantee

__all__ = ["DeliveryGuarantee", "Sink", "Source"]


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "StreamTransformer": "it belongs to the translation of sinks to the JVM; sink_to() takes the sink itself",
            "SupportsPreprocessing": "it belongs to the translation of sinks to the JVM; sink_to() takes the sink itself",
        },
    )
