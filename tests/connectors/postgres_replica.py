"""A table made of changes, to compare with the server's."""

from __future__ import annotations

from typing import Any

from connector_harness import SourceRun, eventually
from postgres_server import PostgresServer

from holdfast.common import RowKind
from holdfast.connectors.postgres.pgoutput import parse_lsn
from holdfast.datastream.connectors.postgres import Truncated

__all__ = ["Replica", "catch_up", "done", "table"]


class Replica:
    """A table made of changes; each of which must fit what is there."""

    def __init__(self, key: int | None = 0) -> None:
        self.rows: dict[Any, list[Any]] = {}
        self._key = key
        self._before: list[Any] | None = None

    def take(self, elements: list[Any]) -> None:
        for element in elements:
            if isinstance(element, Truncated):
                self.rows.clear()
                continue
            values, kind = list(element), element.get_row_kind()
            key = values[0] if self._key == 0 else tuple(values)
            if kind is RowKind.INSERT:
                assert key not in self.rows, f"{element} is there already"
                self.rows[key] = values
            elif kind is RowKind.UPDATE_BEFORE:
                assert self.rows[key] == values, f"{element} is not {self.rows[key]}"
                self._before = values
            elif kind is RowKind.UPDATE_AFTER:
                assert self._before is not None
                assert self._before[0] == key
                self.rows[key], self._before = values, None
            else:
                assert self.rows.pop(key) == values

    def read(self, run: SourceRun, most: int = 10) -> None:
        """Run an epoch, the splits of the snapshot first."""
        for _, elements in sorted(run.epoch(most).items()):
            self.take(elements)

    @property
    def table(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.rows.values()), key=repr)


def table(server: PostgresServer, name: str = "orders") -> list[tuple[Any, ...]]:
    return sorted(server.execute(f"SELECT id, name, amount FROM {name}"), key=repr)


def catch_up(run: SourceRun, replica: Replica, server: PostgresServer) -> None:
    """Read to the present end of the log."""
    end = parse_lsn(server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    eventually(lambda: run.state is not None and done(run) and run.state["lsn"] >= end, lambda: replica.read(run))


def done(run: SourceRun) -> bool:
    return all(each["done"] for each in run.state["tables"].values())
