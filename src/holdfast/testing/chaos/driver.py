"""A driver of a job under test: ``python -m holdfast.testing.chaos.driver SETTINGS.json``.

SIGTERM ends it in order; SIGINT cancels the job, for its standby drivers, too; SIGUSR1 changes the parallelism of the
running job, to 3, 1, 2, 3, ...

The settings:
    program: The module whose ``build(environment, settings)`` builds the job.
    job: The job's name.
    configuration: The job's configuration.
    width: The job's parallelism; 2 if it is missing.
    without_spark: Whether tasks run sequentially in this process, without Spark.
    step: The arguments of `act_at`: the storage or broker call at which the driver kills or stops itself.
    listing_lag_s: Seconds that the storage's listings lag.
    state_home: The directory of its records, if it is to know nothing of the other drivers of this machine.
    clock_shift_ms: Milliseconds by which this driver's clock is ahead of the machine's.

Exit codes: 0: stopped, or the input has ended; 3: another driver took over (`Fenced`); 1: any other failure.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment, stream_execution_environment
from holdfast.errors import Fenced, HoldfastError
from holdfast.runtime.driver import job
from holdfast.runtime.plan.task_messages import JobSetup
from holdfast.testing.chaos.processes import BEGUN, RESTARTS
from holdfast.testing.chaos.steps import act_at
from holdfast.testing.executor import InProcessExecutor
from holdfast.testing.faulty_storage import lag_listings

__all__ = ["FENCED", "main", "run_without_spark"]

FENCED = 3

_log = logging.getLogger("holdfast.chaos")


def main(arguments: list[str]) -> int:
    """Run the job until it ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    if settings.get("without_spark"):
        run_without_spark(settings["configuration"])
    if lag := settings.get("listing_lag_s"):
        lag_listings(lag)
    if home := settings.get("state_home"):
        os.environ["XDG_STATE_HOME"] = home
    if shift := settings.get("clock_shift_ms"):
        _shift_clock(shift)
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings["configuration"]))
    env.set_parallelism(settings.get("width", 2))
    importlib.import_module(settings["program"]).build(env, settings)
    if step := settings.get("step"):
        act_at(**step)
    try:
        _log.info(BEGUN)
        client: Any = env.execute_async(settings["job"])
        signal.signal(signal.SIGTERM, lambda signum, frame: client._interrupt())
        signal.signal(signal.SIGINT, lambda signum, frame: client.cancel())
        widths = itertools.cycle((3, 1, 2))
        signal.signal(signal.SIGUSR1, lambda signum, frame: _rescale(client, next(widths)))
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


def _rescale(client: Any, width: int) -> None:
    """Ask for another parallelism, in a thread: a signal's handler must not wait."""

    def ask() -> None:
        try:
            client.rescale(width).result()
        except HoldfastError as error:  # the job ends, or another change is under way
            _log.warning("not rescaled to %d: %s", width, error)

    threading.Thread(target=ask, name="rescale", daemon=True).start()


def _tell_restarts(metrics: Any) -> None:
    told = 0
    while True:
        restarts = int(metrics.snapshot().values["numRestarts"])
        if restarts > told:
            told = restarts
            _log.info("%s%d", RESTARTS, restarts)
        time.sleep(0.05)


def run_without_spark(config: dict[str, str]) -> None:
    """Run the job's tasks in this process: drivers start within a second, so many can be killed per minute."""

    def executor(context: Any, setup: JobSetup) -> InProcessExecutor:
        storage = Storage.open(config["execution.checkpointing.dir"], config)
        return InProcessExecutor(setup, storage, os.path.join(config["io.tmp.dirs"], "in-process"))

    setattr(job, "spark_context", lambda name, config: None)  # noqa: B010 -- this seam exists only for the campaign
    setattr(stream_execution_environment, "begin_spark", lambda name, config: None)  # noqa: B010
    setattr(job, "SparkExecutor", executor)  # noqa: B010


def _shift_clock(shift_ms: int) -> None:
    """Shift this process's wall clock, as seen by Python."""
    seconds, nanoseconds = time.time, time.time_ns
    setattr(time, "time", lambda: seconds() + shift_ms / 1000)  # noqa: B010
    setattr(time, "time_ns", lambda: nanoseconds() + shift_ms * 1_000_000)  # noqa: B010


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
