"""DefinedState: functions of Holdfast whose state depends on their parameters, which the checkpoint therefore has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DefinedState"]


class DefinedState(ABC):
    """A function whose state can be read only by its definition, or by a similar one."""

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """The parameters that the state depends on, as plain data (`OperatorFactory.definition`)."""

    @abstractmethod
    def continuing(self, stored: Mapping[str, Any]) -> Self:
        """The function that goes on with the state of another definition.

        Raises:
            IncompatibleState: there is none; the message says what has changed.
        """
