"""Places in code: the line at which a program, Holdfast or a library is running."""

from __future__ import annotations

import linecache
import os
import re
from types import FrameType

from holdfast.compiled import FRAMES

__all__ = ["is_holdfasts", "is_programs", "outside_of_libraries", "place_in_dump", "place_of"]

_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = ("site-packages", "dist-packages")
_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def is_holdfasts(file: str) -> bool:
    """Whether this file belongs to Holdfast."""
    return file.startswith(FRAMES)


def is_programs(file: str) -> bool:
    """Whether this file belongs to the program or a library, and not to Python's own."""
    pythons = file.startswith("<frozen") or (file.startswith(_PYTHON) and not any(each in file for each in _PACKAGES))
    return not pythons and not is_holdfasts(file)


def outside_of_libraries(frame: FrameType) -> FrameType:
    """The innermost frame of Holdfast or the program; its line says more than that of a library that it calls."""
    found: FrameType | None = frame
    while found is not None and not is_holdfasts(file := found.f_code.co_filename):
        if is_programs(file) and not any(each in file for each in _PACKAGES):
            break
        found = found.f_back
    return found or frame


def place_of(frame: FrameType) -> str:
    """The line at which a function is, with its text, e.g. ``lookup (/srv/job.py:12): await client.get(url)``."""
    line = frame.f_lineno or frame.f_code.co_firstlineno  # some instructions have no line
    return _place(frame.f_code.co_filename, line, frame.f_code.co_name)


def place_in_dump(dump: str, base: tuple[str, str]) -> str:
    """The line at which a program is, from a dump of its threads by `faulthandler`; empty if none is in it.

    Args:
        dump: The dump.
        base: The end of the file name, and the name, of the function that calls the program.
    """
    for thread in dump.split("\n\n"):
        frames = _DUMPED.findall(thread)  # the innermost first
        at = next((n for n, (file, _, name) in enumerate(frames) if file.endswith(base[0]) and name == base[1]), None)
        if at is None:
            continue
        inner = frames[:at]
        outermost = next((file for file, _, _ in reversed(inner) if is_programs(file)), None)
        found = [frame for frame in inner if frame[0] == outermost] or inner
        if found:
            file, line, name = found[0]
            return _place(file, int(line), name)
    return ""


def _place(file: str, line: int, name: str) -> str:
    text = linecache.getline(file, line).strip()
    return f"{name} ({file}:{line}){': ' + text if text else ''}"
