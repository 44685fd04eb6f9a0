"""Committers: the committers of a job's sinks, in the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from holdfast.connectors.base import Committable, Committer, JobInfo
from holdfast.errors import CorruptFile
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.protocol.resumption import committable_now
from holdfast.runtime.task.changelogs import changelog_committers

__all__ = ["Committers"]

log = logging.getLogger("holdfast")


class Committers:
    """The committers of one start of the job, from `recover` to `close`."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Committer] = {}
        self._names: dict[str, str] = {}

    def recover(
        self, plan: JobPlan, job: JobInfo, restored: Sequence[Committable], passed_over: Sequence[Committable]
    ) -> None:
        """Open the committers; they take over the output of earlier drivers.

        Args:
            plan: The plan of the job.
            job: The job.
            restored: The committables of the restored checkpoint.
            passed_over: The committables of the job's newest checkpoint, if an older one is restored. If they are lost, the
                job starts nevertheless: their loss may be why the user went back.
        """
        for vertex in plan.vertices:
            for chained in vertex.chain:
                sink = chained.factory.written_sink
                if sink is not None:
                    committer = sink.create_committer(job, chained.uid)
                    if committer is not None:
                        self._by_uid[chained.uid], self._names[chained.uid] = committer, chained.name
        self._by_uid.update(changelog_committers(plan, job))
        earlier = committable_now(plan, passed_over)
        for uid, committer in self._by_uid.items():
            before, now = _of(uid, earlier), _of(uid, restored)
            try:
                committer.recover([*before, *now])
            except CorruptFile as error:
                if not before:
                    raise
                log.warning("output of the checkpoint that the start passes over is lost: %s", error)
                committer.recover(now)

    def commit(self, committables: Sequence[Committable], doing: Callable[[str], AbstractContextManager[None]]) -> None:
        """Make a checkpoint's output visible; calls ``doing`` for each sink."""
        for uid, committer in self._by_uid.items():
            with doing(f"committing the output of {self._names.get(uid, 'a changelog')}"):
                committer.commit(_of(uid, committables))

    def close(self) -> None:
        """Release their resources."""
        while self._by_uid:
            self._by_uid.popitem()[1].close()


def _of(uid: str, committables: Sequence[Committable]) -> list[Committable]:
    return [each for each in committables if each.uid == uid]
