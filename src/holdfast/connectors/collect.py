"""The collect sink: hands a stream's records to the program that started the job."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import zstandard

from holdfast.common import pickling
from holdfast.connectors.base import Committable, JobInfo, WriterContext

__all__ = ["CollectSink"]

_POLL = 0.05
"""Seconds between two looks at whether the job has ended."""


class _Future(Protocol):
    def done(self) -> bool: ...

    def result(self) -> Any: ...


class _Client(Protocol):
    def get_job_execution_result(self) -> Any: ...


class _Results:
    """Records on their way from the committer to the reader of the results, in the same process."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        self.values: deque[Any] = deque()
        self.epoch = 0
        """The last epoch whose records have been handed over."""
        self.closed = False


_results: dict[str, _Results] = {}
"""By sink token: the sink object that the job uses is another copy than the one the program holds."""
_lock = threading.Lock()


def _results_of(token: str) -> _Results:
    with _lock:
        return _results.setdefault(token, _Results())


class CollectSink:
    """A sink whose records the program reads with `results`, each once its checkpoint is complete.

    The records travel pickled in the checkpoint's metadata. What a program has not read yet is held in its memory.
    A job that restarts in the same program repeats nothing; a new program that resumes from a checkpoint gets the
    records of that checkpoint once more, for nobody knows whether its predecessor had read them.
    """

    def __init__(self) -> None:
        self._token = uuid.uuid4().hex

    def validate(self) -> None:
        """Nothing can be wrong."""

    def create_writer(self, context: WriterContext) -> CollectWriter:
        """A writer."""
        return CollectWriter()

    def create_committer(self, job: JobInfo, uid: str) -> CollectCommitter:
        """The committer, in the program's process."""
        return CollectCommitter(self._token)

    def results(self, client: _Client) -> Iterator[Any]:
        """The records as they come; ends with the job.

        Args:
            client: The running job's client.

        Raises:
            JobFailed: the job has failed (after all records of its completed checkpoints).
        """
        results = _results_of(self._token)
        future: _Future = client.get_job_execution_result()
        try:
            while True:
                with results.arrived:
                    # Asked before looking for records: those of the last commit are there when the job is done.
                    done = future.done()
                    if not results.values and not done:
                        results.arrived.wait(_POLL)
                    values, results.values = results.values, deque()
                yield from values
                if done and not values:
                    break
            future.result()
        finally:
            with results.arrived:
                results.closed = True
                results.values.clear()
            with _lock:
                _results.pop(self._token, None)


class CollectWriter:
    """Keeps an epoch's records."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._epoch = 0

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        """Start with no records."""
        self._epoch = epoch
        self._values = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Keep the records."""
        self._values += values

    def prepare_commit(self) -> list[Any]:
        """The epoch's records, pickled and compressed, as one committable.

        Raises:
            TypeError: a record cannot be pickled.
        """
        values, self._values = self._values, []
        if not values:
            return []
        return [{"epoch": self._epoch, "values": zstandard.compress(pickling.dumps(values))}]

    def abort_epoch(self) -> None:
        """Forget the records."""
        self._values = []

    def close(self) -> None:
        """Nothing to free."""


class CollectCommitter:
    """Hands records over; knows by epoch what it has handed over."""

    def __init__(self, token: str) -> None:
        self._results = _results_of(token)

    def recover(self, committables: Sequence[Committable]) -> None:
        """Hand over what the restored checkpoint holds, unless this program has it."""
        self.commit(committables)

    def commit(self, committables: Sequence[Committable]) -> None:
        """Hand over an epoch's records, subtask by subtask; nothing when called again."""
        results = self._results
        with results.arrived:
            new = [c for c in committables if c.data["epoch"] > results.epoch]
            if not new:
                return
            for committable in sorted(new, key=lambda c: (c.data["epoch"], c.subtask)):
                if not results.closed:
                    results.values.extend(pickling.loads(zstandard.decompress(committable.data["values"])))
            results.epoch = max(c.data["epoch"] for c in new)
            results.arrived.notify_all()

    def close(self) -> None:
        """Nothing to free."""
