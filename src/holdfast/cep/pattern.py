"""Pattern: a sequence of patterns to look for in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, overload

from holdfast.cep.conditions import Both, Condition, Either, condition_of, subtype_of
from holdfast.cep.skip import AfterMatchSkipStrategy
from holdfast.common.time import to_milliseconds
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.common.time import Span

__all__ = ["Contiguity", "GroupPattern", "Pattern", "WithinType"]


class Contiguity(IntEnum):
    """Which events may lie between two events of a match."""

    STRICT = 0
    """None."""
    RELAXED = 1
    """Those that the pattern does not accept."""
    ANY = 2
    """Any: a match may leave out events that the pattern accepts."""


class WithinType(Enum):
    """What the time of ``Pattern.within`` limits."""

    FIRST_AND_LAST = "first and last"
    """The time between the first and the last event of a match."""
    PREVIOUS_AND_CURRENT = "previous and current"
    """The time between an event of this pattern and the event before it in the match."""


class Pattern:
    """A pattern of a pattern sequence, which ends with it.

    ``Pattern.begin(name)`` begins a sequence; ``next``, ``followed_by`` and the like append to it and return the appended
    pattern. The other methods change the pattern and return it.
    """

    def __init__(
        self, name: str, previous: Pattern | None, contiguity: Contiguity, negated: bool, skip: AfterMatchSkipStrategy
    ) -> None:
        self.name = name
        self.previous = previous
        self.contiguity = contiguity
        """Which events may lie between an event of this pattern and the event before it."""
        self.negated = negated
        """Whether it is a NOT pattern: ``not_next`` if the contiguity is strict, else ``not_followed_by``."""
        self.skip_strategy = skip
        self.condition: Condition | None = None
        """None accepts every event."""
        self.stop_condition: Condition | None = None
        self.least = 1
        self.most: int | None = 1
        """None: as many as there are."""
        self.is_optional = False
        self.is_greedy = False
        self.inner = Contiguity.RELAXED
        """Which events may lie between two events of this pattern."""
        self.window: int | None = None
        """The most time between the first and the last event of a match, in ms; None: any."""
        self.gap: int | None = None
        """The most time since the previous event of a match, in ms; None: any."""
        self.inner_gap: int | None = None
        """The most time between two events of this pattern, in ms; None: any."""
        self._quantified = False
        self._inner_set = False

    @classmethod
    def begin(cls, name: str | Pattern, skip_strategy: AfterMatchSkipStrategy | None = None) -> Pattern:
        """Begin a pattern sequence.

        Args:
            name: The pattern's name in matches, unique in the sequence and without ``:``; or a pattern sequence, which
                becomes a group.
            skip_strategy: What happens to other partial matches when a match is found.
        """
        if skip_strategy is not None and not isinstance(skip_strategy, AfterMatchSkipStrategy):
            raise TypeError(f"Pattern.begin() takes an AfterMatchSkipStrategy, not {skip_strategy!r}.")
        return _new(name, None, Contiguity.STRICT, skip_strategy or AfterMatchSkipStrategy.no_skip(), "Pattern.begin()")

    # ---- the next pattern -------------------------------------------------------------------------------------------

    def next(self, name: str | Pattern) -> Pattern:
        """Append a pattern, or a group, whose event directly follows the one before it (strict contiguity)."""
        return _new(name, self, Contiguity.STRICT, self.skip_strategy, "next()")

    def followed_by(self, name: str | Pattern) -> Pattern:
        """Append a pattern, or a group; events that it does not accept may come before its event (relaxed contiguity)."""
        return _new(name, self, Contiguity.RELAXED, self.skip_strategy, "followed_by()")

    def followed_by_any(self, name: str | Pattern) -> Pattern:
        """Append a pattern, or a group; any events may come before its event (non-deterministic relaxed contiguity)."""
        return _new(name, self, Contiguity.ANY, self.skip_strategy, "followed_by_any()")

    def not_next(self, name: str) -> Pattern:
        """Append a NOT pattern: no event that it accepts may directly follow the one before it."""
        return self._not(name, Contiguity.STRICT, "not_next()")

    def not_followed_by(self, name: str) -> Pattern:
        """Append a NOT pattern: no event that it accepts may lie between the events before and after it.

        At the end of a sequence it needs ``within``: a match is complete when the time is over.
        """
        return self._not(name, Contiguity.RELAXED, "not_followed_by()")

    def _not(self, name: str, contiguity: Contiguity, where: str) -> Pattern:
        if self.is_optional:
            raise ConfigurationError(
                f"{where} cannot follow the optional pattern {self.name!r}: make that one mandatory, or put the NOT pattern "
                "before it."
            )
        return Pattern(_checked_name(name, where), self, contiguity, True, self.skip_strategy)

    # ---- conditions -------------------------------------------------------------------------------------------------

    def where(self, condition: Callable[..., Any]) -> Self:
        """Accept only events for which the condition, and those given before, return a true value.

        Args:
            condition: A callable ``event -> bool``; or ``(event, context) -> bool`` to look at the events accepted before
                (``context.get_events_for_pattern(name)``). A callable that can be called with the event alone is.
        """
        return self._and(condition_of(condition, "where()"))

    def subtype(self, subtype: type) -> Self:
        """Accept only events of a class."""
        return self._and(subtype_of(subtype))

    def _and(self, condition: Condition) -> Self:
        self.condition = condition if self.condition is None else Both(self.condition, condition)
        return self

    def or_where(self, condition: Callable[..., Any]) -> Self:
        """Accept also events for which this condition returns a true value. Flink's ``or``, a reserved word in Python."""
        found = condition_of(condition, "or_where()")
        self.condition = found if self.condition is None else Either(self.condition, found)
        return self

    def until(self, condition: Callable[..., Any]) -> Self:
        """End the repetition at the first event for which the condition returns a true value. Frees its state, too."""
        if self.most is not None:
            raise ConfigurationError(
                f"until() ends one_or_more() or times_or_more(), and pattern {self.name!r} has neither."
            )
        if self.stop_condition is not None:
            raise ConfigurationError(f"Pattern {self.name!r} has an until() already.")
        self.stop_condition = condition_of(condition, "until()")
        return self

    # ---- how often --------------------------------------------------------------------------------------------------

    @overload
    def times(self, least: int, most: int | None = None, time: Span | None = None) -> Self: ...

    @overload
    def times(self, least: int, most: Span) -> Self: ...

    def times(self, least: int, most: int | Span | None = None, time: Span | None = None) -> Self:
        """Accept ``least`` events; with two numbers ``least`` to ``most`` events (from 0: none, too).

        Args:
            least: The number of events, or the least one.
            most: The most events. A time may stand here in its place: ``times(3, Time.seconds(10))``.
            time: A span of time (Time, Duration, timedelta). Two events of the pattern that follow each other in a match are
                closer than that; of a group, the last event of one round and the first one of the next. None: any.
        """
        if most is not None and not isinstance(most, int):
            if time is not None:
                raise TypeError(f"times() takes one time, after the numbers; got {most!r} and {time!r}.")
            most, time = None, most
        last = least if most is None else most
        if not (_is_count(least) and _is_count(last)) or not 0 <= least <= last or last == 0:
            raise ConfigurationError(
                f"times() takes a number above 0, or two in order, got {least!r}{'' if most is None else f', {most!r}'}."
            )
        return self._repeat(least, last, time, "times()")

    def times_or_more(self, least: int, time: Span | None = None) -> Self:
        """Accept ``least`` or more events.

        Args:
            least: The least number of events.
            time: As for ``times``: the events are closer to each other than that, one to the next.
        """
        if not _is_count(least) or least < 1:
            raise ConfigurationError(f"times_or_more() takes a number above 0, got {least!r}.")
        return self._repeat(least, None, time, "times_or_more()")

    def one_or_more(self, time: Span | None = None) -> Self:
        """Accept one or more events.

        Args:
            time: As for ``times``: the events are closer to each other than that, one to the next.
        """
        return self._repeat(1, None, time, "one_or_more()")

    def _repeat(self, least: int, most: int | None, time: Span | None, where: str) -> Self:
        self._positive(where)
        if self._quantified:
            raise ConfigurationError(f"{where}: pattern {self.name!r} has a quantifier already.")
        inner_gap = None if time is None else to_milliseconds(time)
        if inner_gap is not None and inner_gap <= 0:
            raise ConfigurationError(f"{where} takes a time above 0 between two events, got {inner_gap} ms.")
        self._quantified = True
        self.least, self.most, self.inner_gap = max(least, 1), most, inner_gap
        self.is_optional = self.is_optional or least == 0
        return self

    def optional(self) -> Self:
        """Match also without an event of this pattern."""
        self._positive("optional()")
        self.is_optional = True
        return self

    def greedy(self) -> Self:
        """Accept as many events as there are before the next pattern's event. Not for groups."""
        self._looping("greedy()")
        self.is_greedy = True
        return self

    def consecutive(self) -> Self:
        """Let no other event lie between this pattern's events (strict contiguity)."""
        return self._set_inner(Contiguity.STRICT, "consecutive()")

    def allow_combinations(self) -> Self:
        """Let any events lie between this pattern's events (non-deterministic relaxed contiguity)."""
        return self._set_inner(Contiguity.ANY, "allow_combinations()")

    def _set_inner(self, inner: Contiguity, where: str) -> Self:
        self._looping(where)
        if self._inner_set:
            raise ConfigurationError(f"{where}: pattern {self.name!r} has consecutive() or allow_combinations() already.")
        self._inner_set = True
        self.inner = inner
        return self

    def _positive(self, where: str) -> None:
        if self.negated:
            raise ConfigurationError(f"{where} does not apply to the NOT pattern {self.name!r}.")

    def _looping(self, where: str) -> None:
        self._positive(where)
        if not self._quantified:
            raise ConfigurationError(
                f"{where} applies to a pattern that repeats: call one_or_more(), times() or times_or_more() before it on "
                f"{self.name!r}."
            )

    def within(self, time: Any, within_type: WithinType = WithinType.FIRST_AND_LAST) -> Self:
        """Limit the time of a match. Partial matches that exceed it time out.

        Args:
            time: A span of time (Time, Duration, timedelta). The events of a match are closer than that. If several
                patterns of a sequence set one, the shortest applies.
            within_type: PREVIOUS_AND_CURRENT limits the time between an event of this pattern and the event before it.
        """
        span = to_milliseconds(time)
        if span <= 0:
            raise ConfigurationError(f"within() takes a time above 0, got {span} ms.")
        if not isinstance(within_type, WithinType):
            raise TypeError(f"within() takes a WithinType, not {within_type!r}.")
        if within_type is WithinType.FIRST_AND_LAST:
            self.window = span
        else:
            self.gap = span
        return self

    # ---- what others read -------------------------------------------------------------------------------------------

    def sequence(self) -> list[Pattern]:
        """The patterns of the sequence that ends with this one, in order."""
        return list(self._back())[::-1]

    def _back(self) -> Iterator[Pattern]:
        pattern: Pattern | None = self
        while pattern is not None:
            yield pattern
            pattern = pattern.previous

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Pattern cannot be used inside a function: it exists only where the program is built")


class GroupPattern(Pattern):
    """A pattern sequence as one pattern of another sequence."""

    def __init__(
        self, content: Pattern, previous: Pattern | None, contiguity: Contiguity, skip: AfterMatchSkipStrategy, where: str
    ) -> None:
        names = [each.name for each in content.sequence()]
        super().__init__(f"({' '.join(names)})", previous, contiguity, False, skip)
        self.content = content.sequence()
        if self.content[-1].negated:
            raise ConfigurationError(f"{where}: a group cannot end with the NOT pattern {names[-1]!r}.")
        if any(each.window is not None for each in self.content):
            raise ConfigurationError(f"{where}: within() belongs to the whole sequence, not to the group {self.name}.")
        if content.skip_strategy.is_skip_strategy():
            raise ConfigurationError(
                f"{where}: a skip strategy belongs to the whole sequence, not to the group {self.name}."
            )

    def _and(self, condition: Condition) -> NoReturn:
        raise ConfigurationError(f"where() and subtype() do not apply to the group {self.name}: call them on its patterns.")

    def or_where(self, condition: Callable[..., Any]) -> NoReturn:
        """Refuse a condition: it belongs to the group's patterns."""
        raise ConfigurationError(f"or_where() does not apply to the group {self.name}: call it on its patterns.")

    def greedy(self) -> NoReturn:
        """Refuse: groups are not greedy."""
        raise ConfigurationError(f"greedy() does not apply to the group {self.name}.")

    def within(self, time: Any, within_type: WithinType = WithinType.FIRST_AND_LAST) -> Self:
        """Limit the time of a match; the time between two events is set on the group's patterns."""
        if within_type is WithinType.PREVIOUS_AND_CURRENT:
            raise ConfigurationError(
                f"PREVIOUS_AND_CURRENT does not apply to the group {self.name}: set it on its patterns."
            )
        return super().within(time, within_type)


def _new(
    name: str | Pattern, previous: Pattern | None, contiguity: Contiguity, skip: AfterMatchSkipStrategy, where: str
) -> Pattern:
    if isinstance(name, Pattern):
        return GroupPattern(name, previous, contiguity, skip, where)
    return Pattern(_checked_name(name, where), previous, contiguity, False, skip)


def _checked_name(name: Any, where: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{where} takes the pattern's name, or a pattern sequence for a group; not {name!r}.")
    if not name or ":" in name:
        raise ConfigurationError(f"{where}: a pattern's name is not empty and has no ':', got {name!r}.")
    return name


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
