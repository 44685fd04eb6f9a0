"""Faults of disks: lost files, damaged files, no space."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from holdfast.checkpoint.entries import Completed, decode_entry
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.manifests import load
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.backends.backend import ROCKSDB, clip
from holdfast.state.keys.key_groups import key_group_range
from holdfast.state.snapshots.sst import shared, verified_files
from holdfast.testing.chaos.faults.processes import one_of
from holdfast.testing.chaos.stage import Stage

__all__ = ["damage", "delete_stores", "fill_disk"]

_TELL_S = 240.0


def delete_stores(stage: Stage) -> str:
    """Delete the local stores, possibly together with killing a task slot."""
    shutil.rmtree(stage.state_directory, ignore_errors=True)
    pids = one_of(stage, "slot") if stage.random.random() < 0.5 else []
    stage.driver.kill(*pids)
    return f"local stores deleted{f', slot {pids} killed' if pids else ''}"


def fill_disk(stage: Stage) -> str:
    """Fill the disk of checkpoints and local stores for a while."""
    ballast = stage.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    killed = ""
    if stage.random.random() < 0.4:
        stage.driver.kill(*one_of(stage, "slot"))
        killed = ", a slot killed meanwhile"
    stage.pause(2.0, 10.0)
    ballast.unlink()
    return f"disk was full for a while{killed}"


def damage(stage: Stage) -> str:
    """Flip a bit in a file that the next driver must read. The driver must name it; once repaired, the job continues."""
    stage.kill_driver()
    stage.driver.kill_all()
    shutil.rmtree(stage.state_directory, ignore_errors=True)
    victim = _needed_file(stage)
    intact = victim.read_bytes()
    at = stage.random.randrange(len(intact))
    victim.write_bytes(intact[:at] + bytes([intact[at] ^ (1 << stage.random.randrange(8))]) + intact[at + 1 :])
    stage.expected_stop = victim.name
    driver = stage.start_driver()
    if not stage.until(lambda: victim.name in driver.log(), _TELL_S):
        stage.violation(f"{victim} was damaged at byte {at}, but driver {driver.number} does not report it")
    victim.write_bytes(intact)
    if stage.driver.exit_code is not None or stage.driver is not driver:
        stage.pause(0.3, 0.3)
    stage.recovered()
    stage.expected_stop = ""
    return f"{victim.name} damaged at byte {at}, named by driver {driver.number}, put back"


def _needed_file(stage: Stage) -> Path:
    """Choose a file of the newest checkpoint or its log entry, but no file that a restore does not need as a whole."""
    storage = Storage.open(os.fspath(stage.checkpoints.parent))
    for path in sorted((stage.checkpoints / "log").iterdir(), reverse=True):
        entry = decode_entry(path.read_bytes(), str(path))
        if isinstance(entry, Completed):
            checkpoint = load(storage, entry.checkpoint).checkpoint
            files = {file.path for file in checkpoint.files()} - _unverified(storage, checkpoint)
            return stage.random.choice([*(stage.checkpoints.parent / file for file in sorted(files)), path])
    raise FileNotFoundError(os.fspath(stage.checkpoints))


def _unverified(storage: Storage, checkpoint: CheckpointMetadata) -> set[str]:
    """The files of bases that a restore does not verify: their rows were deleted, or most are of other key groups."""
    every: set[str] = set()
    verified: set[str] = set()
    for operator in checkpoint.operators.values():
        for number, subtask in enumerate(operator.subtasks):
            groups = key_group_range(operator.max_parallelism, operator.parallelism, number)
            for handle in subtask.keyed:
                if handle.kind == ROCKSDB:
                    every.update(file.path for file in handle.base if isinstance(file, RawFile) and shared(file.name))
                    verified.update(file.path for file in verified_files(storage, handle, clip(handle, groups)))
    return every - verified
