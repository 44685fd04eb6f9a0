"""What connectors keep beside the checkpoints is where the checkpoints are."""

from __future__ import annotations

from types import SimpleNamespace

from holdfast.connectors.job_files import JobFiles
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.driver.job import Job


def a_connector_reaches_the_storage_by_the_settings_of_the_job(s3_config, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    settings = {**s3_config, "execution.checkpointing.dir": "s3://checkpoints/jobs"}
    for key, value in settings.items():
        env._configuration.set_string(key, value)
    env.from_collection([1]).print()
    plan = env._plan("job")
    job = Job(plan, SimpleNamespace(sparkContext=None), lambda parallelism: plan)._coordinator._make_job(1)
    files = JobFiles(job, "sinks", "out")
    files.put("a", b"kept")
    assert files.get("a") == b"kept"
    assert s3_config["s3.secret-key"] not in repr(job)
