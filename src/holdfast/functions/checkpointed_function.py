"""CheckpointedFunction: a function with operator state, which belongs to a subtask and not to a key."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.state.api.interfaces import KeyedStateStore, OperatorStateStore

__all__ = ["CheckpointedFunction", "FunctionInitializationContext", "FunctionSnapshotContext"]


class FunctionInitializationContext(ABC):
    """The context for restoring operator state."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether the operator has restored state. False at the job's first start."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """The operator state of the subtask."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Keyed state, on a keyed stream; the same as that of the runtime context."""


class FunctionSnapshotContext(ABC):
    """The context of a snapshot."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """The number of the checkpoint, which increases from checkpoint to checkpoint."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """The processing time of the checkpoint, in ms since 1970."""


class CheckpointedFunction(ABC):
    """Adds operator state to a function: derive from the function's class and from this one.

    Works with the functions of ``map``, ``flat_map``, ``filter``, ``reduce`` and ``process``, of one or two streams.
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the state handles and restore the function's attributes from them. Called before ``open``."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Write the function's attributes to the states; called at each checkpoint.

        It cannot emit elements.
        """
