"""Judges programs: by the plain way to run them, and by the models of their operations."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from typing import Any

from .drawing import Program
from .models import Element, Stream
from .running import PLAIN, Leg, Way, run

__all__ = ["Element", "Leg", "Stream", "Way", "again", "check", "printed"]


def differences(program: Program, found: list[Any]) -> list[str]:
    """What is told too often, too seldom, or in another order than by the models."""
    wrong = []
    told: dict[str, list[Any]] = defaultdict(list)
    for name, timestamp, value in found:
        told[name].append((value, timestamp))
    for name, stream in program.told.items():
        expected = [(each.value, each.timestamp) for each in stream.elements]
        many, few = Counter(told[name]) - Counter(expected), Counter(expected) - Counter(told[name])
        wrong += [f"{name}: {number} times too often {each}" for each, number in many.items()]
        wrong += [f"{name}: {number} times too seldom {each}" for each, number in few.items()]
        if stream.ordered and not many and not few:
            for key in {value[0] for value, _ in expected}:
                mine = [[each for each in some if each[0][0] == key] for some in (told[name], expected)]
                if mine[0] != mine[1]:
                    wrong.append(f"{name}: key {key} in another order, {mine[0]} instead of {mine[1]}")
    return wrong


def judged(program: Program, way: Way) -> list[str]:
    """What is wrong with the results of a program."""
    try:
        told = run(program, way)
        return [] if told is None else differences(program, told)
    except Exception:
        return [traceback.format_exc()]


def check(program: Program, way: Way) -> None:
    """Run a program in the plain way, then in another; fail with a program that shows what is wrong.

    Raises:
        AssertionError: the results are not those of the models.
    """
    for how in (PLAIN, way):
        _check_once(program, how)


def again(
    text: str, sources: dict[str, Any], told: dict[str, Stream], way: Way, batch: bool = False, punctual: bool = True
) -> None:
    """Run a program that was printed."""
    _check_once(Program(text.strip(), sources, told, punctual=punctual, batch=batch), way)


def _check_once(program: Program, way: Way) -> None:
    if wrong := judged(program, way):
        raise AssertionError(
            "\n".join(["", printed(program, way), "", *(f"# {line}" for each in wrong for line in each.splitlines())])
        )


def printed(program: Program, way: Way) -> str:
    """A program and the way it ran as a program: run it from the root with ``PYTHONPATH=tests``."""
    lines = ["from programs.judging import Element, Leg, Stream, Way, again", ""]
    lines += [f"sources = {program.sources!r}", 'text = """', *program.text.splitlines(), '"""', "told = {"]
    for name, stream in program.told.items():
        lines.append(f"    {name!r}: Stream((")
        lines += [f"        {each!r}," for each in stream.elements]
        lines.append(f"    ), ordered={stream.ordered}),")
    lines += ["}", f"again(text, sources, told, {way!r}, {program.batch}, {program.punctual})"]
    return "\n".join(lines)
