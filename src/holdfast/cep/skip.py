"""AfterMatchSkipStrategy: which partial matches end when a match is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

__all__ = ["AfterMatchSkipStrategy"]


class _Kind(Enum):
    NO_SKIP = "no_skip"
    TO_NEXT = "skip_to_next"
    PAST_LAST_EVENT = "skip_past_last_event"
    TO_FIRST = "skip_to_first"
    TO_LAST = "skip_to_last"


@dataclass(frozen=True)
class AfterMatchSkipStrategy:
    """Decides in how many matches an event can be. Create one with its class methods, and pass it to ``Pattern.begin``."""

    Kind: ClassVar[type[_Kind]] = _Kind

    kind: _Kind
    pattern_name: str | None = None
    throws_on_miss: bool = False

    @classmethod
    def no_skip(cls) -> AfterMatchSkipStrategy:
        """Emit every match. The default."""
        return cls(_Kind.NO_SKIP)

    @classmethod
    def skip_to_next(cls) -> AfterMatchSkipStrategy:
        """After a match, discard the partial matches that began with the same event."""
        return cls(_Kind.TO_NEXT)

    @classmethod
    def skip_past_last_event(cls) -> AfterMatchSkipStrategy:
        """After a match, discard the partial matches that began before it ended."""
        return cls(_Kind.PAST_LAST_EVENT)

    @classmethod
    def skip_to_first(cls, pattern_name: str) -> AfterMatchSkipStrategy:
        """After a match, discard the partial matches that began before the pattern's first event in it."""
        return cls(_Kind.TO_FIRST, pattern_name)

    @classmethod
    def skip_to_last(cls, pattern_name: str) -> AfterMatchSkipStrategy:
        """After a match, discard the partial matches that began before the pattern's last event in it."""
        return cls(_Kind.TO_LAST, pattern_name)

    def throw_exception_on_miss(self) -> AfterMatchSkipStrategy:
        """Fail the job if a match has no event of the named pattern, or begins with it, instead of skipping nothing."""
        return replace(self, throws_on_miss=True)

    def is_skip_strategy(self) -> bool:
        """Whether a match can discard partial matches."""
        return self.kind is not _Kind.NO_SKIP

    def first_kept(self, start: int, match: Mapping[str, Sequence[int]]) -> int:
        """The number of the first event with which a partial match may begin to survive a match.

        Args:
            start: The number of the match's first event. Numbers increase from event to event.
            match: The numbers of the match's events by pattern, in order.

        Raises:
            ValueError: the match has no event of the named pattern, or begins with it (`throw_exception_on_miss`).
        """
        if self.kind is _Kind.NO_SKIP:
            return 0
        if self.kind is _Kind.TO_NEXT:
            return start + 1
        if self.kind is _Kind.PAST_LAST_EVENT:
            return 1 + max(events[-1] for events in match.values())
        assert self.pattern_name is not None
        events = match.get(self.pattern_name)
        if not events:
            if self.throws_on_miss:
                raise ValueError(
                    f"{self.kind.value}({self.pattern_name!r}): a match has no event of this pattern, only of "
                    f"{', '.join(map(repr, match))}. Without throw_exception_on_miss() it would skip nothing."
                )
            return 0
        found = events[0 if self.kind is _Kind.TO_FIRST else -1]
        if self.throws_on_miss and found == start:
            raise ValueError(
                f"{self.kind.value}({self.pattern_name!r}) skips to the first event of a match, which would find it again. "
                "Without throw_exception_on_miss() it would skip nothing."
            )
        return found
