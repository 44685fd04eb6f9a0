"""The schema of one operator in one subtask; it grows as the program declares states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import IncompatibleState
from holdfast.state.stored.schema import (
    AsIs,
    ColumnSchema,
    Incompatible,
    OperatorSchema,
    StateSchema,
    judge_column,
    judge_key,
    outside_name,
    refusal,
)

__all__ = ["OperatorSchemaRegistry"]


class OperatorSchemaRegistry:
    """The schema registry of one operator in one subtask. Every new declaration creates a new schema version."""

    def __init__(self, where: str, schema: OperatorSchema | None = None) -> None:
        """Start with a checkpoint's schema, or an empty one.

        Args:
            where: The operator, for error messages.
            schema: The checkpoint's schema, if any.
        """
        self.where = where
        self.schema = schema or OperatorSchema()
        self.completed = self.schema.version
        """The version in the last completed checkpoint. Later ones are lost if the epoch fails."""
        self._completed_evolution = self.schema.evolved
        self.evolving: Callable[[], None] = lambda: None
        """Called when the types of a column change, before rows of the new types are written."""

    def complete(self) -> None:
        """Mark the schema as part of a completed checkpoint."""
        self.completed = self.schema.version
        self._completed_evolution = self.schema.evolved

    @property
    def evolution_pending(self) -> bool:
        """Whether column types have changed since the last completed checkpoint."""
        return self.schema.evolved != self._completed_evolution

    def state(self, name: str, kind: str, slices: str = "") -> StateSchema:
        """The state of this name, added if new."""
        try:
            self.schema = self.schema.with_state(name, kind, slices)
        except IncompatibleState as error:
            raise IncompatibleState(f"operator {self.where}: {error}") from None
        return self.schema.states[name]

    def outside(self, state: str, position: int) -> str:
        """The name of the state with a column's content outside of its rows; the state is added if new."""
        self.schema = self.schema.with_outside(state, position)
        return outside_name(state, self.schema.states[state].columns[position].name)

    def key(self, declared: Mapping[str, Any] | None) -> None:
        """Declare the key type by its serializer snapshot.

        Raises:
            IncompatibleState: the stored keys have another type.
        """
        verdict = judge_key(self.schema.key, declared)
        if isinstance(verdict, Incompatible):
            raise IncompatibleState(
                f"the state of operator {self.where} cannot be used: {verdict.reason}. Set the key back, or give the "
                "operator another uid to begin without its state"
            )
        self.schema = self.schema.with_key(declared)

    def column(self, state: str, column: ColumnSchema, *, again: bool = False) -> int:
        """The position of a column, added if new. If its types have changed, the schema gets a new version.

        Args:
            state: The row state that contains the column.
            column: The declared column.
            again: Whether the program declared this name before; selects the error message.

        Raises:
            IncompatibleState: the name exists with another kind, or a type that cannot become the declared one.
        """
        position = self.schema.column(state, column.name)
        if position is None:
            self.schema = self.schema.with_column(state, column)
            return len(self.schema.states[state].columns) - 1
        stored = self.schema.states[state].columns[position]
        verdict = judge_column(stored, column)
        if isinstance(verdict, AsIs):
            return position
        if again:
            raise IncompatibleState(
                f"state {column.name!r} of {self.where} is declared twice, as {stored} and as {column}; give each state a "
                "name of its own"
            )
        if isinstance(verdict, Incompatible):
            raise refusal(f"state {column.name!r} of operator {self.where}", verdict, stored, column)
        self.schema = self.schema.with_types(state, position, column.types)
        self.evolving()
        return position
