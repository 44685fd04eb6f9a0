"""FunctionFactory: creates an operator of a given class around a user's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.operators.function_life import state_kinds
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind

__all__ = ["FunctionFactory", "FunctionOperatorClass"]


class FunctionOperatorClass(Protocol):
    """A class of operators around a user's function."""

    state: StateKind
    """The state of the operator, apart from operator state of the function."""
    passes_timestamps: bool
    """Whether every element that it emits has the timestamp of an input element."""

    def __call__(self, function: Any, *options: Any) -> Operator:
        """Create an operator."""


@dataclass(frozen=True)
class FunctionFactory(OperatorFactory):
    """Creates operators of one class around a user's function."""

    operator: FunctionOperatorClass
    func: Any
    options: tuple[Any, ...] = ()
    """Further arguments of the operator."""

    @property
    def state(self) -> StateKind:  # type: ignore[override]
        """The state of the operator, and operator state if the function has any."""
        return state_kinds(self.func, self.operator.state)

    @property
    def passes_timestamps(self) -> bool:  # type: ignore[override]
        """Whether every element that the operator emits has the timestamp of an input element."""
        return self.operator.passes_timestamps

    @property
    def by_columns(self) -> bool:  # type: ignore[override]
        """Whether the operator takes columns as they are."""
        return bool(getattr(self.operator, "by_columns", False))

    def in_batch(self) -> OperatorFactory:
        """The factory for a job in BATCH mode."""
        operator = getattr(self.operator, "in_batch", None)
        return self if operator is None else replace(self, operator=operator)

    def create(self) -> Operator:
        """Create an operator."""
        return self.operator(self.func, *self.options)

    def definition(self) -> dict[str, Any] | None:
        """The function's own, if it has one."""
        return self.func.definition() if isinstance(self.func, DefinedState) else None

    def continuing(self, stored: Mapping[str, Any]) -> OperatorFactory:
        """The factory whose function continues with the stored state."""
        return replace(self, func=self.func.continuing(stored)) if isinstance(self.func, DefinedState) else self

    def functions(self) -> Sequence[Any]:
        """The user's function."""
        return (self.func,)
