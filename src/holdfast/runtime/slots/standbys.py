"""Standbys: the copies of state that a task slot keeps up to date from the changelogs, for subtasks on other hosts.

A standby is a task slot of a subtask on a host that is not the subtask's. Its process has loaded the job, and a thread reads
the changelogs. If the subtask moves to this host, it finds slot and copy, and reads only the rest of the log.

In the assignment of a task, the driver names the slots that stand by on its host. The task's slot passes this on to them, in
a thread of its own: no epoch waits for a standby.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from holdfast.checkpoint.ids import Epoch
from holdfast.errors import HoldfastError
from holdfast.runtime.host.local_directory import LocalDirectory, host_name
from holdfast.runtime.host.slot import SlotClient
from holdfast.runtime.plan.task_messages import JobSetup, StandbyStatus, TaskId
from holdfast.runtime.task.changelogs import follower
from holdfast.runtime.task.keyed_states import KeyedSubtask, local_state
from holdfast.state.changelogs.standby_copy import StandbyCopy
from holdfast.state.keys.key_groups import key_group_range

__all__ = ["Standby", "StandbyNeighbours", "StandbyRequest", "Standbys"]

log = logging.getLogger("holdfast.slot")

_ROUND_S = 0.5
"""Seconds between two reads of the log: so much is left to read when the subtask moves here."""
_RETRY_S = 5.0
_REFRESH_S = 2.0
"""Minimum interval, in seconds, at which a slot asks its neighbours."""
_FORGOTTEN_S = 900.0
"""Seconds after which a standby ends if no neighbour asks for it."""


@dataclass(frozen=True)
class StandbyRequest:
    """What a slot asks another slot on its host."""

    tasks: Sequence[TaskId]
    epoch: Epoch
    """The epoch that the asking slot has run."""
    generation: int
    """The driver's generation."""


class Standby:
    """The standby of one subtask: a thread that keeps the copies of its operators up to date."""

    def __init__(self, task: TaskId, copies: Sequence[StandbyCopy]) -> None:
        self._copies = copies
        self._name = f"subtask {task[1]} of vertex {task[0]}"
        self._ended = threading.Event()
        self._status = StandbyStatus(task, host_name())
        self._failure = ""
        self.renew()
        self._thread = threading.Thread(target=self._run, name=f"standby-{task[0]}-{task[1]}", daemon=True)
        self._thread.start()
        log.info("standby of %s: begins", self._name)

    @staticmethod
    def of(setup: JobSetup, task: TaskId, directory: str) -> Standby:
        """Start to stand by. ``directory``: the job's local directory for state."""
        vertex = next(vertex for vertex in setup.plan.vertices if vertex.id == task[0])
        groups = key_group_range(vertex.max_parallelism, vertex.parallelism, task[1])
        follow, settings = follower(setup, vertex), setup.plan.settings.state_backend.rocksdb
        return Standby(
            task,
            [
                StandbyCopy(
                    local_state(directory, uid, task[1]), settings, partial(follow, uid), groups, vertex.max_parallelism
                )
                for uid in KeyedSubtask.of(vertex, task[1]).operators
            ],
        )

    @property
    def status(self) -> StandbyStatus:
        """How current the copies are."""
        status, now = self._status, time.monotonic()
        return replace(status, lag_seconds=None if status.whole_at is None else now - status.whole_at)

    def renew(self) -> None:
        """Record that the standby is still wanted."""
        self._until = time.monotonic() + _FORGOTTEN_S

    def stop(self) -> StandbyStatus:
        """Release the copies; returns how current they are."""
        self._ended.set()
        self._thread.join()
        status = self.status
        log.info("standby of %s: gives its copy up, which lacks %s records", self._name, status.lag)
        return status

    def _run(self) -> None:
        while not self._ended.is_set() and time.monotonic() < self._until:
            self._ended.wait(_ROUND_S if self._round() else _RETRY_S)
        self._close()

    def _round(self) -> bool:
        try:
            for copy in self._copies:
                copy.catch_up(self._stopped)
        except Exception as error:  # the subtask itself does not need the copy
            if str(error) != self._failure:
                self._failure = str(error)
                log.warning(
                    "the standby copy of subtask %s cannot follow its changelog, will retry: %s", self._status.task, error
                )
            self._close()
            return False
        self._failure = ""
        self._tell()
        return True

    def _stopped(self) -> bool:
        self._tell()
        return self._ended.is_set()

    def _tell(self) -> None:
        lags, whole = [copy.lag for copy in self._copies], [copy.whole_at for copy in self._copies]
        known = [lag for lag in lags if lag is not None]
        self._status = replace(
            self._status,
            lag=sum(known) if len(known) == len(lags) else None,
            whole_at=min((at for at in whole if at is not None), default=None) if None not in whole else None,
        )

    def _close(self) -> None:
        for copy in self._copies:
            try:
                copy.close()
            except OSError:
                log.warning("standby of %s: cannot close the copy", self._name, exc_info=True)


class Standbys:
    """The standbys in one slot."""

    def __init__(self, setup: JobSetup, directory: str) -> None:
        self._setup = setup
        self._directory = directory
        self._standbys: dict[TaskId, Standby] = {}
        self._ran: dict[TaskId, Epoch] = {}
        self._taken: dict[TaskId, tuple[tuple[Epoch, int], StandbyStatus]] = {}

    def stand_by(self, task: TaskId) -> StandbyStatus:
        """Start to stand by for a subtask, or continue."""
        standby = self._standbys.get(task)
        if standby is None:
            standby = self._standbys[task] = Standby.of(self._setup, task, self._directory)
        standby.renew()
        return standby.status

    def ran_lately(self, task: TaskId, epoch: Epoch) -> bool:
        """Whether this slot itself has run the subtask in this epoch or the previous one."""
        return task in self._ran and self._ran[task] >= epoch - 1

    def take(self, task: TaskId, epoch: Epoch, run: int) -> StandbyStatus | None:
        """The subtask has moved to this host: end its standby; returns how current it was, or None without one.

        All of Spark's attempts at the same run of the epoch get this answer, because reports of attempts may be lost.
        """
        self._ran[task] = epoch
        standby = self._standbys.pop(task, None)
        if standby is not None:
            self._taken[task] = (epoch, run), standby.stop()
        taken = self._taken.get(task)
        return taken[1] if taken is not None and taken[0] == (epoch, run) else None

    def close(self) -> None:
        """End all standbys; their copies stay on the disk."""
        standbys, self._standbys = list(self._standbys.values()), {}
        for standby in standbys:
            standby.stop()


class StandbyNeighbours:
    """The slots on this host that stand by for subtasks elsewhere, as seen by a slot with tasks.

    Args:
        directory: The job's sockets on this host.
        executor: The process with which slots end.
        started: Identifies the start of the job.
        setup: The job.
        generation: The driver's generation.
    """

    def __init__(self, directory: LocalDirectory, executor: int, started: str, setup: bytes, generation: int) -> None:
        self._directory = directory
        self._executor = executor
        self._started = started
        self._setup = setup
        self._generation = generation
        self._found: list[StandbyStatus] = []
        self._asked = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def refresh(self, wanted: Mapping[int, Sequence[TaskId]], epoch: Epoch) -> list[StandbyStatus]:
        """Let neighbours stand by, in the background; returns what was known about them before.

        Args:
            wanted: By slot, the subtasks to stand by for.
            epoch: The epoch that the asking slot has run.
        """
        if (self._thread is None or not self._thread.is_alive()) and time.monotonic() - self._asked > _REFRESH_S:
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._ask, args=(dict(wanted), epoch), name="neighbours", daemon=True)
            self._thread.start()
        return self._found

    def _ask(self, wanted: Mapping[int, Sequence[TaskId]], epoch: Epoch) -> None:
        found: list[StandbyStatus] = []
        for slot, tasks in wanted.items():
            if self._closed:
                return
            request = pickle.dumps(StandbyRequest(tasks, epoch, self._generation), 5)
            try:
                answer = SlotClient(self._directory, slot, self._executor).stand_by(self._started, self._setup, request)
            except (OSError, HoldfastError) as error:
                log.warning("slot %d cannot stand by, will retry: %s", slot, error)
                continue
            found += pickle.loads(answer) if answer else []
        self._found = found

    def close(self) -> None:
        """Stop asking."""
        self._closed = True
