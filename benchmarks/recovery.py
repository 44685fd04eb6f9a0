"""Measures how long the state of one subtask takes to come back: from the checkpoint's files, and from its changelog.

Runs the real state backend on a directory, with a real broker. Rows of an incompressible kilobyte are written over some
epochs; later epochs change one row in a hundred. Then the state is restored: with the local store kept, or deleted; with a
changelog, with the local copy kept, with a copy that lacks the latest epochs, without one, or from a standby copy that has
followed the changelog but for the last epoch.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.checkpoint.changelog import ChangelogSettings
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.connectors.base import Committable, JobInfo
from holdfast.connectors.kafka.changelogs.changelog import KafkaChangelog
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.backends.backend import Place, StateBackendSettings
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.changelogs.standby_copy import StandbyCopy
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.testing.kafka import KafkaBroker

GROUPS = 128
UID = "op:changelog"
BEHIND = 3
"""Epochs that the copy "behind" lacks."""
STANDBY = "standby-host"


class Subtask:
    """The keyed state of one subtask, epoch by epoch."""

    def __init__(self, directory: Path, changelog: KafkaChangelog | None, name: str) -> None:
        self.uploads = ThreadPoolExecutor(1)
        self.disk = directory / name
        self._storage = Storage.open(str(directory / f"storage-{changelog is not None}"))
        self._job = JobInfo("bench", "bench", 1, None)
        self._changelog = changelog
        self._committer = None if changelog is None else changelog.create_committer(self._job, UID)
        self.epoch = 0

    def open(self, handles: Any, schema: Any) -> float:
        """Restore; returns the seconds."""
        began = time.perf_counter()
        log = None if self._changelog is None else self._changelog.open(self._job, UID, 0)
        place = Place("'op'", KeyGroupRange(0, GROUPS - 1), GROUPS, self._storage, str(self.disk), log)
        self.backend = KeyedStateBackend(place, StateBackendSettings.of({}), self.uploads)
        self.space = self.backend.open(handles, schema).space("keyed")
        self.value = self.space.get_state(ValueStateDescriptor("value", Types.PICKLED_BYTE_ARRAY()))
        self.backend.replay()
        self.space.table().load([0])
        return time.perf_counter() - began

    def run_epoch(self, keys: list[int], pick: random.Random) -> float:
        """Change these keys in an epoch; returns the seconds of its end."""
        self.epoch += 1
        epoch = Epoch(self.epoch)
        self.backend.begin_epoch(epoch, CheckpointId(self.epoch - 1))
        for key, row in zip(keys, self.space.table().load(keys)):
            self.space.row = row
            self.value.update(key.to_bytes(8, "big") + pick.randbytes(1016))

        def new_path(kind: str) -> str:
            return JobPaths.of("recovery").state_file(1, epoch, "op", 0, new_attempt(), kind)

        began = time.perf_counter()
        self.handles = self.backend.snapshot(new_path)
        committables = [Committable(UID, 0, data) for data in self.backend.prepare_commit(self.handles)]
        seconds = time.perf_counter() - began
        if self._committer is not None:
            self._committer.commit(committables)
        self.backend.completed(self.handles, epoch, new_path)
        return seconds

    def close(self) -> None:
        """Close the state; files stay."""
        self.backend.close()
        if self._committer is not None:
            self._committer.close()
        self.uploads.shutdown()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=40)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Write the state with and without a changelog, and restore it."""
    figures: dict[str, Any] = {"label": "holdfast", "workload": "recovery", "state_mb": round(options.keys * 1024 / 1e6)}
    with tempfile.TemporaryDirectory() as name, KafkaBroker() as broker:
        directory = Path(name)
        topic = KafkaChangelog(ChangelogSettings({"bootstrap.servers": broker.bootstrap_servers}, 8), "bench", "op", GROUPS)
        topic.validate()
        for kind, changelog in (("files", None), ("changelog", topic)):
            subtask, schema, ends, standby = _write(directory, changelog, options)
            figures[f"{kind}_epoch_ms"] = round(sorted(ends)[len(ends) // 2] * 1000, 1)
            handles = subtask.handles
            for case in ("kept", "behind", "standby", "deleted") if standby is not None else ("kept", "deleted"):
                host, seconds = subtask.disk.name, 0.0
                if case == "behind":
                    shutil.rmtree(subtask.disk)
                    shutil.copytree(directory / "behind", subtask.disk)
                elif case == "standby" and standby is not None:
                    host, seconds = STANDBY, _give_up(standby)
                elif case == "deleted":
                    shutil.rmtree(subtask.disk)
                again = Subtask(directory, changelog, host)
                figures[f"{kind}_{case}_s"] = round(seconds + again.open(handles, schema), 2)
                _check(again, options.keys)
                again.close()
    return figures


def _give_up(standby: StandbyCopy) -> float:
    """Let the subtask have the copy; returns the seconds."""
    began = time.perf_counter()
    standby.close()
    return time.perf_counter() - began


def _write(
    directory: Path, changelog: KafkaChangelog | None, options: argparse.Namespace
) -> tuple[Subtask, Any, list[float], StandbyCopy | None]:
    """Write the state; returns the subtask, its schema, the seconds of the later epochs' ends, and the standby copy."""
    pick = random.Random(1)
    standby = None
    if changelog is not None:
        settings, groups = StateBackendSettings.of({}).rocksdb, KeyGroupRange(0, GROUPS - 1)
        standby = StandbyCopy(str(directory / STANDBY), settings, changelog.follow, groups, GROUPS)
    subtask = Subtask(directory, changelog, "changelog-host" if changelog is not None else "files-host")
    subtask.open([], None)
    filling = 20
    for start in range(filling):
        subtask.run_epoch(list(range(start * options.keys // filling, (start + 1) * options.keys // filling)), pick)
    ends = []
    for number in range(options.epochs):
        if number == options.epochs - BEHIND and changelog is not None:
            # A running store's files are those of a crash: the copy continues from what they hold.
            shutil.copytree(subtask.disk, directory / "behind")
        if number == options.epochs - 1 and standby is not None:
            standby.catch_up(lambda: False)
        ends.append(subtask.run_epoch(pick.sample(range(options.keys), options.keys // 100), pick))
    schema = subtask.backend.state.schema
    subtask.close()
    return subtask, schema, ends, standby


def _check(subtask: Subtask, keys: int) -> None:
    for start in range(0, keys, 10_000):
        mine = list(range(start, min(start + 10_000, keys)))
        rows = subtask.space.table().load(mine)
        if not all(row[1] is not None and bytes(row[1][:8]) == key.to_bytes(8, "big") for key, row in zip(mine, rows)):
            raise AssertionError("rows are missing")
