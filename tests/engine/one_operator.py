"""One keyed operator without a job around it."""

from __future__ import annotations

from typing import Any

from holdfast.connectors.base import JobInfo
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.operator import Operator, OperatorFactory
from holdfast.runtime.time.clock import Clock
from holdfast.state.rows.keyed_state import KeyedState


def opened(factory: OperatorFactory) -> tuple[Operator, Clock, KeyedState, list[Any]]:
    """The operator, its clock and state, and the list that its results go to, with their timestamps."""
    state, clock = KeyedState("operator"), Clock()
    results: list[Any] = []
    operator = factory.create()
    operator.context = OperatorContext(
        job=JobInfo("j", "job", 1, ""),
        uid="operator",
        name="operator",
        subtask=0,
        parallelism=1,
        max_parallelism=128,
        clock=clock,
        state=state,
        metrics=MetricGroup(),
        emit=lambda batch: results.extend(zip(batch.values, batch.stamps())),
    )
    operator.open()
    return operator, clock, state, results
