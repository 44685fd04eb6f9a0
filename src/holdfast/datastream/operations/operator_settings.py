"""Settings of an operator, made through its stream or sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.datastream.slot_sharing_group import SlotSharingGroup
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import Physical, SourceTransformation

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OperatorSettings", "check_count"]


def check_count(value: int, what: str, most: int | None = None) -> int:
    """Return ``value`` if it is an integer of at least 1.

    Raises:
        ConfigurationError: the value is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        limits = "of at least 1" if most is None else f"from 1 to {most}"
        raise ConfigurationError(f"The {what} must be a whole number {limits}, not {value!r}.")
    return value


class OperatorSettings:
    """Name, uid, parallelism and other settings of one operator."""

    def _operator(self, call: str) -> Physical:
        """Return the operator; ``call`` names the calling method in messages."""
        raise NotImplementedError

    def name(self, name: str) -> Self:
        """Set the operator's name, for plans, metrics and messages."""
        self._operator("name").name = _check_text(name, "name")
        return self

    def uid(self, uid: str) -> Self:
        """Set the operator's uid, which identifies its state when the job resumes. Unique in the job.

        Without it the uid is derived from the graph, and changes when this part of the graph does.
        """
        self._operator("uid").uid = _check_text(uid, "uid")
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of the operator's subtasks.

        Raises:
            ConfigurationError: the value is not an integer of at least 1, or the operator is a source that only one
                subtask can read.
        """
        operator = self._operator("set_parallelism")
        check_count(parallelism, "parallelism")
        if isinstance(operator, SourceTransformation) and not operator.parallel and parallelism > 1:
            raise ConfigurationError(
                f"Source {operator} can only be read by one subtask: set the parallelism of the operator after it."
            )
        operator.parallelism, operator.parallelism_configured = parallelism, True
        return self

    def set_description(self, description: str) -> Self:
        """Set the operator's description in the execution plan, which otherwise shows its name."""
        self._operator("set_description").description = description
        return self

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Set the slot sharing group. It has no effect: Spark places the tasks."""
        name = slot_sharing_group.get_name() if isinstance(slot_sharing_group, SlotSharingGroup) else slot_sharing_group
        self._operator("slot_sharing_group").slot_sharing_group = name
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Accept a timeout of network buffers, in ms. It has no effect: records move in frames."""
        self._operator("set_buffer_timeout")
        return self

    def set_uid_hash(self, uid_hash: str) -> Self:
        """Refuse hashes of Flink's graph.

        Raises:
            NotImplementedError: always.
        """
        self._operator("set_uid_hash")
        raise NotImplementedError(
            "a uid hash is one of Flink's own graph; uid(...) names the operator's state here. State that a savepoint has "
            "under another uid is renamed with SavepointWriter.change_operator_identifier"
        )

    def disable_chaining(self) -> Self:
        """Run the operator in a task of its own."""
        operator = self._operator("disable_chaining")
        operator.starts_chain = operator.ends_chain = True
        return self


def _check_text(value: str, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"An operator's {what} must be a text that is not empty, not {value!r}.")
    return value
