"""Exchange: the instructions that a machine gives and the answers that it awaits, with their story. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.runtime.events import Answer, Event, Failed
from holdfast.runtime.instructions import Instruction, Notice
from holdfast.runtime.lifecycle import IllegalTransition

__all__ = ["Exchange", "named"]

_REMEMBERED = 40
"""Messages in the story."""

_Key = tuple[type[Any], int]


class Exchange:
    """Instructions and answers. An instruction is given once at a time, and answered once.

    Args:
        tell: Tells the state of things, for the message of an illegal transition.
    """

    def __init__(self, tell: Callable[[], str]) -> None:
        self._tell = tell
        self._awaited: set[_Key] = set()
        """The instructions that are not answered yet."""
        self._given: list[Instruction] = []
        """What the event in hand leads to."""
        self._story: deque[tuple[float, type[Any], int, str]] = deque(maxlen=_REMEMBERED)
        """Events and instructions: when, what, of which epoch, why. Not the messages, which hold reports."""
        self._seconds = 0.0

    def received(self, event: Event, seconds: float) -> None:
        """Note an event in the story, before it is judged."""
        self._seconds = seconds
        self._remember(event)

    def settle(self, event: Event) -> None:
        """Take an answer off what is awaited.

        Raises:
            IllegalTransition: nobody awaits it.
        """
        if isinstance(event, Answer | Failed):
            key = _key(event.instruction if isinstance(event, Failed) else event)
            if key not in self._awaited:
                raise IllegalTransition(f"{named(event)} came unasked. This is a bug in Holdfast{self._tell()}")
            self._awaited.remove(key)

    def give(self, instruction: Instruction) -> None:
        """Give an instruction; unless it is a notice, its answer is awaited from now on.

        Raises:
            IllegalTransition: the same one has not been answered yet.
        """
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
        """Give the last instruction; nothing is awaited any more."""
        self._awaited.clear()
        self._given.append(instruction)

    def taken(self) -> list[Instruction]:
        """The instructions since the last call, in their order."""
        given, self._given = self._given, []
        return given

    def awaits(self, kind: type[Instruction]) -> bool:
        """Whether an instruction of a kind that belongs to no epoch is not answered yet."""
        return (kind, 0) in self._awaited

    def awaits_only(self, *kinds: type[Instruction]) -> bool:
        """Whether nothing but instructions of these kinds is not answered yet."""
        return all(kind in kinds for kind, _ in self._awaited)

    def told(self) -> str:
        """What is awaited, and the latest messages."""
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
    """The same for an instruction and for its answer."""
    return (message.to if isinstance(message, Answer) else type(message)), getattr(message, "epoch", 0)
