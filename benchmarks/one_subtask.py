"""The context of an operator that is measured by itself, in this process, as the only subtask."""

from __future__ import annotations

from typing import Any

from holdfast.connectors.base import JobInfo
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.time.clock import Clock
from holdfast.state.rows.keyed_state import KeyedState

__all__ = ["one_subtask"]


def one_subtask(clock: Clock, state: KeyedState | None, **others: Any) -> OperatorContext:
    """The context; ``others``: further fields of `OperatorContext`."""
    return OperatorContext(
        job=JobInfo("benchmark", "benchmark", 1, ""),
        uid="benchmark",
        name="benchmark",
        subtask=0,
        parallelism=1,
        max_parallelism=128,
        clock=clock,
        state=state,
        metrics=MetricGroup(),
        **others,
    )
