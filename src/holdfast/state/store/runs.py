"""Runs: adjacent parts of a file that are read at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

__all__ = ["in_runs"]


class _Part(Protocol):
    @property
    def offset(self) -> int: ...

    @property
    def end(self) -> int: ...


P = TypeVar("P", bound=_Part)


def in_runs(parts: Iterable[P], most: int, gap: int = 0) -> Iterator[list[P]]:
    """Group parts, sorted by offset, into runs of up to ``most`` bytes, with gaps of up to ``gap`` bytes."""
    run: list[P] = []
    for part in parts:
        if run and (part.offset - run[-1].end > gap or part.end - run[0].offset > most):
            yield run
            run = []
        run.append(part)
    if run:
        yield run
