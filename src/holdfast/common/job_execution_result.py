"""JobExecutionResult, the outcome of a finished job."""

from __future__ import annotations

from typing import Any

from holdfast.common.job_id import JobID

__all__ = ["JobExecutionResult"]


class JobExecutionResult:
    """The outcome of a job that finished without an error.

    Args:
        job_id: the job's id.
        net_runtime: how long it ran, in ms.
    """

    def __init__(self, job_id: JobID, net_runtime: int) -> None:
        self._job_id = job_id
        self._net_runtime = net_runtime

    def get_job_id(self) -> JobID:
        """The job's id."""
        return self._job_id

    def get_net_runtime(self) -> int:
        """How long the job ran, in ms."""
        return self._net_runtime

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """Always None: Holdfast has no accumulators."""
        return self.get_all_accumulator_results().get(accumulator_name)

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """Always empty: Holdfast has no accumulators."""
        return {}

    def __repr__(self) -> str:
        return f"JobExecutionResult(job_id={self._job_id}, net_runtime={self._net_runtime} ms)"
