"""Rows in the text form of COPY, by columns. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from holdfast.common.time import Instant
from holdfast.common.typeinfo import PrimitiveArrayTypeInfo, RowTypeInfo, TypeInformation, Types
from holdfast.common.typeinfo.batches import Misfit, fitted
from holdfast.common.types import Row

__all__ = ["CopyText", "SentLines", "moment"]

_NULL = "\\N"
_LINE = re.compile(r", \S+ (\d+)\b")
"""The line that the server names behind the table, in whatever language."""
_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIMESTAMP = Types.SQL_TIMESTAMP()
_PLAIN = (
    Types.BOOLEAN(), Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG(), Types.BIG_INT(), Types.FLOAT(), Types.DOUBLE(),
    Types.BIG_DEC(), Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(),
)  # fmt: skip
"""Types whose values the server reads as Python shows them."""


def moment(value: Instant) -> datetime:
    """An instant to the microsecond.

    >>> moment(Instant(1, 500_000)).isoformat()
    '1970-01-01T00:00:01.000500+00:00'
    """
    return _START + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def _texts(values: Sequence[str]) -> Iterable[str]:
    if _SPECIAL.search("\0".join(values)) is None:
        return values
    return [value.translate(_ESCAPES) for value in values]


def _plain(values: Sequence[Any]) -> Iterable[str]:
    return map(str, values)


def _instants(values: Sequence[Instant]) -> Iterable[str]:
    return [str(moment(value)) for value in values]


def _bytes(values: Sequence[bytes]) -> Iterable[str]:
    return ["\\\\x" + bytes(value).hex() for value in values]


def _form(declared: TypeInformation[Any]) -> Callable[[Sequence[Any]], Iterable[str]] | None:
    if declared == Types.STRING():
        return _texts
    if declared == Types.INSTANT():
        return _instants
    if declared == PrimitiveArrayTypeInfo(Types.BYTE()):
        return _bytes
    return _plain if declared in _PLAIN else None


class CopyText:
    r"""The text of rows of a declared type.

    Args:
        type_info: The rows.

    >>> CopyText(Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])).lines([Row(1, "x"), Row(2, None)])
    ['1\tx', '2\t\\N']
    """

    def __init__(self, type_info: RowTypeInfo) -> None:
        self._names = type_info.get_field_names()
        self._types = type_info.get_field_types()
        self._forms = [_form(each) for each in self._types]

    def lines(self, rows: Sequence[Any]) -> list[str] | None:
        """The rows' lines, without their ends; None if they need more care: values of other types, or none that fit."""
        names = self._names
        if not all(
            type(row) is Row and (row._fields is names or row._fields is None or row._fields == names) for row in rows
        ):
            return None
        columns = []
        try:
            for declared, form, values in zip(self._types, self._forms, zip(*[row._values for row in rows], strict=True)):
                if form is None:
                    return None
                columns.append(_column(declared, form, values))
        except (Misfit, ValueError):  # a value, or a row with more or fewer fields than others
            return None
        return list(map("\t".join, zip(*columns))) if len(columns) == len(names) else None


def _column(
    declared: TypeInformation[Any], form: Callable[[Sequence[Any]], Iterable[str]], values: tuple[Any, ...]
) -> Iterable[str]:
    if declared == _TIMESTAMP and set(map(type, values)) == {datetime} and {each.tzinfo for each in values} == {None}:
        return [each.isoformat(" ", "milliseconds") for each in values]  # fits, and a third of the time
    if None not in values:
        return form(fitted(declared, list(values)))
    known = iter(form(fitted(declared, [value for value in values if value is not None])))
    return [_NULL if value is None else next(known) for value in values]


class SentLines:
    r"""The lines of a COPY that were sent last: the server names one that does not fit by its number, and somewhat later.

    Args:
        most: Characters that are kept.

    >>> sent = SentLines(100)
    >>> sent.add(1, ["a\t1", "b\t-2"])
    >>> sent.named("COPY totals, line 2, column total")
    'b\t-2'
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes = 0
        self._blocks: deque[tuple[int, list[str], int]] = deque()

    def add(self, first: int, lines: list[str]) -> None:
        """Keep lines, of which the first has this number."""
        size = sum(map(len, lines))
        self._blocks.append((first, lines, size))
        self._sizes += size
        while self._sizes > self._most and len(self._blocks) > 1:
            self._sizes -= self._blocks.popleft()[2]

    def named(self, context: str) -> str | None:
        """The line that an error's context names; None if it names none, or one that was sent long before."""
        found = _LINE.search(context)
        for first, lines, _ in self._blocks:
            if found is not None and 0 <= int(found[1]) - first < len(lines):
                return lines[int(found[1]) - first]
        return None

    def clear(self) -> None:
        """Forget all: another COPY begins."""
        self._blocks.clear()
        self._sizes = 0
