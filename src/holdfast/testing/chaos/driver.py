"""A driver of a job under test: ``python -m holdfast.testing.chaos.driver SETTINGS.json``; SIGTERM stops it in order.

The settings:
    program: The module whose ``build(environment, settings)`` makes the job.
    job: The job's name.
    configuration: The job's configuration.
    without_spark: Whether tasks run in this process, one after the other, without Spark.
    step: The arguments of `act_at`: at which step of its work with storage and brokers it kills or stops itself.
    listing_lag_s: For how long what is new in the storage is not shown by its listings.
    clock_shift_ms: How far this driver's clock is ahead of the machine's.

Exits with 0 when it was stopped or its input has ended, 3 when another driver took over (`Fenced`), 1 for any other
failure.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.checkpoint.storage import Storage
from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment, stream_execution_environment
from holdfast.errors import Fenced
from holdfast.runtime import job
from holdfast.runtime.task_messages import JobSetup
from holdfast.testing.chaos.processes import BEGUN, RESTARTS
from holdfast.testing.chaos.steps import act_at
from holdfast.testing.executor import InProcessExecutor
from holdfast.testing.faulty_storage import lag_listings

__all__ = ["FENCED", "main"]

FENCED = 3

_log = logging.getLogger("holdfast.chaos")


def main(arguments: list[str]) -> int:
    """Run the job until it ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    if settings.get("without_spark"):
        _run_without_spark(settings["configuration"])
    if lag := settings.get("listing_lag_s"):
        lag_listings(lag)
    if shift := settings.get("clock_shift_ms"):
        _shift_clock(shift)
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings["configuration"]))
    env.set_parallelism(2)
    importlib.import_module(settings["program"]).build(env, settings)
    if step := settings.get("step"):
        act_at(**step)
    try:
        _log.info(BEGUN)
        client: Any = env.execute_async(settings["job"])
        signal.signal(signal.SIGTERM, lambda signum, frame: client.cancel())
        threading.Thread(target=_tell_restarts, args=(client.metrics,), name="restarts", daemon=True).start()
        client.get_job_execution_result().result()
    except Fenced as error:
        _log.error("the job has another driver: Fenced: %s", error)
        return FENCED
    except Exception:
        _log.exception("the job failed")
        return 1
    _log.info("the job has ended")
    return 0


def _tell_restarts(metrics: Any) -> None:
    told = 0
    while True:
        restarts = int(metrics.snapshot().values["numRestarts"])
        if restarts > told:
            told = restarts
            _log.info("%s%d", RESTARTS, restarts)
        time.sleep(0.05)


def _run_without_spark(config: dict[str, str]) -> None:
    """Let the job run its tasks in this process: drivers start in a second, so that many can be killed in a minute."""

    def executor(context: Any, setup: JobSetup) -> InProcessExecutor:
        storage = Storage.open(config["execution.checkpointing.dir"], config)
        return InProcessExecutor(setup, storage, os.path.join(config["io.tmp.dirs"], "state"))

    setattr(job, "spark_context", lambda name, config: None)  # noqa: B010 -- the seam is there for this alone
    setattr(stream_execution_environment, "begin_spark", lambda name, config: None)  # noqa: B010
    setattr(job, "SparkExecutor", executor)  # noqa: B010


def _shift_clock(shift_ms: int) -> None:
    """Set this process's wall clock, as far as Python sees it."""
    seconds, nanoseconds = time.time, time.time_ns
    setattr(time, "time", lambda: seconds() + shift_ms / 1000)  # noqa: B010
    setattr(time, "time_ns", lambda: nanoseconds() + shift_ms * 1_000_000)  # noqa: B010


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
