"""Output of the commands: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = [
    "STATE_STYLES",
    "console",
    "count",
    "duration",
    "moment",
    "note",
    "print_error",
    "print_json",
    "reading",
    "size",
    "state_text",
    "table",
    "working",
]

_WIDTH_WITHOUT_TERMINAL = 200
"""Tables in pipes and files are not folded to the 80 columns of a terminal that is not there."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
_errors = Console(stderr=True, highlight=False, soft_wrap=True)

STATE_STYLES = {
    "RUNNING": "green",
    "FINISHED": "blue",
    "CANCELED": "yellow",
    "CANCELLING": "yellow",
    "RESTARTING": "dark_orange",
    "FAILED": "red",
    "DIED": "red",
    "STANDBY": "cyan",
    "SUSPENDED": "yellow",
}


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, default=str))


def print_error(message: str, code: int, as_json: bool) -> None:
    """Print why a command failed: to standard error, and as JSON to standard output if that is asked for."""
    if as_json:
        print_json({"error": message, "exit_code": code})
    _errors.print(Text(message))


def note(message: str) -> None:
    """Tell something beside the result, on standard error."""
    _errors.print(Text(message))


@contextmanager
def working(message: str, quiet: bool = False) -> Iterator[Callable[[str, tuple[int, int] | None], None]]:
    """Show a progress bar with the elapsed time on a terminal while something lasts.

    The result changes the text, and how much is done of how much; None: that is unknown, and the bar pulses.
    """
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=_errors, disable=quiet or not _errors.is_terminal, transient=True) as progress:
        task = progress.add_task(escape(message), total=None)

        def update(message: str, done: tuple[int, int] | None = None) -> None:
            completed, total = done or (0, None)
            progress.update(task, description=escape(message), completed=completed, total=total)

        yield update


@contextmanager
def reading(message: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal while bytes are read; the result is called with the size of each piece."""
    columns = (TextColumn(escape(message)), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=_errors, disable=quiet or not _errors.is_terminal, transient=True) as progress:
        task = progress.add_task(message, total=total)
        yield lambda size: progress.advance(task, size)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], numbers: Iterable[str] = ()) -> Table:
    """A plain table; the columns in ``numbers`` are aligned to the right."""
    right = set(numbers)
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def state_text(state: str) -> Text:
    """The state of a job in its colour."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def duration(milliseconds: float) -> str:
    """A time span with its two largest units.

    >>> duration(850), duration(61_000), duration(7_500_000), duration(200_000_000)
    ('850 ms', '1 min 1 s', '2 h 5 min', '2 d 7 h')
    """
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = int(milliseconds / 1000)
    if seconds < 60:
        return f"{milliseconds / 1000:.3g} s"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, seconds = divmod(seconds, length)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


def size(number: float) -> str:
    """A number of bytes.

    >>> size(512), size(28_114_432), size(5 << 40)
    ('512 B', '26.8 MiB', '5.0 TiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def count(number: float) -> str:
    """A number of things.

    >>> count(7), count(1234567), count(0.25)
    ('7', '1,234,567', '0.2')
    """
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def moment(milliseconds: int) -> str:
    """A point in time, of this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))
