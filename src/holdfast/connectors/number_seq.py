"""A source of consecutive whole numbers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from holdfast.connectors.base import Batch, JobInfo, ReaderContext, SplitRange
from holdfast.connectors.collection import CountedEnumerator, check_counted
from holdfast.errors import ConfigurationError

__all__ = ["NumberSequenceSource"]

_MOST_SPLITS = 8
_LEAST_IN_A_SPLIT = 10_000


class NumberSequenceSource:
    """A bounded source of the numbers from ``start`` to ``end``, both included.

    A long sequence is cut into contiguous splits that are read in parallel; a sequence of up to 10,000 numbers is one
    split and keeps its order.

    Raises:
        ConfigurationError: ``start`` is greater than ``end``.

    Examples:
        >>> NumberSequenceSource(1, 10).bounded
        True
    """

    timestamped = False
    """Records have no timestamps of their own."""

    def __init__(self, start: int, end: int) -> None:
        if start > end:
            raise ConfigurationError(f"NumberSequenceSource({start}, {end}): start must not be greater than end")
        self.start = start
        self.end = end

    @property
    def bounded(self) -> bool:
        """Always True."""
        return True

    def create_enumerator(self, job: JobInfo, uid: str) -> CountedEnumerator:
        """Create the enumerator."""
        return CountedEnumerator(self._sizes())

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in this sequence."""
        check_counted(state, self._sizes())

    def create_reader(self, context: ReaderContext) -> NumberReader:
        """Create a reader."""
        return NumberReader(self._splits())

    def _sizes(self) -> dict[str, int]:
        return {name: len(numbers) for name, numbers in self._splits().items()}

    def _splits(self) -> dict[str, range]:
        count = self.end - self.start + 1
        splits = min(_MOST_SPLITS, -(-count // _LEAST_IN_A_SPLIT))
        bounds = [self.start + count * i // splits for i in range(splits + 1)]
        return {f"numbers from {a} to {b - 1}": range(a, b) for a, b in itertools.pairwise(bounds)}


class NumberReader:
    """Reads ranges of a number sequence."""

    def __init__(self, splits: dict[str, range]) -> None:
        self._splits = splits

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[int]]:
        """Read the numbers at the positions ``[part.start, part.end)`` of the split."""
        numbers = self._splits[part.split]
        for at in range(part.start, part.end, max_batch):
            values = list(numbers[at : min(at + max_batch, part.end)])
            yield Batch(values, locate=functools.partial(_place, values))

    def close(self) -> None:
        """Do nothing: no resources are open."""


def _place(numbers: list[int], i: int) -> str:
    return f"number {numbers[i]}"
