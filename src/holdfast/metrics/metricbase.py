"""Metrics of user functions, under PyFlink's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.system.jvm_only import refusing
from holdfast.metrics.user import Counter, Distribution, Meter, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "MetricGroup"]


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "Metric": "it is only the base class of Counter, Meter and Distribution",
        },
    )
