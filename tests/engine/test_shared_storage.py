"""Tasks and the driver must have one and the same storage."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import JobInfo
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink, JsonLinesEncoder
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import JobSetup
from holdfast.testing.executor import InProcessExecutor

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource


def counting(env):
    source = env.from_source(SplitSource({"a": [1, 2, 3]}), WatermarkStrategy.no_watermarks(), "numbers")
    source.key_by(lambda n: n).map(lambda n: n * 10).sink_to(LedgerSink("shared"))


@pytest.mark.parametrize("shared", [True, False])
def a_directory_that_every_host_has_for_itself_is_refused(tmp_path, shared):
    LEDGERS["shared"].committed.clear()
    lab = Lab(counting, tmp_path, ledgers=("shared",))
    driver = lab.coordinator()
    elsewhere = Storage.open(str(tmp_path / "elsewhere"))

    executors = []

    def executor(job: JobInfo, plan: JobPlan) -> InProcessExecutor:
        setup = JobSetup(plan, job, "start", driver._log.owned.takeovers[-1])
        executors.append(InProcessExecutor(setup, lab.storage if shared else elsewhere, str(lab.disk)))
        return executors[-1]

    driver._make_executor = executor
    if shared:
        driver.run()
        assert sorted(LEDGERS["shared"].values) == [10, 20, 30]
    else:
        with pytest.raises(
            ConfigurationError, match=r"is not there on host .*: execution\.checkpointing\.dir must be storage"
        ):
            driver.run()
        assert not list(elsewhere.list("")), "refused before anything is written"
    for each in executors:
        each.close()


def a_file_sinks_directory_that_every_host_has_for_itself_ends_the_job(tmp_path, monkeypatch, caplog):
    """No restart: the next driver could not tell a file that never was here from one that has been taken away."""
    flat = BucketAssigner.base_path_bucket_assigner()
    other_host = FileSink(str(tmp_path / "other host"), JsonLinesEncoder(), bucket_assigner=flat)
    create_writer = FileSink.create_writer
    monkeypatch.setattr(FileSink, "create_writer", lambda self, context: create_writer(other_host, context))

    def writing(env):
        source = env.from_source(SplitSource({"a": [1, 2, 3]}), WatermarkStrategy.no_watermarks(), "numbers")
        source.sink_to(FileSink(str(tmp_path / "out"), JsonLinesEncoder(), bucket_assigner=flat))

    lab = Lab(writing, tmp_path, budget=1)
    with pytest.raises(ConfigurationError, match=r"the prepared file is not there; is .*out the same directory"):
        lab.run()
    lab.close()
    assert "starts again" not in caplog.text
