"""A source of values in the program's memory."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.values import pickling
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange, check_form
from holdfast.errors import ConfigurationError, IncompatibleState

__all__ = ["CollectionSource"]

_BLOCK = 1024
"""Number of values pickled, and unpickled, together."""
_SPLIT = "collection"
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class CollectionSource:
    """A bounded source of given values, in order, from one split.

    The values are pickled at once: later changes by the program have no effect, and a value that a function changed in
    place is read again in its original form. Each is read as an object of its own, even if the program has given one twice.

    Raises:
        ConfigurationError: a value cannot be pickled.
    """

    timestamped = False
    """Records have no timestamps of their own."""

    def __init__(self, values: Iterable[Any]) -> None:
        kept = list(values)
        self.size = len(kept)
        self._blocks = [_pickled(kept, start) for start in range(0, len(kept), _BLOCK)]

    @property
    def bounded(self) -> bool:
        """Always True."""
        return True

    def create_enumerator(self, job: JobInfo, uid: str) -> CountedEnumerator:
        """Create the enumerator."""
        return CountedEnumerator({_SPLIT: self.size})

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in a collection of this size."""
        check_counted(state, {_SPLIT: self.size})

    def create_reader(self, context: ReaderContext) -> CollectionReader:
        """Create a reader."""
        return CollectionReader(self._blocks)


def _pickled(values: list[Any], start: int) -> bytes | list[bytes]:
    """A block as one pickle if its values are plain, else as one for each: objects of one pickle stay the same object."""
    block = values[start : start + _BLOCK]
    if all(type(value) in _PLAIN or (type(value) is tuple and _PLAIN.issuperset(map(type, value))) for value in block):
        return pickling.dumps(block)
    pickles = []
    for i, value in enumerate(block, start):
        try:
            pickles.append(pickling.dumps(value))
        except TypeError as e:
            raise ConfigurationError(f"value {i} of the collection cannot be sent to the tasks: {e}") from e
    return pickles


def _unpickled(block: bytes | list[bytes]) -> list[Any]:
    return list(map(pickling.loads, block)) if isinstance(block, list) else pickling.loads(block)


class CollectionReader:
    """Reads ranges of the collection."""

    def __init__(self, blocks: Sequence[bytes | list[bytes]]) -> None:
        self._blocks = blocks

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        """Read the values from number ``part.start`` up to ``part.end``, exclusive."""
        at = part.start
        while at < part.end:
            block, offset = divmod(at, _BLOCK)
            values = _unpickled(self._blocks[block])[offset : offset + part.end - at]
            for i in range(0, len(values), max_batch):
                yield Batch(values[i : i + max_batch], locate=functools.partial(_place, at + i))
            at += len(values)

    def close(self) -> None:
        """Do nothing: no resources are open."""


def _place(first: int, i: int) -> str:
    return f"collection, value {first + i}"


class CountedEnumerator:
    """Cuts splits of known size, with records numbered 0, 1, 2, ..., into ranges; the splits advance in step."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._next = dict.fromkeys(sizes, 0)
        self._closed = threading.Event()

    def start(self, state: Any | None) -> None:
        """Start at the beginning, or at the checkpoint's positions, which `check_counted` has not refused."""
        if state is not None:
            self._next = dict(state["next"])

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next records of every split, in proportion to the rest of each."""
        left = {split: size - self._next[split] for split, size in self._sizes.items()}
        total = sum(left.values())
        take = min(total, max(1, max_records))
        ranges = []
        for split, rest in left.items():
            count = min(rest, -(-rest * take // total)) if total else 0
            if count:
                start = self._next[split]
                self._next[split] = start + count
                ranges.append(SplitRange(split, start, start + count, weight=count, last=count == rest))
        backlog = total - sum(part.weight for part in ranges)
        return EpochInput(tuple(ranges), backlog, finished=backlog == 0)

    def snapshot(self) -> Any:
        """Return the number of the next record of each split."""
        return {"sizes": dict(self._sizes), "next": dict(self._next)}

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Do nothing: no resources are open."""

    def wait(self, timeout: float) -> None:
        """Return at once while there is input; after the end, wait for the timeout."""
        if all(self._next[split] == size for split, size in self._sizes.items()):
            self._closed.wait(timeout)

    def close(self) -> None:
        """End a wait."""
        self._closed.set()


def check_counted(state: Any, sizes: dict[str, int]) -> None:
    """Check that the snapshot of a `CountedEnumerator` belongs to splits of these sizes.

    Raises:
        IncompatibleState: it belongs to another collection or sequence.
    """
    check_form(state, ("sizes", "next"), "source")
    if state["sizes"] != sizes:
        raise IncompatibleState(
            f"it is one in an input of {_described(state['sizes'])}, and the program has one of {_described(sizes)}; run it "
            "with the same input"
        )


def _described(sizes: dict[str, int]) -> str:
    return f"{sum(sizes.values())} records ({', '.join(sizes)})"
