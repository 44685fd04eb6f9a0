"""What all user functions have in common: their life, and the runtime context that they are opened with."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.metrics.user import MetricGroup
from holdfast.state.interfaces import KeyedStateStore

__all__ = ["Function", "RuntimeContext"]


class RuntimeContext(KeyedStateStore):
    """What a function learns in ``open``: where it runs, its state, its metrics."""

    @abstractmethod
    def get_task_name(self) -> str:
        """The name of the operator."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """The operator's parallelism."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """The operator's max parallelism, the number of key groups."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Which subtask this is, from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often the task was started before."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """The operator's name with the subtask's number, e.g. ``count (3/6)``."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """A global job parameter, as the environment's config has it, or the default."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Where the function registers its metrics."""


class Function(ABC):  # noqa: B024 - abstract in what its subclasses add
    """A user's function. Each subtask has one object of it, whose attributes live from element to element."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once, before the first element: get handles of state here, and make connections."""

    def close(self) -> None:
        """Called once, after the last element."""
