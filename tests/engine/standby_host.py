"""A host with standby copies of a job's state, which may become the job's host."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from typing import Any

from holdfast.checkpoint.changelog import ChangelogSettings
from holdfast.checkpoint.paths import safe_name
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.changelogs.standby_copy import StandbyCopy
from holdfast.state.keys.key_groups import key_group_range

from .changelog_model import Broker

ROCKSDB = StateBackendSettings.of({}).rocksdb
MOST = 128


class StandbyHost:
    """Another host with standby copies of all subtasks. It looks at the log whenever a transaction is prepared or ends."""

    def __init__(self, broker: Broker, root: Path, parallelism: int, seed: int = 0, chance: float = 1.0) -> None:
        self.broker = broker
        self.root = root
        self.parallelism = parallelism
        self.chance = chance
        self.random = random.Random(seed)
        self.copies: dict[tuple[str, int], StandbyCopy] = {}
        self.lock = threading.Lock()  # a job commits in a thread of its own
        broker.watch = self.look

    def look(self) -> None:
        with self.lock:
            for uid in list(self.broker.topics):
                for number in range(self.parallelism):
                    if self.random.random() < self.chance:
                        left = self.random.choice([0, 1, 2, 1000])
                        self.copy(uid, number).catch_up(self.stop_after(left) if self.chance < 1 else lambda: False)

    @staticmethod
    def stop_after(steps: int) -> Any:
        left = iter([False] * steps)
        return lambda: next(left, True)

    def copy(self, uid: str, number: int) -> StandbyCopy:
        if (uid, number) not in self.copies:
            changelog = self.broker.changelog(ChangelogSettings({}), "job", uid, MOST)
            groups = key_group_range(MOST, self.parallelism, number)
            directory = str(self.root / f"{safe_name(uid)}-{number}")
            self.copies[uid, number] = StandbyCopy(directory, ROCKSDB, changelog.follow, groups, MOST)
        return self.copies[uid, number]

    def become(self, disk: Path, *, killed: bool) -> None:
        """Be the host of the job from now on: by order, or after `kill -9` of the copies' processes."""
        with self.lock:
            self.broker.watch = lambda: None
            if killed:  # files that a process is writing are what it leaves if it dies now
                shutil.rmtree(disk, ignore_errors=True)
                shutil.copytree(self.root, disk)
            for copy in self.copies.values():
                copy.close()
            if not killed:
                shutil.rmtree(disk, ignore_errors=True)
                shutil.copytree(self.root, disk)
            self.copies.clear()
