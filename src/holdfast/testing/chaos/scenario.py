"""The interface of a scenario: a program with its infrastructure, its possible faults, and the judge of its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from holdfast.testing.chaos.stage import Stage

__all__ = ["Fault", "Scenario"]

Fault = Callable[[Stage], str]
"""Breaks something, repairs it if necessary, and returns a description."""


class Scenario:
    """One scenario on its stage; subclasses define a scenario."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for the command's help."""
    faults: ClassVar[Mapping[str, Fault]]
    """Faults by name. The campaign deals them like a deck of cards."""
    kills: tuple[Fault, ...]
    """Faults that kill at once without waiting; the campaign strings several together."""
    row: ClassVar[tuple[int, int]] = (8, 30)
    """The smallest and largest number of kills in a row."""
    share: ClassVar[float] = 1.0
    """The share of a campaign's kills relative to other scenarios; smaller where a kill takes longer."""

    def __init__(self, stage: Stage, rate: float) -> None:
        self.stage = stage
        self.rate = rate

    def deck(self) -> dict[str, Callable[[], str]]:
        """The faults available in this scenario."""
        return {name: (lambda fault=fault: fault(self.stage)) for name, fault in self.faults.items()}  # type: ignore[misc]

    def prepare(self) -> None:
        """Start everything, including the first driver; the campaign then waits for its first output."""
        raise NotImplementedError

    def judge(self) -> None:
        """End the input, let the job drain, stop it, and report every violation to the stage."""
        raise NotImplementedError
