"""The collect sink: passes a stream's records to the program that started the job."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import zstandard

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.parsing import parsing
from holdfast.common.values import pickling
from holdfast.connectors.base import Committable, JobInfo, WriterContext, check_form

__all__ = ["CollectSink", "Mailbox"]

_POLL = 0.05
"""Seconds between checks for the end of the job."""
_RECENT = 100
"""Number of latest records that a mailbox keeps."""


class _Future(Protocol):
    def done(self) -> bool: ...

    def result(self) -> Any: ...


class _Client(Protocol):
    def get_job_execution_result(self) -> Any: ...


class Mailbox:
    """The way of records from the committer to the program, in one process."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        self.values: deque[Any] = deque()
        """The records that the program has not read."""
        self.epochs: dict[tuple[str, str], int] = {}
        """The last epoch whose records were passed on, by job and sink."""
        self.closed = False
        self.recent: deque[Any] | None = None
        """The latest records, read or not, since somebody has looked at them."""
        self.total = 0

    def add(self, values: list[Any]) -> None:
        """Take the records of an epoch."""
        self.values.extend(values)
        if self.recent is not None:
            self.recent.extend(values[-_RECENT:])
        self.total += len(values)

    def latest(self) -> tuple[list[Any], int]:
        """The latest records, those that were read before the first call excepted, and the number of all."""
        with self.arrived:
            if self.recent is None:
                self.recent = deque(self.values, _RECENT)
            return list(self.recent), self.total


_mailboxes: weakref.WeakValueDictionary[str, Mailbox] = weakref.WeakValueDictionary()
"""Mailboxes by sink token: the job uses another copy of the sink object than the program."""
_lock = threading.Lock()


def _mailbox_of(token: str) -> Mailbox:
    with _lock:
        return _mailboxes.setdefault(token, Mailbox())


class CollectSink:
    """A sink whose records the program reads with `results`, once their checkpoint is complete.

    The records travel pickled in the checkpoint's metadata. Unread records stay in the program's memory. A job that
    restarts in the same program repeats no record. A new program that resumes from a checkpoint gets the records of that
    checkpoint again, because its predecessor may not have read them.
    """

    def __init__(self, mailbox: Mailbox | None = None) -> None:
        self._token = uuid.uuid4().hex
        self.mailbox = mailbox or Mailbox()
        with _lock:
            _mailboxes[self._token] = self.mailbox

    def __getstate__(self) -> dict[str, Any]:
        return {"_token": self._token}

    def validate(self) -> None:
        """Accept: this sink has nothing to check."""

    def create_writer(self, context: WriterContext) -> CollectWriter:
        """Create a writer."""
        return CollectWriter()

    def check_prepared(self, data: Any) -> None:
        """Check that output is an epoch's records for this kind of sink."""
        check_form(data, ("epoch", "values"), "sink of execute_and_collect()")

    def create_committer(self, job: JobInfo, uid: str) -> CollectCommitter:
        """Create the committer, in the program's process."""
        return CollectCommitter(self._token, (job.identity or job.job_id, uid))  # each start has another job_id

    def results(self, client: _Client) -> Iterator[Any]:
        """Iterate over the records as they arrive; ends with the job.

        Args:
            client: The running job's client.

        Raises:
            JobFailed: the job has failed (after all records of its completed checkpoints).
        """
        results = self.mailbox
        future: _Future = client.get_job_execution_result()
        try:
            while True:
                with results.arrived:
                    # Check this before the queue: once the job is done, the records of the last commit are in it.
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


class CollectWriter:
    """Collects the records of an epoch."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._epoch = 0

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch without records."""
        self._epoch = epoch
        self._values = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Add the records."""
        self._values += values

    def prepare_commit(self) -> list[Any]:
        """Return the epoch's records, pickled and compressed, as one committable.

        Raises:
            TypeError: a record cannot be pickled.
        """
        values, self._values = self._values, []
        if not values:
            return []
        return [{"epoch": self._epoch, "values": zstandard.compress(pickling.dumps(values))}]

    def abort_epoch(self) -> None:
        """Drop the records."""
        self._values = []

    def close(self) -> None:
        """Do nothing: no resources are open."""


class CollectCommitter:
    """Passes records on; skips epochs of its job and sink that were already passed on."""

    def __init__(self, token: str, sink: tuple[str, str]) -> None:
        self._mailbox = _mailbox_of(token)
        self._sink = sink

    def recover(self, committables: Sequence[Committable]) -> None:
        """Pass on the restored checkpoint's records, unless this program already has them."""
        self.commit(committables)

    def commit(self, committables: Sequence[Committable]) -> None:
        """Pass on an epoch's records, subtask by subtask; repeated calls have no effect."""
        mailbox = self._mailbox
        with mailbox.arrived:
            passed_on = mailbox.epochs.get(self._sink, 0)
            new = [c for c in committables if c.data["epoch"] > passed_on]
            if not new:
                return
            for committable in sorted(new, key=lambda c: (c.data["epoch"], c.subtask)):
                if not mailbox.closed:
                    with parsing("the output in the checkpoint", "a frame of zstd"):
                        values = zstandard.decompress(committable.data["values"])
                    mailbox.add(pickling.loads(values))
            mailbox.epochs[self._sink] = max(c.data["epoch"] for c in new)
            mailbox.arrived.notify_all()

    def close(self) -> None:
        """Do nothing: no resources are open."""
