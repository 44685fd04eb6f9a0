"""StagedCommitter: delivers the output of checkpoints to a function in the driver, one after the other."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId
from holdfast.checkpoint.paths import JobPaths
from holdfast.connectors.base import Committable, JobInfo
from holdfast.errors import CorruptFile, HoldfastError, StorageError, UserCodeError
from holdfast.runtime.records.user_code import user_error
from holdfast.spark.staged_output import PartName, StagedOutput, StagingArea, outputs

__all__ = ["Deliver", "StagedCommitter", "calling_at"]

_log = logging.getLogger(__name__)
_MARKER = re.compile(r"done-(\d{20})")
_SWEEP_EVERY = 500
"""Deliveries between two looks for parts of attempts that failed."""

Deliver = Callable[[StagedOutput], None]
"""Takes the output of a checkpoint: again after a crash, with the same rows, until it is known to have returned."""


@contextmanager
def calling_at(checkpoint_id: int, name: str, uid: str) -> Iterator[None]:
    """Tell the user's errors with the operator and the checkpoint, which is their record: a second one ends the job."""
    try:
        yield
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        place = f"checkpoint {checkpoint_id}"
        raise UserCodeError(f"{user_error(error, name, uid)}\n  {place}", operator=name, uid=uid, record=place) from error


class StagedCommitter:
    """Delivers the output of checkpoints, in their order, and deletes it then.

    Args:
        area: Where the output is.
        job: The job.
        names: The operator's name and uid, for messages.
        deliver: Called with the output of each checkpoint that has any.
    """

    def __init__(self, area: StagingArea, job: JobInfo, names: tuple[str, str], deliver: Deliver) -> None:
        self._area = area
        self._storage = area.open()
        self._generation = job.generation
        self._names = names
        self._deliver = deliver
        self._done = NO_CHECKPOINT
        self._markers: list[str] = []
        self._deliveries = 0

    def recover(self, committables: Sequence[Committable]) -> None:
        """Deliver what an earlier driver may not have delivered, and delete what it has left.

        Raises:
            CorruptFile: a part is gone.
        """
        for name in self._listed():
            if (match := _MARKER.fullmatch(JobPaths.whole(name))) is not None:
                if not JobPaths.is_part(name):
                    self._done = max(self._done, CheckpointId(int(match[1])))
                self._markers.append(name)  # the next one replaces it
        for output in outputs(self._area, committables):
            if output.checkpoint_id > self._done:
                self._check(output)
                self._take(output)
        self._sweep(lambda part: part.generation < self._generation)

    def commit(self, committables: Sequence[Committable]) -> None:
        """Deliver the output of a checkpoint; nothing if it has none, or has been delivered."""
        for output in outputs(self._area, committables):
            if output.checkpoint_id > self._done:
                self._take(output)
                self._deliveries += 1
                if self._deliveries % _SWEEP_EVERY == 0:
                    self._sweep(lambda part: part.checkpoint_id <= self._done)

    def close(self) -> None:
        """Do nothing: no resources are open."""

    def _check(self, output: StagedOutput) -> None:
        for part in output.parts:
            path = self._area.prefix + part.name
            if not self._storage.exists(path):
                raise CorruptFile(
                    self._storage.locate(path),
                    f"this part of the output of checkpoint {output.checkpoint_id} is gone, which operator "
                    f"{self._names[0]!r} (uid {self._names[1]!r}) has not delivered",
                )

    def _take(self, output: StagedOutput) -> None:
        with calling_at(output.checkpoint_id, *self._names):
            self._deliver(output)
        self._done = output.checkpoint_id
        marker = f"done-{output.checkpoint_id:020d}"
        self._storage.put(self._area.prefix + marker, b"\n")
        before, self._markers = self._markers, [marker]
        self._delete([*(part.name for part in output.parts), *before])

    def _sweep(self, is_old: Callable[[PartName], bool]) -> None:
        """Delete parts that nobody will deliver."""
        found = [(name, PartName.parse(name)) for name in self._listed()]
        self._delete([name for name, part in found if part is not None and is_old(part)])

    def _delete(self, names: Sequence[str]) -> None:
        try:
            self._storage.delete([self._area.prefix + name for name in names])
        except StorageError as error:
            _log.warning("delivered output of operator %r stays in the storage for now: %s", self._names[0], error)

    def _listed(self) -> list[str]:
        prefix = self._area.prefix
        return [path.removeprefix(prefix) for path in self._storage.list(prefix)]
