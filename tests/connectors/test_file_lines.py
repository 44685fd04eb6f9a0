"""Byte ranges aligned to lines."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import pytest
from connector_harness import local_input
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.common.formats.csv import CsvRowDeserializationSchema
from holdfast.common.formats.json import JsonRowDeserializationSchema
from holdfast.common.serialization import DeserializationSchema
from holdfast.common.typeinfo import Types
from holdfast.common.types import Row
from holdfast.connectors.file import lines
from holdfast.connectors.file.formats import CsvFormat, JsonLinesFormat, LineFormat, TextFormat
from holdfast.errors import ConfigurationError, InputLost, UserCodeError

texts = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12), max_size=40)


def read(form: LineFormat, path: Path, cuts: list[int], max_batch: int = 3) -> list[Any]:
    size = path.stat().st_size
    bounds = sorted({0, size, *(cut for cut in cuts if cut < size)})
    file = local_input(path)
    return [
        value
        for a, b in itertools.pairwise(bounds)
        for batch in form.read(file, a, b, size, max_batch)
        for value in batch.values
    ]


def test_any_cut_of_a_file_into_ranges_yields_every_line_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.txt"

    @given(
        content=texts,
        ends=st.booleans(),
        crlf=st.booleans(),
        cuts=st.lists(st.integers(1, 400)),
        block=st.integers(1, 64),
    )
    @example(content=["", ""], ends=True, crlf=False, cuts=[1], block=1)
    @example(content=["a", "", "b"], ends=False, crlf=True, cuts=[1, 2, 3, 4, 5, 6], block=2)
    @settings(max_examples=300, deadline=None)
    def check(content: list[str], ends: bool, crlf: bool, cuts: list[int], block: int) -> None:
        monkeypatch.setattr(lines, "BLOCK_SIZE", block)
        end = "\r\n" if crlf else "\n"
        path.write_bytes((end.join(content) + (end if ends and content else "")).encode())
        expected = content if ends or not content or content[-1] else content[:-1]
        if content and content[0].startswith("\ufeff"):
            expected = [content[0][1:], *expected[1:]] if expected else expected
        assert read(TextFormat("utf-8"), path, cuts) == expected

    check()


def test_a_csv_file_cut_anywhere_yields_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    rows = [("1", "a,b", ""), ('say "hi"', "2", "x"), ("plain", "", "y")] * 20
    monkeypatch.setattr(lines, "BLOCK_SIZE", 50)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    size = path.stat().st_size
    for step in (1, 7, 50, size):
        assert read(CsvFormat(",", '"', False, "utf-8"), path, list(range(0, size, step))) == rows


def a_csv_header_names_the_columns_in_every_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id;name\n" + "".join(f"{i};n{i}\n" for i in range(30)))
    monkeypatch.setattr(lines, "BLOCK_SIZE", 16)
    form = CsvFormat(";", '"', True, "utf-8")
    expected = [{"id": str(i), "name": f"n{i}"} for i in range(30)]
    for step in (1, 9, 1000):
        assert read(form, path, list(range(0, 400, step))) == expected


def json_lines_case(tmp_path: Path, content: bytes) -> tuple[Path, JsonLinesFormat]:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    return path, JsonLinesFormat()


def test_json_lines_skip_blank_lines(tmp_path: Path) -> None:
    path, form = json_lines_case(tmp_path, b'{"a":1}\n\n[2]\r\n"x"\n\n')
    assert read(form, path, [3, 9]) == [{"a": 1}, [2], "x"]


def a_line_that_does_not_parse_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_SIZE", 20)
    path, form = json_lines_case(tmp_path, b'{"a":1}\n\n' * 10 + b'{"a":\n{"a":2}\n')
    with pytest.raises(UserCodeError, match="DecodeError") as error:
        read(form, path, [15])
    assert error.value.record == f"{path}, line 21"
    assert f"{path}, line 21 does not parse as JsonLines: b'{{\"a\":'" in str(error.value)


def a_quoted_value_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('1,"' + "a" * 200_000 + '"\n')
    csv.field_size_limit(131_072)  # Python's own
    assert read(CsvFormat(",", '"', False, "utf-8"), path, []) == [("1", "a" * 200_000)]


def an_open_quote_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('1,"a"\n\n2,"b\nc"\n')
    with pytest.raises(UserCodeError, match=r"line 3 does not parse") as error:
        read(CsvFormat(",", '"', False, "utf-8"), path, [])
    assert error.value.record == f"{path}, line 3"


def a_row_that_does_not_fit_the_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(UserCodeError, match="the row has 1 values, the header 2 columns") as error:
        read(CsvFormat(",", '"', True, "utf-8"), path, [])
    assert error.value.record == f"{path}, line 3"


def the_line_with_bytes_outside_the_charset_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("one\ntwo\nthr\xe9e\n".encode("latin-1"))
    with pytest.raises(UserCodeError, match="UnicodeDecodeError") as error:
        read(TextFormat("utf-8"), path, [])
    assert error.value.record == f"{path}, line 3"
    assert read(TextFormat("latin-1"), path, [5]) == ["one", "two", "thr\xe9e"]


def the_place_of_a_record_counts_blank_lines_and_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_SIZE", 8)
    path = tmp_path / "rows.csv"
    text = "name\n\na\nb\n\n\nc\nd\n\ne\n"
    path.write_text(text)
    form = CsvFormat(",", '"', True, "utf-8")
    file = local_input(path)
    batches = list(form.read(file, 0, len(text), len(text), 2))
    places = {batch.values[i]["name"]: batch.locate(i) for batch in batches for i in range(len(batch.values))}
    assert places == {name: f"{path}, line {text.split(chr(10)).index(name) + 1}" for name in "abcde"}


class Evens(DeserializationSchema):
    def deserialize(self, data: bytes) -> int | None:
        return int(data) if int(data) % 2 == 0 else None


def a_schema_makes_the_records_and_skips_with_none(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{i}\n" for i in range(20)))
    form = JsonLinesFormat(Evens())
    assert read(form, path, [11]) == list(range(0, 20, 2))
    file = local_input(path)
    batch = next(iter(form.read(file, 0, 30, 30, 100)))
    assert batch.locate(3) == f"{path}, line 7"


def a_truncated_file_is_input_lost(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    form = TextFormat("utf-8")
    file = local_input(path)
    with pytest.raises(InputLost, match="truncated or replaced"):
        list(form.read(file, 0, 8, 8, 10))


@pytest.mark.parametrize("charset", ["utf-16", "no-such-charset"])
def a_charset_without_plain_line_feeds_is_refused(charset: str) -> None:
    with pytest.raises(ConfigurationError, match="charset"):
        TextFormat(charset)


def a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffa\nb\n".encode())
    assert read(TextFormat("utf-8"), path, [2]) == ["a", "b"]


def the_mean_length_of_lines_is_learnt_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("123456789\n" * 20_000)
    assert lines.sample_line_length(local_input(path)) == 10


def a_json_row_schema_makes_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id":1,"name":"a"}\n{"id":2,"name":"b"}\n')
    type_info = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    schema = JsonRowDeserializationSchema.builder().type_info(type_info).build()
    assert read(JsonLinesFormat(schema), path, [7]) == [Row(id=1, name="a"), Row(id=2, name="b")]


@pytest.mark.parametrize("other", [b"d,e", b'"d",e'])
def a_carriage_return_within_a_line_of_csv_is_data_whatever_else_is_there(tmp_path: Path, other: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a\rb,c\r\n" + other + b"\n")
    assert read(CsvFormat(",", '"', False, "utf-8"), path, []) == [("a\rb", "c"), ("d", "e")]


def a_schema_reads_lines_of_the_charset(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("Zoë,1\nAnaïs,2\n".encode("latin-1"))
    declared = Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.LONG()])
    schema = CsvRowDeserializationSchema.Builder(declared).build()
    assert read(CsvFormat(",", '"', False, "latin-1", schema), path, []) == [Row(name="Zoë", n=1), Row(name="Anaïs", n=2)]


def a_whole_number_of_json_lines_stays_whole(tmp_path: Path) -> None:
    path, form = json_lines_case(tmp_path, b'{"account": 123456789012345678901234}\n1.5\n')
    assert read(form, path, []) == [{"account": 123456789012345678901234}, 1.5]
