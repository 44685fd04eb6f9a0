"""Metadata written by the checkpoints of a large job: ten keyed operators with a hundred subtasks each.

Runs the real checkpoint log and retention on a directory; the state files are only referenced, not written. Every subtask
starts with 64 deltas, the maximum. Some epochs change nothing, some only event time and offsets, some one subtask in a
hundred, some all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from typing import Any

import msgspec

from holdfast.checkpoint.handles import ContainedFile, Handle
from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    OperatorCheckpoint,
    SourceState,
    SubtaskState,
)
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.keys.key_groups import key_group_range

SUBTASKS, OPERATORS, MOST_DELTAS = 100, 10, 64
SCHEMA = "00c0ffee00c0ffee"


class LargeJob:
    """The driver of a job with many keyed subtasks, reduced to its checkpoints."""

    def __init__(self, storage: Storage, deltas: int = 0) -> None:
        """``deltas``: the number per subtask at the start."""
        self.storage = storage
        self.paths = JobPaths.of("a large job")
        self.log = CheckpointLog(storage, self.paths)
        self.log.take_over()
        self.retention = Retention(storage, self.paths, self.log)
        self.random = random.Random(1)
        self.now = 1_700_000_000_000
        self.states = {
            f"operator-{o}": [self._fresh(f"operator-{o}", n, deltas) for n in range(SUBTASKS)] for o in range(OPERATORS)
        }

    def _delta(self, uid: str, n: int) -> ContainedFile:
        path = self.paths.state_file(1, Epoch(self.log.owned.next_id), uid, n, new_attempt(), "delta")
        return ContainedFile(path, self.random.randrange(1 << 20), self.random.randbytes(16))

    def _fresh(self, uid: str, n: int, deltas: int) -> SubtaskState:
        groups = key_group_range(128, SUBTASKS, n)
        files: list[Handle] = [self._delta(uid, n) for _ in range(deltas)]
        return SubtaskState([KeyedHandle(groups.first, groups.last, schema=SCHEMA, deltas=files)])

    def change(self, uid: str, n: int) -> None:
        """Let one subtask write a delta; at the maximum, a new base replaces its deltas."""
        (keyed,) = self.states[uid][n].keyed
        grown = msgspec.structs.replace(keyed, deltas=[*keyed.deltas, self._delta(uid, n)])
        self.states[uid][n] = SubtaskState([grown]) if len(grown.deltas) <= MOST_DELTAS else self._fresh(uid, n, 1)

    def change_some(self, count: int) -> None:
        """Let this many subtasks write a delta."""
        every = [(uid, n) for uid in self.states for n in range(SUBTASKS)]
        for uid, n in self.random.sample(every, count):
            self.change(uid, n)

    def advance(self) -> None:
        """Advance event time and the source's offsets."""
        self.now += 137

    def epoch(self) -> None:
        """Complete a checkpoint."""
        owned = self.log.owned
        operators = {
            uid: OperatorCheckpoint(
                uid,
                uid_given=True,
                parallelism=SUBTASKS,
                schemas={SCHEMA: {"version": 1}},
                subtasks=list(states),
                watermarks=[self.now - n % 7 for n in range(SUBTASKS)],
            )
            for uid, states in self.states.items()
        }
        source = SourceState({"offsets": {f"payments-{p}": self.now + p for p in range(SUBTASKS)}})
        self.log.complete(
            CheckpointMetadata(
                owned.next_id,
                owned.generation,
                "0123456789abcdef",
                "a large job",
                self.now,
                operators=operators,
                sources={"payments": source},
            )
        )


class Counted(Storage):
    """Counts the bytes and objects written."""

    bytes = objects = 0

    def put(self, path: str, data: Any) -> None:
        self._count(data)
        super().put(path, data)

    def put_new(self, path: str, data: Any) -> None:
        self._count(data)
        super().put_new(path, data)

    def _count(self, data: Any) -> None:
        self.bytes += len(data)
        self.objects += 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--epochs", type=int, default=50, help="epochs of each kind")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run epochs of each kind, in turn."""
    kinds = {"quiet": (False, 0), "time": (True, 0), "hundredth": (True, 10), "all": (True, SUBTASKS * OPERATORS)}
    figures: dict[str, Any] = {"label": "holdfast", "workload": "metadata"}
    with tempfile.TemporaryDirectory() as directory:
        storage = Counted.open(directory)
        job = LargeJob(storage, MOST_DELTAS)
        job.epoch()
        figures["whole_kib"] = round(storage.bytes / 1024, 1)
        for kind, (moves, changes) in kinds.items():
            written, taken = [], []
            for _ in range(options.epochs):
                if moves:
                    job.advance()
                job.change_some(changes)
                before, began = storage.bytes, time.process_time()
                job.epoch()
                job.retention.collect()
                taken.append(1000 * (time.process_time() - began))
                written.append((storage.bytes - before) / 1024)
            figures[f"{kind}_kib"] = round(statistics.mean(written), 1)
            figures[f"{kind}_most_kib"] = round(max(written), 1)
            figures[f"{kind}_cpu_ms"] = round(statistics.median(taken), 1)
        began = time.process_time()
        CheckpointLog(storage, job.paths).take_over()
        figures["take_over_cpu_ms"] = round(1000 * (time.process_time() - began), 1)
    return {**figures, "ok": figures["quiet_most_kib"] <= 32}
