"""Whole programs of all operations."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from . import drawing, expiring, grouped_tables, joins, processing_time, window_drawing
from .drawing import Drawing, Program, source

OPERATIONS = [
    *drawing.OPERATIONS,
    *window_drawing.OPERATIONS,
    *joins.OPERATIONS,
    *grouped_tables.OPERATIONS,
    *processing_time.OPERATIONS,
    *expiring.OPERATIONS,
]


def named(names: str) -> list[Any]:
    """Some of the operations, by their modules and functions: ``window_drawing.window,joins.table``."""
    wanted = names.split(",")
    return [each for each in dict.fromkeys(OPERATIONS) if f"{each.__module__.rpartition('.')[2]}.{each.__name__}" in wanted]


@st.composite
def programs(draw: Any, operations: Any = OPERATIONS, most: int = 5) -> Program:
    """Programs of one or two sources and one to five operations."""
    d = Drawing(draw, draw(st.booleans()), draw(st.sampled_from([False] * 5 + [True])))
    source(d)
    if d.one_of(False, True):
        source(d)
    for operation in draw(st.lists(st.sampled_from(operations), min_size=1, max_size=most)):
        operation(d, d.one_of(*reversed(d.streams)))
    return d.finished()
