"""OpenChain: a subtask's operators with their state, restored from a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import CHANNEL_STATE, KeyedHandle, ListPart, OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.values.pickling import use_class_aliases
from holdfast.connectors.base import Committable
from holdfast.runtime.channels.channels import Send
from holdfast.runtime.plan.definitions import vertex_on
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import JobPlan, Vertex
from holdfast.runtime.plan.redistribution import OperatorSnapshot, assigned
from holdfast.runtime.plan.task_messages import JobSetup
from holdfast.runtime.task.chain import Chain
from holdfast.runtime.task.changelogs import opener
from holdfast.runtime.task.early_restore import EarlyRestore
from holdfast.runtime.task.event_times import event_times
from holdfast.runtime.task.keyed_states import KeyedStates, KeyedSubtask
from holdfast.runtime.task.time_slices import Slices, TimeSlices
from holdfast.runtime.time.clock import EventTime

__all__ = ["OpenChain", "RestoredSubtask", "TaskResources", "quietly", "restored"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskResources:
    """Resources that the subtasks of a process share."""

    storage: Storage
    """The checkpoint storage."""
    directory: str
    """The job's local directory for state."""
    uploads: ThreadPoolExecutor
    """Runs background uploads."""
    seconds: Callable[[], float] = time.monotonic
    """The clock of processing time."""
    slices: Callable[[float], Slices] = TimeSlices
    """Cuts the work before a deadline (in seconds) into time slices."""
    early: EarlyRestore | None = None
    """Keyed state that was restored before the first epoch."""


@dataclass(frozen=True)
class RestoredSubtask:
    """A subtask's state in a checkpoint."""

    operators: Mapping[str, OperatorSnapshot]
    """The state of the operators, by uid."""
    times: Mapping[str, EventTime] = field(default_factory=dict)
    """The operators' event times, by uid."""
    channel_state: Sequence[ListPart] = ()
    """The unprocessed input."""
    uncommitted: Sequence[Committable] = ()
    """Committables of the checkpoint that may not be committed yet."""


def restored(plan: JobPlan, operators: Mapping[str, OperatorCheckpoint], vertex: Vertex, subtask: int) -> RestoredSubtask:
    """Find a subtask's state in a checkpoint, whose parallelism may differ."""
    stored = {
        chained.uid: assigned(operators[chained.uid], vertex.parallelism, subtask)
        for chained in vertex.chain
        if chained.uid in operators
    }
    head = stored.get(vertex.chain[0].uid)
    waiting = [] if head is None else head.state.lists.get(CHANNEL_STATE, [])
    return RestoredSubtask(stored, event_times(plan, operators, vertex, subtask), waiting)


class OpenChain:
    """The open operators of a subtask, with keyed and listed state.

    Args:
        setup: The job, with functions that have not been used yet.
        vertex: The subtask's vertex, from ``setup``.
        subtask: The subtask's number.
        resources: The resources of the process.
        state: The checkpoint's state; None to start without state.
        send: Takes the frames for other tasks.
        restarts: The number of the job's restarts.
        keyed: The keyed state, if its restore from the same checkpoint has already begun.
    """

    def __init__(
        self,
        setup: JobSetup,
        vertex: Vertex,
        subtask: int,
        resources: TaskResources,
        state: RestoredSubtask | None,
        send: Send,
        restarts: int = 0,
        keyed: KeyedStates | None = None,
    ) -> None:
        stored, times = (state.operators, state.times) if state is not None else ({}, {})
        vertex = vertex_on(vertex, stored)
        self._vertex = vertex
        self._subtask = subtask
        self._resources = resources
        self._paths = JobPaths.of(setup.job.job_name)
        use_class_aliases(setup.plan.class_aliases)
        with ExitStack() as stack:
            self.keyed = keyed or KeyedStates(
                resources.storage,
                self._paths,
                KeyedSubtask.of(vertex, subtask),
                setup.plan.settings.state_backend,
                resources.directory,
                resources.uploads,
                opener(setup, vertex, subtask),
                () if state is None else state.uncommitted,
            )
            stack.callback(quietly, "close the local store", self.keyed.close)
            self.states = self.keyed.open(stored)
            """The keyed state of the operators, by uid."""
            for chained in vertex.chain:
                if chained.uid in self.states:
                    declared = None if chained.key_type is None else chained.key_type.to_dict()
                    self.states[chained.uid].registry.key(declared)
            self.lists = {
                chained.uid: ListedStates(
                    resources.storage, stored.get(chained.uid), f"{chained.name!r} (uid {chained.uid!r})"
                )
                for chained in vertex.chain
                if StateKind.LISTED in chained.factory.state
            }
            """The listed state of the operators, by uid."""
            self.chain = Chain(setup, vertex, subtask, self.states, self.lists, send, restarts, times)
            stack.callback(quietly, "close the operators", self.chain.close)
            stack.callback(self._abort_epoch)
            self.chain.open()
            self.keyed.replay()
            if state is not None:
                generators = {uid: each.generator for uid, each in stored.items() if each.generator is not None}
                self.chain.resume(generators)
            self._closing = stack.pop_all()

    def snapshot(self, generation: int, epoch: Epoch) -> dict[str, OperatorSnapshot]:
        """Write the epoch's changes at the barrier; returns the state of the operators, by uid."""
        keyed = self.keyed.snapshot(generation, epoch)
        generators = self.chain.snapshot_generators()
        snapshots = {}
        for uid in {**keyed, **self.lists, **generators}:
            handles: list[KeyedHandle] = []
            schemas: dict[str, Any] = {}
            if uid in keyed:
                handles, schema = keyed[uid]
                schemas = {schema.fingerprint: schema.plain()}

            new_path = partial(self.new_path, generation, epoch, uid, "list")
            lists, listed = self.lists[uid].snapshot(new_path) if uid in self.lists else ({}, {})
            snapshots[uid] = OperatorSnapshot(SubtaskState(handles, lists), schemas, listed, generators.get(uid))
        return snapshots

    def new_path(self, generation: int, epoch: Epoch, uid: str, kind: str) -> str:
        """The path of a new file of an operator's state."""
        return self._paths.state_file(generation, epoch, uid, self._subtask, new_attempt(), kind)

    def _abort_epoch(self) -> None:
        for operator in self.chain.opened:
            quietly("abort the epoch's output", operator.abort_epoch)

    def close(self) -> None:
        """Abort the epoch's output and close everything; uncommitted state is dropped."""
        self._closing.close()


def quietly(what: str, action: Callable[[], None]) -> None:
    """Run a clean-up; a failure is logged and does not hide an earlier one."""
    try:
        action()
    except Exception:
        log.warning("could not %s", what, exc_info=True)
