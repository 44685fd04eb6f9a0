"""What a scenario is: a program with its surroundings, the faults it can take, and the judge of what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from holdfast.testing.chaos.stage import Stage

__all__ = ["Fault", "Scenario"]

Fault = Callable[[Stage], str]
"""Breaks something, repairs it if need be, and says what it did."""


class Scenario:
    """One scenario on its stage. A subclass says what is special."""

    name: ClassVar[str]
    about: ClassVar[str]
    """In a line, for the command's help."""
    faults: ClassVar[Mapping[str, Fault]]
    """By name. The campaign deals them like a deck of cards."""
    kills: tuple[Fault, ...]
    """Faults that kill at once and wait for nothing: the campaign strings several of them together."""
    row: ClassVar[tuple[int, int]] = (8, 30)
    """So many kills in a row, at least and at most."""
    share: ClassVar[float] = 1.0
    """Of a campaign's kills, compared with other scenarios: less where a kill takes longer."""

    def __init__(self, stage: Stage, rate: float) -> None:
        self.stage = stage
        self.rate = rate

    def deck(self) -> dict[str, Callable[[], str]]:
        """The faults that can be injected here."""
        return {name: (lambda fault=fault: fault(self.stage)) for name, fault in self.faults.items()}  # type: ignore[misc]

    def prepare(self) -> None:
        """Start everything, up to the first driver; its first output is awaited afterwards."""
        raise NotImplementedError

    def judge(self) -> None:
        """End the input, let the job drain and stop it, and tell the stage of every violation."""
        raise NotImplementedError
