"""What a sink promises about each record."""

from __future__ import annotations

from enum import Enum

__all__ = ["DeliveryGuarantee"]


class DeliveryGuarantee(Enum):
    """How often a record arrives when something fails."""

    EXACTLY_ONCE = "exactly-once"
    """Once: output becomes visible with the checkpoint that covers it."""
    AT_LEAST_ONCE = "at-least-once"
    """Once or, after a failure, again."""
    NONE = "none"
    """Nothing is promised: what is under way when something fails may be lost, or arrive twice."""
