"""What is left of a job that was cancelled, or refused."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import JobStatus, WatermarkStrategy
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.driver import job as job_module
from holdfast.runtime.driver.job import Job
from holdfast.runtime.driver.submission import submit
from holdfast.testing.executor import InProcessExecutor

from .inprocess import COMMIT_HOOK, LEDGERS, Lab, LedgerSink, SplitEnumerator, SplitSource

MEANWHILE: list[Callable[[], None]] = []
"""What happens when the third epoch is planned."""


@dataclass(frozen=True)
class StoppingSource(SplitSource):
    """Two epochs, and then nothing for a while."""

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        return StoppingEnumerator(self, job.generation)


class StoppingEnumerator(SplitEnumerator):
    plans = 0

    def plan(self, max_records: int) -> EpochInput:
        self.plans += 1
        if self.plans <= 2:
            return super().plan(1)
        while MEANWHILE:
            MEANWHILE.pop()()
        return EpochInput()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage = Storage.open(str(tmp_path / "checkpoints"))

    def build(env: Any) -> None:
        source = StoppingSource({"only": list(range(9))})
        env.from_source(source, WatermarkStrategy.no_watermarks(), "source").sink_to(LedgerSink("out"))

    config = {
        "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "rest.port": "0",
    }
    LEDGERS["out"].committed.clear()
    monkeypatch.setattr(
        job_module, "SparkExecutor", lambda spark, setup: InProcessExecutor(setup, storage, str(tmp_path / "disk"))
    )
    plan = Lab(build, tmp_path, parallelism=1, config=config).plan()
    yield Job(plan, SimpleNamespace(sparkContext=None), lambda _: plan)
    MEANWHILE.clear()
    COMMIT_HOOK.clear()


def restored(job: Job) -> Any:
    return CheckpointLog(job._storage, JobPaths.of("job")).take_over().restored


def outcome(job: Job) -> JobStatus:
    job.start()
    job._result.exception(60)
    return job.get_job_status().result()


def a_cancelled_job_leaves_nothing_if_that_is_asked_for(job):
    MEANWHILE.append(job.cancel)
    assert outcome(job) is JobStatus.CANCELED
    assert LEDGERS["out"].values == [0, 1]
    assert restored(job) is None


def the_checkpoints_stay_if_another_driver_has_taken_the_job_over(job, caplog):
    MEANWHILE.extend([job.cancel, lambda: restored(job)])
    assert outcome(job) is JobStatus.CANCELED
    assert restored(job) is not None
    assert "the checkpoints of the cancelled job 'job' are kept: another driver has the job" in caplog.text


def the_checkpoints_stay_if_their_output_could_not_be_committed(job, caplog):
    def broken(point: str) -> None:
        if point == "before commit" and LEDGERS["out"].values:
            raise HoldfastError("the brokers are away")

    COMMIT_HOOK["out"] = broken
    MEANWHILE.append(job.cancel)
    outcome(job)
    assert LEDGERS["out"].values == [0]
    assert len(restored(job).committables) == 1
    assert "the brokers are away" in caplog.text
    assert "starts again" not in caplog.text


class Refusing(LedgerSink):
    def validate(self) -> None:
        raise ConfigurationError("there is no such place")


def a_job_that_is_refused_leaves_no_directory_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def build(env: Any) -> None:
        env.from_source(SplitSource({"only": [1]}), WatermarkStrategy.no_watermarks(), "source").sink_to(Refusing("out"))

    with pytest.raises(ConfigurationError, match="no such place"):
        submit(Lab(build, tmp_path).plan(), SimpleNamespace(sparkContext=None), lambda _: Lab(build, tmp_path).plan())
    gc.collect()
    assert list(tmp_path.iterdir()) == []
