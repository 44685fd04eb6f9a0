"""The job on change data: from two tables of PostgreSQL to a copy of one and a journal of the other, by keyed state.

The state has the present row of each account, and refuses a change that does not fit it: one that is lost, repeated or out
of order ends the job. The tables at the end are judged by SQL alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.common import Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueState
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink, Truncated
from holdfast.errors import HoldfastError

__all__ = ["DIFFERENCES", "SLOT", "TABLES", "build"]

SLOT = "chaos"
TABLES = (
    "CREATE TABLE accounts (id int8 PRIMARY KEY, amount numeric, note text, sent int8 NOT NULL)",
    "ALTER TABLE accounts REPLICA IDENTITY FULL",
    "CREATE TABLE notes (id int8 NOT NULL, sent int8 NOT NULL)",
    "ALTER TABLE notes REPLICA IDENTITY FULL",
    "CREATE TABLE ledger (op text NOT NULL, id int8 NOT NULL)",
    "CREATE TABLE copy (id int8 PRIMARY KEY, amount numeric, note text, sent int8 NOT NULL)",
    "CREATE INDEX ON copy (sent)",
    "CREATE TABLE journal (op text NOT NULL, id int8 NOT NULL, sent int8 NOT NULL)",
    "CREATE INDEX ON journal (sent)",
)
"""The statements that make the tables. The ledger has a row for each change of notes, of the same transaction."""
DIFFERENCES = {
    "accounts that the copy lacks": (
        "SELECT id, amount::numeric, note, sent FROM accounts EXCEPT ALL SELECT id, amount, note, sent FROM copy"
    ),
    "rows that only the copy has": (
        "SELECT id, amount, note, sent FROM copy EXCEPT ALL SELECT id, amount::numeric, note, sent FROM accounts"
    ),
    "changes that the journal lacks": "SELECT op, id FROM ledger EXCEPT ALL SELECT op, id FROM journal",
    "changes that only the journal has": "SELECT op, id FROM journal EXCEPT ALL SELECT op, id FROM ledger",
}
"""What is wrong, and the query for it."""
_ACCOUNTS = Types.ROW_NAMED(["id", "amount", "note", "sent"], [Types.LONG(), Types.BIG_DEC(), Types.STRING(), Types.LONG()])
_NOTES = Types.ROW_NAMED(["id", "sent"], [Types.LONG(), Types.LONG()])
_JOURNAL = Types.ROW_NAMED(["op", "id", "sent"], [Types.STRING(), Types.LONG(), Types.LONG()])
_CHUNK = 150


class Checked(KeyedProcessFunction):
    """Passes on the changes of an account that fit the row before."""

    row = ValueState("row", _ACCOUNTS)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        """Check a change against the row before, and keep the row after."""
        kind, before, values = value.get_row_kind(), self.row.value(), list(value)
        if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
            fits = before is not None and list(before) == values
        else:
            fits = (before is None) is (kind is RowKind.INSERT)
        if not fits:
            raise HoldfastError(f"{kind.name} of {values!r:.200} does not fit the row before, {before!r:.200}")
        if kind is RowKind.DELETE:
            self.row.clear()
        elif kind is not RowKind.UPDATE_BEFORE:
            self.row.update(Row.of_values(values, _ACCOUNTS.get_field_names()))
        yield value


def _noted(element: Any) -> Row:
    if isinstance(element, Truncated):
        return Row.of_values(["TRUNCATE", 0, element.timestamp], _JOURNAL.get_field_names())
    row = element[1]
    return Row.of_values([row.get_row_kind().name, row.id, row.sent], _JOURNAL.get_field_names())


def build(env: StreamExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Add the job to an environment. Setting: ``url``, the database."""
    url = settings["url"]
    source: Any = PostgresCdcSource(
        url, {"public.accounts": _ACCOUNTS, "public.notes": _NOTES}, SLOT, chunk_size=_CHUNK, on_truncate="emit"
    )
    changes = env.from_source(source, WatermarkStrategy.no_watermarks(), "changes").uid("changes")
    accounts = changes.filter(lambda each: not isinstance(each, Truncated) and each[0] == "public.accounts").uid("accounts")
    rows = accounts.map(lambda each: each[1], _ACCOUNTS).uid("rows").key_by(lambda row: row.id)
    copy: Any = PostgresSink(url, "public.copy", _ACCOUNTS, primary_key=["id"])
    rows.process(Checked(), _ACCOUNTS).uid("checked").sink_to(copy).uid("copy")
    notes = changes.filter(lambda each: isinstance(each, Truncated) or each[0] == "public.notes").uid("notes")
    journal: Any = PostgresSink(url, "public.journal", _JOURNAL)
    notes.map(_noted, _JOURNAL).uid("noted").sink_to(journal).uid("journal")
