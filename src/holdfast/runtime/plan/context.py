"""OperatorContext: the outputs, time, state, timers and metrics of an operator and its functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import JobInfo
from holdfast.functions.function import RuntimeContext
from holdfast.metrics.stats import LateRecord
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.records.copies import Copy, copied
from holdfast.runtime.records.records import Emit, RecordBatch
from holdfast.runtime.records.samples import shown
from holdfast.runtime.time.clock import Clock, Passing
from holdfast.state.api.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.api.interfaces import AggregatingState, ListState, MapState, ReducingState, ValueState
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.space import StateSpace

__all__ = ["OperatorContext", "UserRuntimeContext"]


_LATE_KEPT = 3
"""The most late records that a subtask reports per epoch."""


def _nowhere(batch: RecordBatch) -> None:
    """Drop output that has no receiver."""


@dataclass
class OperatorContext:
    """The context of one operator in one subtask."""

    job: JobInfo
    uid: str
    name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    clock: Clock
    state: KeyedState | None
    """Keyed state and timers; None for an operator without keyed state."""
    metrics: MetricGroup
    key_type: TypeInformation | None = None
    """The type of the keys, if it must be restored (`Chained.restored_key_type`)."""
    lists: ListedStates | None = None
    """Listed state; None for an operator without listed state."""
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 0
    copied: Copy = copied
    """Copies an emitted value, unless it is immutable or object reuse is enabled."""
    emit: Emit = _nowhere
    side_outputs: dict[str, Emit] = field(default_factory=dict)
    deadlines: Sequence[Callable[[int], int]] = ()
    """For watermark generators: the deadlines of downstream operators."""
    watermark_interval: int = 0
    """For users' watermark generators: ``pipeline.auto-watermark-interval`` in ms."""
    emitted: Passing = field(default_factory=Passing)
    """The records that it emits, and their lateness: its input's, unless it generates or holds watermarks."""
    forward_watermark: Callable[[int], None] = lambda watermark: None
    """Send a generated watermark downstream."""
    forward_idle: Callable[[bool, bool], None] = lambda idle, held: None
    """Tell the operators downstream what `Operator.take_idle` tells an operator."""
    asked: int | None = None
    """When the sources were asked for the epoch's input, in ms of the driver's monotonic clock; None: not yet."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Warnings for the user, by subject; the driver logs them after the epoch."""

    def warn(self, subject: str, text: str) -> None:
        """Warn the job's user, once per subject."""
        self.warnings.setdefault(subject, text)

    @property
    def where(self) -> str:
        """The operator in messages."""
        return f"{self.name!r} (uid {self.uid!r}, subtask {self.subtask})"

    def emit_side(self, tag_id: str, batch: RecordBatch) -> None:
        """Emit to a side output; drops the records if it has no reader."""
        emit = self.side_outputs.get(tag_id)
        if emit is not None:
            emit(batch)

    def emit_late(self, tag: OutputTag | None, values: list[Any], stamps: list[int]) -> None:
        """Emit late elements to their side output; without one, drop and count them."""
        if tag is not None:
            self.emit_side(tag.tag_id, RecordBatch(values, stamps))
        else:
            self.clock.late_dropped += len(values)
            late = self.clock.late
            for value, stamp in zip(values[: _LATE_KEPT - len(late)], stamps):
                late.append(LateRecord(self.name, stamp, self.clock.watermark, shown(value)))


class UserRuntimeContext(RuntimeContext):
    """The argument of `Function.open`."""

    def __init__(self, context: OperatorContext, space: StateSpace | None) -> None:
        self._context = context
        self._space = space

    @property
    def operator_name(self) -> str:
        """The operator's name, for messages."""
        return self._context.name

    @property
    def operator_uid(self) -> str:
        """The operator's uid, for messages."""
        return self._context.uid

    def get_task_name(self) -> str:
        """The operator's name."""
        return self._context.name

    def get_number_of_parallel_subtasks(self) -> int:
        """The operator's parallelism."""
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The operator's max parallelism."""
        return self._context.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """The subtask's number, from 0."""
        return self._context.subtask

    def get_attempt_number(self) -> int:
        """0 in the job's first run, one more with each restart."""
        return self._context.attempt

    def get_task_name_with_subtasks(self) -> str:
        """The name with the subtask, e.g. ``Map (3/6)``."""
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism})"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """A global job parameter, or the default."""
        return self._context.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        """The group in which the function registers its metrics."""
        return self._context.metrics

    def _keyed(self) -> StateSpace:
        if self._space is None:
            raise RuntimeError(
                f"keyed state is available only after key_by: operator {self._context.where} works on a plain stream"
            )
        return self._space

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """The ValueState of this descriptor."""
        return self._keyed().get_state(state_descriptor)  # type: ignore[no-any-return]

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """The ListState of this descriptor."""
        return self._keyed().get_list_state(state_descriptor)  # type: ignore[no-any-return]

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """The MapState of this descriptor."""
        return self._keyed().get_map_state(state_descriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """The ReducingState of this descriptor."""
        return self._keyed().get_reducing_state(state_descriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """The AggregatingState of this descriptor."""
        return self._keyed().get_aggregating_state(state_descriptor)  # type: ignore[no-any-return]
