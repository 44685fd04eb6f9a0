"""Samples of records that pass on an edge of the running job in one epoch, taken on request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any, NamedTuple, Protocol

from holdfast.errors import HoldfastError

__all__ = ["Edge", "EdgeSample", "SampleRequests", "SampledRecord", "shown"]

Edge = tuple[int, int]
"""The ids of the sending and the receiving vertex."""

_RECORDS = 10
"""Records in a sample."""
_KEYS = 10_000
"""Limit of the keys that each subtask counts."""
_FREQUENT = 10
_CHARACTERS = 300


class SampledRecord(NamedTuple):
    """A record as text."""

    timestamp: int | None
    key: str | None
    value: str


def shown(value: Any) -> str:
    """A user's value as text of bounded length.

    >>> shown({"amount": 3}), len(shown("x" * 1000))
    ("{'amount': 3}", 300)
    """
    try:
        text = repr(value)
    except Exception as error:  # raised by the class's own __repr__
        text = f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


@dataclass
class EdgeSample:
    """What has passed on an edge in one epoch: the first records, and how often each key occurs."""

    records: list[SampledRecord] = field(default_factory=list)
    passed: int = 0
    """The number of all records."""
    keys: Counter[str] = field(default_factory=Counter)
    """The most frequent keys, among those counted."""
    counted: int = 0
    """The number of records whose keys were counted."""

    def take(self, values: Sequence[Any], timestamps: Sequence[int] | None, keys: Sequence[Any] | None) -> None:
        """Add the records of a frame."""
        self.passed += len(values)
        for i in range(min(len(values), _RECORDS - len(self.records))):
            key = None if keys is None else shown(keys[i])
            self.records.append(SampledRecord(None if timestamps is None else timestamps[i], key, shown(values[i])))
        if keys is not None:
            some = keys[: max(0, _KEYS - self.counted)]
            self.counted += len(some)
            self.keys.update(map(shown, some))

    def packed(self) -> EdgeSample:
        """The sample with the most frequent keys only."""
        return replace(self, keys=Counter(dict(self.keys.most_common(_FREQUENT))))

    @staticmethod
    def merged(samples: Iterable[EdgeSample]) -> EdgeSample:
        """The sample of an edge from those of its sending subtasks."""
        taken = list(samples)
        whole = EdgeSample()
        for each in taken:
            whole.passed += each.passed
            whole.keys += each.keys
            whole.counted += each.counted
        in_turn = chain.from_iterable(zip_longest(*(each.records for each in taken)))
        return replace(whole.packed(), records=[record for record in in_turn if record is not None][:_RECORDS])


class HasSamples(Protocol):
    """A task's report."""

    task: tuple[int, int]
    samples: dict[int, EdgeSample]


class SampleRequests:
    """The edges to sample. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[Edge, Future[EdgeSample]] = {}
        self._ended = False

    def add(self, edge: Edge) -> Future[EdgeSample]:
        """Request a sample of the next epoch in which records pass on the edge."""
        with self._lock:
            if self._ended:
                raise HoldfastError("the job has ended; no records pass any more")
            return self._wanted.setdefault(edge, Future())

    @property
    def wanted(self) -> frozenset[Edge]:
        """The edges to sample."""
        with self._lock:
            return frozenset(self._wanted)

    def take(self, reports: Iterable[HasSamples]) -> None:
        """Answer the requests from the reports of an epoch."""
        taken: dict[Edge, list[EdgeSample]] = {}
        for report in reports:
            for target, sample in report.samples.items():
                taken.setdefault((report.task[0], target), []).append(sample)
        for edge, samples in taken.items():
            whole = EdgeSample.merged(samples)
            if whole.passed:
                with self._lock:
                    answered = self._wanted.pop(edge, None)
                if answered is not None:
                    answered.set_result(whole)

    def end(self) -> None:
        """The job is over: fail the unanswered requests."""
        with self._lock:
            self._ended = True
            left, self._wanted = list(self._wanted.values()), {}
        for request in left:
            request.set_exception(HoldfastError("the job has ended before a record passed"))
