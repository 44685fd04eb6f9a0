"""Lifecycle: the state of an object as an enum member, with a table of legal transitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["IllegalTransition", "Lifecycle"]

S = TypeVar("S", bound=Enum)


class IllegalTransition(AssertionError):
    """A bug in Holdfast: a transition or an event that the protocol does not allow."""


class Lifecycle(Generic[S]):
    """The state of one object.

    Args:
        name: The object, for messages.
        initial: The first state.
        transitions: The states that may follow each state.
        story: Returns the recent events, for the message of an illegal transition.
    """

    __slots__ = ("_name", "_story", "_transitions", "state")

    def __init__(
        self, name: str, initial: S, transitions: Mapping[S, frozenset[S]], story: Callable[[], str] = lambda: ""
    ) -> None:
        self._name = name
        self._transitions = transitions
        self._story = story
        self.state = initial

    def to(self, state: S) -> None:
        """Change the state.

        Raises:
            IllegalTransition: the table does not allow it.
        """
        if state not in self._transitions[self.state]:
            raise IllegalTransition(
                f"{self._name} cannot go from {self.state.name} to {state.name}. This is a bug in Holdfast{self._story()}"
            )
        self.state = state
