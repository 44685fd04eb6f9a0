"""EarlyRestore: a task slot restores keyed state while a local Spark starts, before the driver asks for it.

Nothing depends on it. The driver looks up the job's newest checkpoint without taking the job over; if an older driver is
still running, the first epoch may continue another one. Then the slot closes what it has restored, and restores again. No
code of the program runs here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime.plan.redistribution import assigned
from holdfast.runtime.task.keyed_states import KeyedStates, KeyedSubtask
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.store.host_lock import HostLock

__all__ = ["EarlyRestore", "RestoreRequest"]

log = logging.getLogger("holdfast.slot")


@dataclass(frozen=True)
class RestoreRequest:
    """The state that one slot restores early."""

    job_name: str
    storage_uri: str
    storage_options: Mapping[str, str]
    directory: str
    """The job's local directory for state."""
    backend: StateBackendSettings
    checkpoint: CheckpointId
    subtasks: tuple[KeyedSubtask, ...]
    """The slot's subtasks with keyed state."""


class EarlyRestore:
    """Restores keyed state in a thread, until its subtasks take it."""

    def __init__(self, request: RestoreRequest) -> None:
        self._request = request
        self._restored: dict[tuple[int, int], KeyedStates] = {}
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="materialisation")
        self._thread = threading.Thread(target=self._run, name="early-restore", daemon=True)
        self._thread.start()

    def take(self, subtask: KeyedSubtask, checkpoint: CheckpointId) -> KeyedStates | None:
        """The state of a subtask, if it was restored from this checkpoint; waits for a running restore.

        State from another checkpoint or for another parallelism is closed, because the subtask will open its local stores.
        """
        self._thread.join()
        found = self._restored.pop((subtask.vertex, subtask.number), None)
        if found is None or (found.subtask == subtask and checkpoint == self._request.checkpoint):
            return found
        found.close()
        return None

    def close(self) -> None:
        """Close the state that no subtask has taken."""
        self._thread.join()
        while self._restored:
            self._restored.popitem()[1].close()
        self._uploads.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> None:
        request = self._request
        try:
            storage = Storage.open(request.storage_uri, request.storage_options)
            paths = JobPaths.of(request.job_name)
            operators = read_checkpoint(storage, paths, request.checkpoint).operators
            for subtask in request.subtasks:
                states = KeyedStates(storage, paths, subtask, request.backend, request.directory, self._uploads)
                self._restore(states, subtask, operators)
        except Exception:  # the first epoch tries again, and reports the failure
            log.debug("restoring checkpoint %s early failed", request.checkpoint, exc_info=True)

    def _restore(self, states: KeyedStates, subtask: KeyedSubtask, operators: Mapping[str, OperatorCheckpoint]) -> None:
        stored = {
            uid: assigned(operators[uid], subtask.parallelism, subtask.number) for uid in states.uids & operators.keys()
        }
        if not stored or not all(_is_free(states.directory(uid)) for uid in states.uids):
            return
        try:
            states.open(stored)
            states.replay_encoded()
        except BaseException:
            states.close()
            raise
        self._restored[subtask.vertex, subtask.number] = states


def _is_free(directory: str) -> bool:
    """Whether no older driver's slot has the store open; the first epoch starts when that driver is fenced."""
    os.makedirs(directory, exist_ok=True)
    lock = HostLock(directory)
    try:
        return lock.acquire()
    finally:
        lock.release()
