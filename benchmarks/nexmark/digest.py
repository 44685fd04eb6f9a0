"""Digests of results: the number of rows, and the sum of their checksums. Both engines compute them, the models judge.

The digest does not depend on the order of rows. Rows that a changelog takes back are subtracted, so the digest of a
changelog is that of its final table. A checksum mixes the numeric fields of a row by products, modulo 2**64 as Java's
long; whole rows are compared in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.nexmark.catalog import QUERIES, Kind
from benchmarks.nexmark.events import Event
from holdfast.common import RowKind

_BITS = 64
Checksum = Callable[[Any], int]


def _one(row: Any) -> int:
    return 1


@dataclass(frozen=True)
class Measure:
    """How the rows of a query are counted."""

    checksum: Checksum
    weight: Checksum = _one


MEASURES = {
    "q3": Measure(lambda row: row[3] * (len(row[0]) + len(row[1]))),
    "q5": Measure(lambda row: row[0] * row[1] + row[2]),
    "q7": Measure(lambda row: row[0] * row[1] + row[2] + row[3]),
    "q8": Measure(lambda row: row[0] * len(row[1]) + row[2]),
    "q11": Measure(lambda row: row[0] * row[1] + row[2] + row[3]),
    "q12": Measure(lambda row: row[0] * row[1], lambda row: row[1]),
    "q17": Measure(lambda row: row[0] * row[2] + row[3] + row[6] + row[7] + row[8] + row[9]),
    "q18": Measure(lambda row: row[0] * row[2] + row[1] * row[5]),
    "q19": Measure(lambda row: row[0] * row[2] + row[1] * row[7]),
    "q20": Measure(lambda row: row[1] * row[2] + row[9] * row[13]),
}
"""The queries that Flink runs as well (`peers/FlinkNexmark.java`). Those of q12 hold for any windows."""


def signed(value: int) -> int:
    """The number modulo 2**64, as Java shows a long."""
    low = value & (1 << _BITS) - 1
    return low - (1 << _BITS) if low >> _BITS - 1 else low


def digest(name: str, rows: Iterable[Any]) -> tuple[int, int]:
    """Count rows that stay, and add up their checksums."""
    measure = MEASURES[name]
    count = total = 0
    for row in rows:
        count += measure.weight(row)
        total += measure.checksum(row)
    return count, total


def digest_of_changes(name: str, rows: Iterable[Any]) -> tuple[int, int]:
    """The same for the rows of a changelog."""
    checksum = MEASURES[name].checksum
    insert, after = RowKind.INSERT, RowKind.UPDATE_AFTER
    count = total = 0
    for row in rows:
        kind = row.get_row_kind()
        fields = row.get_fields_by_names([])  # all, without a call for each
        if kind is insert or kind is after:
            count += 1
            total += checksum(fields)
        else:
            count -= 1
            total -= checksum(fields)
    return count, total


def expected(name: str, events: Sequence[Event]) -> tuple[int, int]:
    """The digest by the model."""
    count, total = digest(name, QUERIES[name].model(events))
    return count, signed(total)


TOTALS: dict[str, tuple[int, int]] = {}
"""The digests of the queries that have run in this process, as far as they are committed."""


class DigestSink:
    """A sink that keeps nothing of its input but the digest."""

    def __init__(self, name: str) -> None:
        self.name = name

    def validate(self) -> None:
        pass

    def create_writer(self, context: Any) -> DigestWriter:
        return DigestWriter(self.name)

    def create_committer(self, job: Any, uid: str) -> DigestCommitter:
        return DigestCommitter(self.name)


class DigestWriter:
    """Adds up the digest of an epoch."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._digest = digest_of_changes if QUERIES[name].kind is Kind.CHANGELOG else digest

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        self._count = self._total = 0

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        count, total = self._digest(self._name, values)
        self._count += count
        self._total += total

    def prepare_commit(self) -> list[Any]:
        return [[self._count, str(self._total)]] if self._count or self._total else []

    def abort_epoch(self) -> None:
        pass

    def close(self) -> None:
        pass


class DigestCommitter:
    """Adds the digests of completed epochs to `TOTALS`, in the driver."""

    def __init__(self, name: str) -> None:
        self._name = name
        TOTALS.setdefault(name, (0, 0))

    def recover(self, committables: Sequence[Any]) -> None:
        self.commit(committables)

    def commit(self, committables: Sequence[Any]) -> None:
        count, total = TOTALS[self._name]
        for committable in committables:
            more, amount = committable.data
            count, total = count + more, total + int(amount)
        TOTALS[self._name] = count, signed(total)

    def close(self) -> None:
        pass
