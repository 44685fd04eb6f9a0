"""DeliveryGuarantee, a sink's guarantee for each record."""

from __future__ import annotations

from enum import Enum

__all__ = ["DeliveryGuarantee"]


class DeliveryGuarantee(Enum):
    """How often a record arrives under failures."""

    EXACTLY_ONCE = "exactly-once"
    """Exactly once: output becomes visible with the checkpoint that covers it."""
    AT_LEAST_ONCE = "at-least-once"
    """At least once: a failure may repeat records."""
    NONE = "none"
    """No guarantee: a failure may lose or repeat records in flight."""
