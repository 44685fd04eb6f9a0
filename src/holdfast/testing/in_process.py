"""InProcessEnvironment: runs programs in this process, on the job's engine, without Spark and its JVM."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.common.config_options import PipelineOptions, RestartOptions
from holdfast.common.configuration import Configuration
from holdfast.common.job_client import JobClient
from holdfast.datastream.operations.job_names import started
from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.testing.clock import VirtualClock

if TYPE_CHECKING:
    from holdfast.runtime.driver.job import Job
    from holdfast.runtime.plan.plan import JobPlan

__all__ = ["InProcessEnvironment"]

_BACKOFF = RestartOptions.EXPONENTIAL_INITIAL.key


class InProcessEnvironment(StreamExecutionEnvironment):
    """An environment whose jobs run in this process.

    Coordinator, tasks, state, checkpoints, restarts and connectors are those of a job on Spark; the tasks of an epoch run
    one after the other. Unless a restart strategy is set, a failed job restarts without delay. Each subtask has its own
    copy of the functions, as on Spark: collect results with ``execute_and_collect``, not in a list that a function appends
    to.

    Args:
        configuration: The settings, under Flink's keys. With ``execution.checkpointing.dir`` a later program of the same
            name resumes.
        clock: The processing time of the jobs; None: the machine's.

    Examples:
        >>> env = InProcessEnvironment()
        >>> doubled = env.from_collection([1, 2, 3]).map(lambda n: 2 * n)
        >>> with doubled.execute_and_collect() as results:
        ...     list(results)
        [2, 4, 6]
    """

    def __init__(self, configuration: Configuration | None = None, *, clock: VirtualClock | None = None) -> None:
        super().__init__(configuration)
        self.clock = clock
        if not self._configuration.contains_key(PipelineOptions.PARALLELISM.key):
            self.set_parallelism(1)
        if not self._configuration.contains_key(_BACKOFF):
            self._configuration.set_string(_BACKOFF, "1 ms")

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the program in this process and return at once; see `StreamExecutionEnvironment.execute_async`."""
        plan = self._plan(job_name)
        job = _job(plan, self._replan(plan), self.clock)
        self._operators.clear()
        job.start()
        started(plan)
        return job


def _job(plan: JobPlan, replan: Callable[[int], JobPlan], clock: VirtualClock | None) -> Job:
    # Imports PySpark, which harnesses do not need; its JVM is not started.
    from holdfast.runtime.driver.coordinator import ClosableExecutor
    from holdfast.runtime.driver.job import Job
    from holdfast.runtime.plan.task_messages import JobSetup
    from holdfast.testing.executor import InProcessExecutor

    class Executor(InProcessExecutor):
        """Runs epochs on a local disk of its own."""

        def __init__(self, setup: JobSetup, storage: Any) -> None:
            self._disk = tempfile.mkdtemp(prefix="holdfast-in-process-")
            if clock is None:
                super().__init__(setup, storage, self._disk)
            else:
                super().__init__(setup, storage, self._disk, lambda: clock.now() / 1000)

        def close(self, successor: JobPlan | None = None) -> None:
            """End all operators, and remove the disk."""
            super().close(successor)
            shutil.rmtree(self._disk, ignore_errors=True)

    class InProcessJob(Job):
        """A job in this process."""

        def _begin(self, session: Any, uri: str, continues: bool) -> None:
            """Start nothing."""

        def _cores(self) -> int:
            return os.cpu_count() or 1

        def _tasks(self) -> None:
            """There is no Spark."""

        def _new_executor(self, setup: JobSetup) -> ClosableExecutor:
            return Executor(setup, self._storage)

        _clocks: Mapping[str, Callable[[], Any]] = (
            {} if clock is None else {"wall_clock": clock.now, "virtual_seconds": lambda: clock.now() / 1000}
        )

        def _new_presence(self) -> None:
            """Show nothing: there is no REST server."""

    return InProcessJob(plan, None, replan)
