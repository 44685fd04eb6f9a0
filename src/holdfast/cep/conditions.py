"""Conditions of patterns: functions of an event, or of an event and a context, combined by AND and OR."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from holdfast.datastream.operations.function_checks import check_function
from holdfast.errors import ConfigurationError

__all__ = ["Both", "Condition", "Context", "Either", "Leaf", "TimeContext", "condition_of", "leaves", "subtype_of", "tester"]


class TimeContext(ABC):
    """The times of an event or of a match."""

    @abstractmethod
    def timestamp(self) -> int:
        """The timestamp of the event, or of the match's last event, in ms; in processing time, the time of its arrival."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The machine's time, in ms since 1970."""


class Context(TimeContext):
    """The second argument of a condition: what the partial match has accepted so far."""

    @abstractmethod
    def get_events_for_pattern(self, name: str) -> Sequence[Any]:
        """The events that the partial match has accepted for a pattern, in order; none for a NOT pattern.

        Each call walks the partial match: call it after the cheap parts of the condition.

        Raises:
            ValueError: the pattern sequence has no pattern of this name.
        """


@dataclass(frozen=True)
class Leaf:
    """A condition of one function."""

    function: Callable[..., Any]
    iterative: bool
    """Whether it takes a Context as its second argument."""


@dataclass(frozen=True)
class Both:
    """A condition that holds if both others do."""

    left: Condition
    right: Condition


@dataclass(frozen=True)
class Either:
    """A condition that holds if one of two others does."""

    left: Condition
    right: Condition


Condition = Union[Leaf, Both, Either]
Tester = Callable[[Any, Context], Any]


@dataclass(frozen=True)
class _Instance:
    """Tests the class of an event."""

    subtype: type

    def __call__(self, event: Any) -> bool:
        return isinstance(event, self.subtype)


def condition_of(function: Any, where: str) -> Leaf:
    """The condition of a user's function: called with the event alone if its signature allows that, else with a context.

    Raises:
        TypeError: the argument is not a function.
        ConfigurationError: it takes neither an event, nor an event and a context.
    """
    test = getattr(function, "filter", function)
    try:
        check_function(function, "filter", ("event",), where)
    except ConfigurationError:
        check_function(function, "filter", ("event", "context"), where)
        return Leaf(test, True)
    return Leaf(test, False)


def subtype_of(subtype: Any) -> Leaf:
    """The condition that an event is of a class.

    Raises:
        TypeError: the argument is not a class.
    """
    if not isinstance(subtype, type):
        raise TypeError(f"subtype() takes a class, not {subtype!r}.")
    return Leaf(_Instance(subtype), False)


def leaves(condition: Condition | None) -> Iterator[Leaf]:
    """The functions of a condition."""
    if isinstance(condition, Leaf):
        yield condition
    elif condition is not None:
        yield from leaves(condition.left)
        yield from leaves(condition.right)


def tester(condition: Condition) -> tuple[Callable[..., Any], bool]:
    """A condition as one function, and whether that takes a Context."""
    if isinstance(condition, Leaf):
        return condition.function, condition.iterative
    (left, left_iterates), (right, right_iterates) = tester(condition.left), tester(condition.right)
    if not left_iterates and not right_iterates:
        if isinstance(condition, Both):
            return lambda event: left(event) and right(event), False
        return lambda event: left(event) or right(event), False
    first, second = _with_context(left, left_iterates), _with_context(right, right_iterates)
    if isinstance(condition, Both):
        return lambda event, context: first(event, context) and second(event, context), True
    return lambda event, context: first(event, context) or second(event, context), True


def _with_context(test: Callable[..., Any], iterates: bool) -> Tester:
    return test if iterates else lambda event, context: test(event)
