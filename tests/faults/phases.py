"""Phases of savepoints, restores, rescaling, materialisation, retention and changelogs, in which a process kills itself.

The program of ``test_killed_phases.py`` installs the hooks in its driver and in every task slot. A file in a directory that
both see arms one of them: the first process to reach it takes the file away, and dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast.checkpoint.retention
import holdfast.runtime.driver.savepoints
import holdfast.state.backends.rocksdb
import holdfast.state.backends.upkeep
import holdfast.state.cells.row_pieces
import holdfast.state.rows.lazy_deltas
import holdfast.state.snapshots.lazy_files
import holdfast.state.snapshots.lazy_restore
import holdfast.state.snapshots.sst
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.stores.kafka_topic import KafkaTopic
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime.driver.job import Job
from holdfast.runtime.driver.savepoints import SavepointWriter
from holdfast.runtime.slots.task_host import TaskHost
from holdfast.state.backends.backend import paths_of
from holdfast.state.backends.compaction import Base, Merge
from holdfast.state.backends.delta_merge import DeltaMerge
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.backends.rocksdb import RocksDBFiles, RocksDBLocalStore
from holdfast.state.changelogs.changelog_copy import ChangelogCopy
from holdfast.state.changelogs.keyed_changelog import KeyedChangelog
from holdfast.state.rows.lazy_deltas import LazyDelta, LazyRows
from holdfast.state.snapshots.lazy_file import LazyFile
from holdfast.state.snapshots.lazy_files import LazyFiles
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.linked_files import LinkedFiles
from holdfast.state.stored.delta_files import DeltaFiles

ARMED = "armed"
_NO_LINKS = "no links"


@dataclass(frozen=True)
class Phase:
    name: str
    owner: Any
    """The class or module of the function that is hooked."""
    function: str
    after: bool = False
    driver: bool = False
    """Whether the driver dies, and not a task slot."""
    needs: str = ""
    """What leads there: a ``savepoint``, a ``rescale``, a ``restart`` of the driver, a ``loss`` of slots and disk."""
    changelog: bool = False
    """Whether the state is in a changelog, too."""
    log: bool = False
    """Whether the checkpoint log is in a topic."""
    arrives: bool = False
    """Whether the storage's files cannot be linked, so that epochs run while files of the base are being fetched."""


_SAVEPOINTS = holdfast.runtime.driver.savepoints
_ROCKSDB = holdfast.state.backends.rocksdb
PHASES = [
    Phase("savepoint: before its first part", SavepointWriter, "write", driver=True, needs="savepoint"),
    Phase("savepoint: before its metadata", _SAVEPOINTS, "put_metadata", driver=True, needs="savepoint"),
    Phase("savepoint: after its metadata", _SAVEPOINTS, "put_metadata", True, driver=True, needs="savepoint"),
    Phase("restore: before the take-over", CheckpointLog, "take_over", driver=True, needs="restart"),
    Phase("restore: after the take-over", CheckpointLog, "take_over", True, driver=True, needs="restart"),
    Phase("restore: before the files of the base", _ROCKSDB, "fetch", needs="loss"),
    Phase("restore: after the files of the base", _ROCKSDB, "fetch", True, needs="loss"),
    Phase("restore: amid the links to the files of the base", holdfast.state.snapshots.sst, "link_raw", True, needs="loss"),
    Phase("restore: amid the deltas", KeyedStateBackend, "_apply", needs="loss"),
    Phase("restore: before the first epoch", KeyedStateBackend, "replay", True, needs="loss"),
    Phase("restore: before linked files are verified", LinkedFiles, "begin", needs="loss"),
    Phase("lazy restore: before the whole files", LazyRestore, "begin", needs="loss", arrives=True),
    Phase("lazy restore: amid blocks of lookups", LazyFiles, "need_keys", True, needs="loss", arrives=True),
    Phase("lazy restore: amid whole files", LazyFile, "complete", True, needs="loss", arrives=True),
    Phase("lazy restore: before rows of deltas for a lookup", LazyRows, "open", needs="loss", arrives=True),
    Phase("lazy restore: after all rows of a delta", LazyDelta, "complete", True, needs="loss", arrives=True),
    Phase("rescale: before a slot closes the tasks of the old parallelism", TaskHost, "close", needs="rescale"),
    Phase("rescale: after a slot has closed the tasks of the old parallelism", TaskHost, "close", True, needs="rescale"),
    Phase("rescale: before the tasks of the new parallelism", Job, "_new_executor", driver=True, needs="rescale"),
    Phase("rescale: after the tasks of the new parallelism", Job, "_new_executor", True, driver=True, needs="rescale"),
    Phase("rescale: before the files of the predecessors", _ROCKSDB, "fetch", needs="rescale"),
    Phase("rescale: amid the deltas", KeyedStateBackend, "_apply", needs="rescale"),
    Phase("rescale: before the metadata of the first epoch", CheckpointLog, "complete", driver=True, needs="rescale"),
    Phase("epoch: before its delta", DeltaFiles, "append"),
    Phase("epoch: after its delta", DeltaFiles, "append", True),
    Phase("materialisation: before it", RocksDBFiles, "begin"),
    Phase("materialisation: before the upload", RocksDBFiles, "_upload"),
    Phase("materialisation: after the upload", RocksDBFiles, "_upload", True),
    Phase("materialisation: when the base is about to replace deltas", RocksDBLocalStore, "adopt", True),
    Phase("materialisation: amid a merge of deltas", DeltaMerge, "drain"),
    Phase("retention: before the deletions", Retention, "_delete", driver=True),
    Phase("retention: amid the deletions", Storage, "delete", driver=True),
    Phase("retention: after the deletions", Retention, "_delete", True, driver=True),
    Phase("log: before a take-over is a record", KafkaTopic, "append", driver=True, needs="restart", log=True),
    Phase("log: after a take-over is a record", KafkaTopic, "append", True, driver=True, needs="restart", log=True),
    Phase("log: before an entry is a record", KafkaTopic, "append", driver=True, log=True),
    Phase("log: after an entry is a record", KafkaTopic, "append", True, driver=True, log=True),
    Phase("log: before old records are deleted", KafkaTopic, "truncate", driver=True, log=True),
    Phase("log: after old records are deleted", KafkaTopic, "truncate", True, driver=True, log=True),
    Phase("changelog: before the rows of an epoch", KeyedChangelog, "append", changelog=True),
    Phase("changelog: after the rows of an epoch", KeyedChangelog, "append", True, changelog=True),
    Phase("changelog: after the end of its transaction is prepared", KeyedChangelog, "prepare", True, changelog=True),
    Phase("changelog: before the metadata", CheckpointLog, "complete", driver=True, changelog=True),
    Phase("changelog: after the metadata, before the commit", CheckpointLog, "complete", True, driver=True, changelog=True),
    Phase("changelog: before a restore", KeyedChangelog, "restore", needs="loss", changelog=True),
    Phase("changelog: amid the reading of the log", ChangelogCopy, "_take", needs="loss", changelog=True),
    Phase("changelog: after a restore", KeyedChangelog, "restore", True, needs="loss", changelog=True),
]


class Armed:
    """The phase that is armed, by the directory that all processes see."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def arm(self, phase: Phase) -> None:
        fresh = self._directory / "arming"
        fresh.write_text(phase.name)
        fresh.rename(self._directory / ARMED)

    def link(self, possible: bool) -> None:
        """Let files of the storage be linked, or not."""
        (self._directory / _NO_LINKS).unlink(missing_ok=True)
        if not possible:
            (self._directory / _NO_LINKS).touch()

    def reached(self, phase: Phase) -> bool:
        return (self._directory / phase.name).exists()

    def die_in(self, phase: Phase) -> None:
        """Kill this process, unless another phase is armed or another process was here first."""
        with contextlib.suppress(FileNotFoundError):
            if (self._directory / ARMED).read_text() == phase.name:
                (self._directory / ARMED).rename(self._directory / phase.name)
                os.kill(os.getpid(), signal.SIGKILL)


def install(directory: str) -> None:
    """Install all hooks in this process, once, and let bases and merges of deltas come after a few epochs."""
    if holdfast.state.backends.upkeep.due is soon:
        return
    holdfast.state.backends.upkeep.due = soon
    holdfast.checkpoint.retention._TRIM_EVERY = 3
    armed, link = Armed(directory), holdfast.state.snapshots.sst.link_raw
    holdfast.state.snapshots.sst.link_raw = lambda *file: not Path(directory, _NO_LINKS).exists() and link(*file)
    (
        holdfast.state.snapshots.lazy_restore._LARGE,
        holdfast.state.rows.lazy_deltas._LEAST,
        holdfast.state.snapshots.lazy_files._LEAST,
    ) = 0, 1, 1
    holdfast.state.cells.row_pieces._LARGE_ROW, holdfast.state.cells.row_pieces._HEAD_SHARE = 1, 0
    path = Storage.local_path
    Storage.local_path = lambda *at: None if Path(directory, _NO_LINKS).exists() else path(*at)
    for phase in PHASES:
        setattr(phase.owner, phase.function, _hooked(getattr(phase.owner, phase.function), phase, armed))


def soon(handles: Sequence[KeyedHandle], linked: bool, epochs: int, kept: int) -> Base | Merge | None:
    """When bases and merges are due: after a few epochs one or the other, as the name of the last delta decides."""
    deltas = handles[-1].deltas
    if len(handles) > 1:
        return Base()
    if len(deltas) < 3:
        return None
    return Merge(0, 2) if paths_of(deltas)[-1].partition(".")[0][-1] in "01234567" else Base()


def _hooked(call: Callable[..., Any], phase: Phase, armed: Armed) -> Callable[..., Any]:
    def hooked(*args: Any, **kwargs: Any) -> Any:
        if phase.owner is Storage:  # half of the objects are deleted
            storage, paths = args
            paths = list(paths)
            if len(paths) > 1 and paths[0].rpartition("/")[0]:
                call(storage, paths[: len(paths) // 2])
                armed.die_in(phase)
            return call(storage, paths)
        if not phase.after:
            armed.die_in(phase)
        result = call(*args, **kwargs)
        if phase.after:
            armed.die_in(phase)
        return result

    return hooked
