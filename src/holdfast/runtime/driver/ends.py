"""Forced ends of a job, and the deletion of its checkpoints."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import StorageError
from holdfast.runtime.spark.spark_context import jvm_process

if TYPE_CHECKING:
    from holdfast.runtime.driver.coordinator import Coordinator

__all__ = ["delete_checkpoints", "end_anyway"]

log = logging.getLogger("holdfast")

_GRACE_S = 15.0
"""Seconds for an orderly end after a forced one was requested."""
_EXIT_S = 5.0
"""Seconds for a program to exit after its job was abandoned."""


def end_anyway(name: str, over: threading.Event, leave: Callable[[], None], grace_s: float = _GRACE_S) -> None:
    """Abandon a job whose driver cannot end because some system does not answer.

    For the job this is as if its driver were killed: its threads stay behind, like those of a paused driver, and the next
    start fences them. When the program has ended, the process exits without waiting for these threads.

    Args:
        name: The job's name.
        over: Set when the job has ended.
        leave: Ends the job for its users.
        grace_s: Seconds to wait for the job's end.
    """

    def run() -> None:
        if over.wait(grace_s):
            return
        log.warning(
            "job %r: its driver waits for a system that does not answer, and is left there. The job ends as if it was "
            "killed: its next start goes on from its last checkpoint",
            name,
        )
        leave()
        threading.main_thread().join()
        if not over.wait(_EXIT_S):
            if (spark := jvm_process()) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(spark, signal.SIGKILL)
            os._exit(1 if hasattr(sys, "last_type") else 0)

    threading.Thread(target=run, name="holdfast-forced-end", daemon=True).start()


def delete_checkpoints(name: str, coordinator: Coordinator, own: CheckpointLog, storage: Storage, paths: JobPaths) -> None:
    """Delete a cancelled job's checkpoints, as configured, unless they are still needed."""
    try:
        if coordinator.uncommitted or not own.still_mine():
            why = "its last output is not committed yet" if coordinator.uncommitted else "another driver has the job"
            log.warning("the checkpoints of the cancelled job %r are kept: %s", name, why)
            return
        storage.delete_job(paths)
    except StorageError:
        log.warning("the checkpoints of the cancelled job could not be deleted", exc_info=True)
