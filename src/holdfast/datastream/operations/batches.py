"""For programs that work on batches of elements: fields by name, aggregates of windows, and functions of batches."""

from __future__ import annotations

from holdfast.common.formats.columns import col
from holdfast.functions.aggregates import Avg, Count, CountDistinct, Max, Min, Sum
from holdfast.functions.batch_functions import BatchFilterFunction, BatchMapFunction

__all__ = [
    "Avg",
    "BatchFilterFunction",
    "BatchMapFunction",
    "Count",
    "CountDistinct",
    "Max",
    "Min",
    "Sum",
    "col",
]
