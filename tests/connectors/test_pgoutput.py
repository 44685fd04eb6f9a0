"""Messages of pgoutput, values in text form, and what snapshots have seen."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Instant, Row, RowKind, Types
from holdfast.connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    decode,
    format_lsn,
    parse_lsn,
)
from holdfast.connectors.postgres.row_changes import Misfit, TableRows
from holdfast.connectors.postgres.sql import literals
from holdfast.connectors.postgres.values import accepted_types, converter
from holdfast.connectors.postgres.visibility import Region, Snapshot, first_unseen, succeeds


def tuple_data(*values: Any) -> bytes:
    data = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            data += b"n"
        elif value is UNCHANGED:
            data += b"u"
        else:
            data += b"t" + struct.pack(">I", len(value)) + value
    return data


ORDERS = struct.pack(">cI", b"R", 7) + b"public\0orders\0f" + struct.pack(">H", 2)
ORDERS += b"\x01id\0" + struct.pack(">Ii", 20, -1) + b"\x00name\0" + struct.pack(">Ii", 25, -1)
MESSAGES = [
    (
        b"B" + struct.pack(">QqI", 0x1_00000010, 1_000_000, 5),
        Begin(0x1_00000010, 946_684_801_000_000, 5),
    ),
    (b"C" + struct.pack(">BQQq", 0, 16, 32, 0), Commit(16, 32)),
    (ORDERS, Relation(7, "public.orders", "f", (Column("id", 20, True), Column("name", 25, False)))),
    (b"I" + struct.pack(">I", 7) + b"N" + tuple_data(b"1", None), Insert(7, [b"1", None])),
    (b"U" + struct.pack(">I", 7) + b"N" + tuple_data(b"1", UNCHANGED), Update(7, None, None, [b"1", UNCHANGED])),
    (
        b"U" + struct.pack(">I", 7) + b"K" + tuple_data(b"1", None) + b"N" + tuple_data(b"2", b"x"),
        Update(7, [b"1", None], None, [b"2", b"x"]),
    ),
    (
        b"U" + struct.pack(">I", 7) + b"O" + tuple_data(b"1", b"") + b"N" + tuple_data(b"2", b"x"),
        Update(7, None, [b"1", b""], [b"2", b"x"]),
    ),
    (b"D" + struct.pack(">I", 7) + b"K" + tuple_data(b"1", None), Delete(7, [b"1", None], None)),
    (b"D" + struct.pack(">I", 7) + b"O" + tuple_data(b"1", b"y"), Delete(7, None, [b"1", b"y"])),
    (b"T" + struct.pack(">IBII", 2, 0, 7, 8), Truncate((7, 8))),
    (b"O" + struct.pack(">Q", 1) + b"origin\0", None),
]


@pytest.mark.parametrize(("data", "message"), MESSAGES)
def the_decoder_knows_each_message(data: bytes, message: Any) -> None:
    assert decode(data) == message


@pytest.mark.parametrize("data", [data for data, message in MESSAGES if message is not None])
def a_message_that_is_cut_short_is_refused(data: bytes) -> None:
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="damaged message"):
            decode(data[:end])


def an_unknown_message_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown message"):
        decode(b"Zzz")


@given(st.integers(0, 2**64 - 1))
def an_lsn_is_read_as_it_is_written(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (Types.STRING(), "né".encode(), "né"),
        (Types.BOOLEAN(), b"t", True),
        (Types.BOOLEAN(), b"f", False),
        (Types.LONG(), b"-9223372036854775808", -(2**63)),
        (Types.DOUBLE(), b"-Infinity", float("-inf")),
        (Types.BIG_DEC(), b"0.10", Decimal("0.10")),
        (Types.SQL_DATE(), b"2026-02-28", datetime.date(2026, 2, 28)),
        (Types.SQL_TIME(), b"23:59:59.1", datetime.time(23, 59, 59, 100_000)),
        (Types.SQL_TIMESTAMP(), b"2026-02-28 01:02:03.45678", datetime.datetime(2026, 2, 28, 1, 2, 3, 456_000)),
        (Types.INSTANT(), b"1969-12-31 23:59:59.999999+00", Instant(-1, 999_999_000)),
        (Types.INSTANT(), b"1970-01-01 00:00:01+00", Instant(1, 0)),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\\x00ff", b"\x00\xff"),
    ],
)
def a_text_form_is_read_as_the_declared_type(declared: Any, text: bytes, value: Any) -> None:
    assert converter(declared)(text) == value
    assert declared.conform(converter(declared)(text)) == value


def a_type_that_no_column_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Types.STRING"):
        accepted_types(Types.LIST(Types.LONG()))


@given(st.integers(1, 2**40), st.sets(st.integers(0, 20)), st.integers(-30, 30))
def a_snapshot_has_seen_what_had_ended_also_when_numbers_wrap(xmax: int, back: set[int], offset: int) -> None:
    running = frozenset(xmax - n for n in back if n and xmax - n > 0)
    snapshot = Snapshot(min(running, default=xmax), xmax, running)
    xid = max(1, xmax + offset)
    assert snapshot.sees(xid & 0xFFFFFFFF) == (xid < xmax and xid not in running)


def a_snapshot_that_still_waits_for_what_an_earlier_one_saw_does_not_succeed_it() -> None:
    earlier = Snapshot.parse("10:20:12")
    assert succeeds(Snapshot.parse("12:25:12,22"), earlier)
    assert not succeeds(Snapshot.parse("12:25:12,15"), earlier)


def the_region_of_the_key_decides_among_several() -> None:
    old, new = Snapshot.parse("10:10:"), Snapshot.parse("20:20:")
    regions = [Region(("b",), old), Region(None, new)]

    def ordered(key: str) -> Any:
        return lambda bounds: sum((key,) > bound for bound in bounds)

    assert first_unseen(regions, 15, ("a",), ordered("a")) is True
    assert first_unseen(regions, 15, ("c",), ordered("c")) is False
    assert first_unseen(regions, 15, None, ordered("")) is None
    assert first_unseen(regions, 25, None, ordered("")) is True
    assert first_unseen(regions, 5, None, ordered("")) is False


def a_key_of_any_text_is_a_literal() -> None:
    assert literals(["o'b\\c"], ["text"]) == r"E'o''b\\c'::text"


COLUMNS = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])


def table_rows(mode: Any = "all", missing: Any = "fail", key: tuple[str, ...] = ("id",)) -> TableRows:
    rows = TableRows("public.orders", COLUMNS, mode, missing, {"id": 20, "name": 25}, key)
    rows.describe(Relation(7, "public.orders", "f", (Column("id", 20, True), Column("name", 25, False))))
    return rows


def row(kind: RowKind, *values: Any) -> Row:
    made = Row.of_kind(kind, *values)
    made.set_field_names(["id", "name"])
    return made


def an_update_is_two_rows_and_large_values_that_did_not_change_come_from_the_old_one() -> None:
    made = table_rows().updated(Update(7, None, [b"1", b"long"], [b"1", UNCHANGED]))
    assert [each.row for each in made] == [row(RowKind.UPDATE_BEFORE, 1, "long"), row(RowKind.UPDATE_AFTER, 1, "long")]
    assert {each.key for each in made} == {("1",)}


def an_update_of_the_key_is_a_deletion_and_an_insertion() -> None:
    made = table_rows().updated(Update(7, None, [b"1", b"x"], [b"2", b"x"]))
    assert [each.row for each in made] == [row(RowKind.DELETE, 1, "x"), row(RowKind.INSERT, 2, "x")]
    made = table_rows("upsert").updated(Update(7, [b"1", None], None, [b"2", b"x"]))
    assert [each.row for each in made] == [row(RowKind.DELETE, 1, None), row(RowKind.INSERT, 2, "x")]
    assert [each.key for each in made] == [("1",), ("2",)]


def an_upsert_is_the_new_row_and_a_deletion_the_key() -> None:
    rows = table_rows("upsert")
    assert [each.row for each in rows.updated(Update(7, None, None, [b"1", b"y"]))] == [row(RowKind.UPDATE_AFTER, 1, "y")]
    assert [each.row for each in rows.deleted(Delete(7, [b"1", None], None))] == [row(RowKind.DELETE, 1, None)]


def a_change_without_what_the_rows_need_names_the_remedy() -> None:
    with pytest.raises(Misfit, match=r"no old row of this update: ALTER TABLE public.orders REPLICA IDENTITY FULL"):
        table_rows().updated(Update(7, None, None, [b"1", b"x"]))
    with pytest.raises(Misfit, match="no old row of this deletion: ALTER TABLE"):
        table_rows().deleted(Delete(7, [b"1", None], None))
    with pytest.raises(Misfit, match=r"lacks the value of the column 'name'.*TOAST"):
        table_rows("upsert").updated(Update(7, None, None, [b"1", UNCHANGED]))
    with pytest.raises(Misfit, match=r"column 'id' has the value b'x', which .* does not take"):
        table_rows().inserted(Insert(7, [b"x", None]))


def a_column_that_is_missing_is_an_error_or_none() -> None:
    lacking = Relation(7, "public.orders", "f", (Column("id", 20, True), Column("title", 25, False)))
    with pytest.raises(Misfit, match=r"no column 'name' at this place of the log \(it has id, title\)"):
        table_rows().describe(lacking)
    rows = table_rows(missing="null")
    rows.describe(lacking)
    assert rows.inserted(Insert(7, [b"1", b"t"]))[0].row == row(RowKind.INSERT, 1, None)


def a_column_whose_type_has_changed_is_read_if_the_declared_type_takes_it() -> None:
    rows = table_rows()
    rows.describe(Relation(7, "public.orders", "f", (Column("id", 23, True), Column("name", 25, False))))
    with pytest.raises(Misfit, match="OID 1700"):
        rows.describe(Relation(7, "public.orders", "f", (Column("id", 1700, True), Column("name", 25, False))))


def a_table_without_a_key_has_whole_updates() -> None:
    made = table_rows(key=()).updated(Update(7, None, [b"1", b"x"], [b"2", b"x"]))
    assert [each.row.get_row_kind() for each in made] == [RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER]
