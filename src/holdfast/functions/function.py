"""Function, the base of all user functions, and RuntimeContext, the argument of ``open``."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.metrics.user import MetricGroup
from holdfast.state.api.interfaces import KeyedStateStore

__all__ = ["Function", "RuntimeContext"]


class RuntimeContext(KeyedStateStore):
    """The runtime of a function: its subtask, state and metrics. Passed to ``open``."""

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
        """The index of the subtask, from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """The number of earlier attempts of the task."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """The operator's name with the subtask's number, e.g. ``count (3/6)``."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """A global job parameter from the environment's config, or the default."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """The metric group of the function."""


class Function(ABC):  # noqa: B024 - subclasses add the abstract methods
    """A user function. Each subtask has its own instance, whose attributes persist between elements."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Set up state handles and connections; called once before the first element."""

    def close(self) -> None:
        """Release resources; called once after the last element."""
