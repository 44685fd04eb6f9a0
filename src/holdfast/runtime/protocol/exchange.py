"""Exchange: the machine's instructions, the answers that it awaits, and the story of both. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.runtime.plan.lifecycle import IllegalTransition
from holdfast.runtime.protocol.events import Answer, Event, Failed
from holdfast.runtime.protocol.instructions import Instruction, Notice

__all__ = ["Exchange", "named"]

_REMEMBERED = 40
"""Number of messages in the story."""

_Key = tuple[type[Any], int]


class Exchange:
    """Instructions and their answers. An instruction is pending until it is answered, once.

    Args:
        tell: Returns a description of the state, for the message of an illegal transition.
    """

    def __init__(self, tell: Callable[[], str]) -> None:
        self._tell = tell
        self._awaited: set[_Key] = set()
        """The pending instructions."""
        self._given: list[Instruction] = []
        """The instructions that follow from the current event."""
        self._story: deque[tuple[float, type[Any], int, str]] = deque(maxlen=_REMEMBERED)
        """Time, type, epoch and reason of events and instructions; the messages themselves hold reports and are not kept."""
        self._seconds = 0.0

    def received(self, event: Event, seconds: float) -> None:
        """Record an event in the story, before it is checked."""
        self._seconds = seconds
        self._remember(event)

    def settle(self, event: Event) -> None:
        """Match an answer to its pending instruction.

        Raises:
            IllegalTransition: no instruction awaits it.
        """
        if isinstance(event, Answer | Failed):
            key = _key(event.instruction if isinstance(event, Failed) else event)
            if key not in self._awaited:
                raise IllegalTransition(f"{named(event)} came unasked. This is a bug in Holdfast{self._tell()}")
            self._awaited.remove(key)

    def give(self, *instructions: Instruction) -> None:
        """Give instructions; each is pending until its answer, except notices.

        Raises:
            IllegalTransition: the same instruction is pending.
        """
        for instruction in instructions:
            self._given.append(instruction)
            if not isinstance(instruction, Notice):
                key = _key(instruction)
                if key in self._awaited:
                    raise IllegalTransition(
                        f"{named(instruction)} is given a second time. This is a bug in Holdfast{self._tell()}"
                    )
                self._awaited.add(key)
                self._remember(instruction)

    def end(self, instruction: Instruction) -> None:
        """Give the last instruction; answers are no longer awaited."""
        self._awaited.clear()
        self._given.append(instruction)

    def taken(self) -> list[Instruction]:
        """The instructions since the last call, in order."""
        given, self._given = self._given, []
        return given

    def awaits(self, kind: type[Instruction]) -> bool:
        """Whether an instruction of a kind without an epoch is pending."""
        return (kind, 0) in self._awaited

    def awaits_only(self, *kinds: type[Instruction]) -> bool:
        """Whether only instructions of these kinds are pending."""
        return all(kind in kinds for kind, _ in self._awaited)

    def told(self) -> str:
        """The pending instructions and the latest messages, as text."""
        awaited = ", ".join(f"{kind.__name__} {epoch or ''}".rstrip() for kind, epoch in self._awaited) or "nothing"
        lines = "".join(
            f"\n  {at:.3f} s  {'' if issubclass(kind, Event) else '  gives '}{kind.__name__}({epoch or ''}){why}"
            for at, kind, epoch, why in self._story
        )
        return f"; awaited: {awaited}. What happened last:{lines}"

    def _remember(self, message: Instruction | Event) -> None:
        why = f": {named(message.instruction)}, {message.failure!r:.200}" if isinstance(message, Failed) else ""
        self._story.append((self._seconds, type(message), getattr(message, "epoch", 0), why))


def named(message: Instruction | Event) -> str:
    """A message's name with its epoch."""
    name = type(message).__name__
    if isinstance(message, Failed):
        return f"{name}({named(message.instruction)})"
    epoch = getattr(message, "epoch", 0)
    return f"{name}({epoch})" if epoch else name


def _key(message: Instruction | Answer) -> _Key:
    """A key common to an instruction and its answer."""
    return (message.to if isinstance(message, Answer) else type(message)), getattr(message, "epoch", 0)
