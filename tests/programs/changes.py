"""Other forms of a program, with the same results: what a restart with another program must take up, or refuse by name."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from .drawing import Program

_PLACE = ".side_output_late_data(LATE)"
"""Windows that may be changed have it, as the place where something can be put in."""


def changed(program: Program, number: int) -> str:
    """The text of the program with some changes that do not show in its results; 0: as it is."""
    if number == 0:
        return program.text
    chance = random.Random(number)
    lines = []
    for line in program.text.splitlines():
        for change in _CHANGES:
            # An evictor is refused where elements are kept without their timestamps.
            if chance.random() < (0.2 if change is with_an_evictor else 0.5):
                line = change(program, line)
        lines.append(line)
    return "\n".join(lines)


def _in_place(line: str, call: str) -> str:
    return line.replace(_PLACE, call + _PLACE)


def with_a_clear(program: Program, line: str) -> str:
    return line if "Session" in line else re.sub(r"\bWhole\(", "Cleared(", line)


def without_a_clear(program: Program, line: str) -> str:
    return line if "Session" in line else line.replace("Cleared(", "Whole(")


def with_a_merge(program: Program, line: str) -> str:
    return re.sub(r"(?<![.\w])Sum\(", "MergingSum(", line)


def with_an_evictor(program: Program, line: str) -> str:
    return line if ".evictor(" in line else _in_place(line, ".evictor(CountEvictor.of(10**6))")


def with_a_trigger(program: Program, line: str) -> str:
    if ".trigger(" in line or ".allowed_lateness(" in line:
        return line
    return _in_place(line, ".trigger(PurgingTrigger.of(EventTimeTrigger.create()))")


def with_lateness(program: Program, line: str) -> str:
    """Where nothing is late."""
    if not program.punctual or ".trigger(" in line or ".allowed_lateness(" in line or re.search("EvenAndOdd|RANDOM", line):
        return line
    return _in_place(line, ".allowed_lateness(10)")


def with_another_size(program: Program, line: str) -> str:
    """Where only the elements in windows are told: each is in as many, of the one size or of the other."""
    if ".process(Gathered())" not in line or "EventTimeWindows.of" not in line:
        return line
    return re.sub(r"milliseconds\((\d+)\)", lambda found: f"milliseconds({int(found[1]) // 2})", line)


def by_record(program: Program, line: str) -> str:
    """Functions of single records in place of batches."""
    return line.replace(".map_batch(times_two,", ".map(row_times_two,").replace(
        "filter_batch(above_two)", "filter(row_above_two)"
    )


def without_columns(program: Program, line: str) -> str:
    """Records of no declared type are in no columns. Their keys are text: of other ones, a restart gives any equal one."""
    return line if "_batch(" in line else line.replace(", FIELDS['text'])", ")")


def with_columns(program: Program, line: str) -> str:
    return line.replace(".map(as_row('text'))", ".map(as_row('text'), FIELDS['text'])")


def with_another_time_to_live(program: Program, line: str) -> str:
    """The shortest that the function allows for."""
    return re.sub(r"(Expiring\([^,]*, \w+), \d+, (\d+)", r"\1, \2, \2", line)


_CHANGES: tuple[Callable[[Program, str], str], ...] = (
    with_a_clear,
    without_a_clear,
    with_a_merge,
    with_an_evictor,
    with_a_trigger,
    with_lateness,
    with_another_size,
    with_another_time_to_live,
    with_columns,
    by_record,
    without_columns,
)
