"""Functions of batches: record batches of Arrow in place of single elements."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from holdfast.functions.function import Function

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BatchFilterFunction", "BatchMapFunction"]


class BatchMapFunction(Function):
    """Converts batches: each row to one row."""

    @abstractmethod
    def map_batch(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Convert a batch to one of as many rows, in the same order."""


class BatchFilterFunction(Function):
    """Decides which rows of batches to keep."""

    @abstractmethod
    def filter_batch(self, batch: pyarrow.RecordBatch) -> Any:
        """Whether to keep each row: an array of booleans, of Arrow or NumPy. Null counts as false."""
