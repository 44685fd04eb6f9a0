"""A job whose checkpoints are in S3: calls fail, answers are lost, drivers die, hosts lose their disks, rescaled."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import compactions
import holdfast.state.backends.rocksdb
import holdfast.state.backends.upkeep
import holdfast.state.snapshots.lazy_files
import holdfast.state.snapshots.lazy_restore
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.retention import Retention, referenced
from holdfast.checkpoint.savepoint import read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime.driver.savepoints import StartFromSavepoint, new_savepoint
from holdfast.state.stored.delta_files import verify_contents
from s3_fixtures import Relay

from .inprocess import CRASH_POINTS, LEDGERS, Lab
from .programs import records, sessions, sessions_model
from .test_same_results import config, visible
from .test_savepoints import at_epoch


class Faults:
    """By chance, requests are refused with 503, or their answers are lost."""

    def __init__(self, seed: int, rate: float) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self.injected = 0

    def pop(self, _: int) -> str:
        if self._random.random() >= self._rate:
            return ""
        self.injected += 1
        return self._random.choice(["503", "lost"])


@dataclass
class LabOnS3(Lab):
    bucket: dict[str, str] = field(default_factory=dict)
    scheme: str = "s3"

    @property
    def storage(self) -> Storage:
        account = "@devstoreaccount1.dfs.core.windows.net" if self.scheme == "abfss" else ""
        return Storage.open(f"{self.scheme}://checkpoints{account}/{self.directory.name}", self.bucket)

    def _start_from(self, log: CheckpointLog, storage: Storage, paths: JobPaths) -> StartFromSavepoint | None:
        if not self.savepoint:
            return None
        return StartFromSavepoint.unless_started(log.started_from(), self.savepoint, self.bucket, storage, paths, self.claim)


@pytest.mark.parametrize(("scheme", "backend"), [("s3", "rocksdb"), ("gs", "hashmap"), ("abfss", "rocksdb")])
def a_job_on_s3_loses_and_repeats_nothing_although_calls_fail_and_answers_are_lost(
    scheme: str, backend: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, bucket = request.getfixturevalue({"s3": "relay", "gs": "google", "abfss": "azure"}[scheme])
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(seed))
    # Epochs run while files of a base are being fetched.
    monkeypatch.setattr(holdfast.state.snapshots.lazy_restore, "_LARGE", 0)
    monkeypatch.setattr(holdfast.state.snapshots.lazy_files, "_LEAST", 1)
    data = records(seed, 300, keys=20)
    LEDGERS["out"].committed.clear()
    job = LabOnS3(sessions(data, cut=40), tmp_path, budget=40, config=config(backend, "64"), bucket=bucket, scheme=scheme)
    handler.faults = faults = Faults(seed, 0.08)
    try:
        for point in draw.sample(CRASH_POINTS, 4):
            if job._run_until(point, draw.randint(1, 2)):
                break
            if draw.random() < 0.5:
                shutil.rmtree(job.disk, ignore_errors=True)
            job.parallelism = draw.randint(1, 3)
        job.run()
    finally:
        job.close()
        handler.faults = []
    assert visible() == sessions_model(data)
    assert faults.injected
    paths = JobPaths.of("job")
    log = CheckpointLog(job.storage, paths, 3)
    log.take_over()
    Retention(job.storage, paths, log).sweep()
    for checkpoint in log.owned.retained:
        verify_contents(job.storage, checkpoint)
    assert set(job.storage.list(paths.state_prefix)) == referenced(log.owned.retained)


def a_job_moves_by_a_savepoint_on_s3_although_calls_fail_and_answers_are_lost(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    handler, bucket = request.getfixturevalue("relay")
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    data = records(seed, 300, keys=20)
    LEDGERS["out"].committed.clear()
    settings = {**config("rocksdb", "64"), **bucket}
    first, second = (
        LabOnS3(sessions(data, cut=40), tmp_path / f"{tmp_path.name}-{n}", n, 40, settings, bucket=bucket) for n in (2, 3)
    )
    handler.faults = faults = Faults(seed, 0.08)
    try:
        coordinator = first.coordinator()
        asked = []
        uri = new_savepoint(f"s3://checkpoints/{tmp_path.name}-savepoints", "abcdef0123", bucket)
        at_epoch(coordinator, 4, lambda: asked.append(coordinator.request_savepoint(uri, stop=True, drain=False)))
        coordinator.run()
        (savepoint,) = asked
        second.savepoint = savepoint.result(timeout=0)
        second.run([("after complete", 2), ("before complete", 2)])
    finally:
        handler.faults = []
        first.close()
        second.close()
    assert visible() == sessions_model(data)
    assert faults.injected > 0
    whole = read_savepoint(second.savepoint, bucket)
    verify_contents(whole.storage, whole.savepoint.checkpoint)


@pytest.mark.parametrize("parallelism", [1, 4])
def a_checkpoint_of_little_state_is_one_request(
    parallelism: int, relay: tuple[type[Relay], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at the emulator, from the tenth epoch to the last but two."""
    handler, bucket = relay
    requests: list[str] = []
    monkeypatch.setattr(handler, "watch", staticmethod(lambda request, done: done or requests.append(request)))
    LEDGERS["out"].committed.clear()
    settings = {"state.backend.type": "rocksdb"}
    job = LabOnS3(
        sessions(records(7, 900, keys=50), cut=20), tmp_path, parallelism, budget=20, config=settings, bucket=bucket
    )
    job.run()
    job.close()
    entries = [at for at, request in enumerate(requests) if re.match(r"PUT .*/log/\d+$", request)]
    steady = requests[entries[9] : entries[-2]]
    puts = [request for request in steady if request.startswith("PUT ")]
    epochs = len(entries) - 11
    assert epochs > 50
    assert len(puts) <= 1.1 * epochs, "an entry each, and now and then merged deltas"
    deletes = [request for request in steady if re.match(r"POST [^?]*\?delete", request)]
    assert len(deletes) <= epochs
    assert not [request for request in steady if request not in (*puts, *deletes)], "no GET, HEAD or LIST"
