"""Places: the lines of a program that a warning or an error names."""

from __future__ import annotations

from types import FrameType

from holdfast.runtime.records.places import place_of


def an_instruction_without_a_line_is_at_the_first_line_of_its_function():
    code = compile("import sys\nframe = sys._getframe()", "/srv/job.py", "exec")
    names: dict[str, FrameType] = {}
    exec(code.replace(co_linetable=b""), names)  # as at some instructions that the compiler adds
    assert place_of(names["frame"]) == "<module> (/srv/job.py:1)"
