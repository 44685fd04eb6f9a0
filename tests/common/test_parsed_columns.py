"""Texts parsed into columns give the records that they give one by one, or the same errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Types
from holdfast.common.formats.columns import columns_of
from holdfast.common.formats.csv import CsvRowDeserializationSchema
from holdfast.common.formats.json import JsonRowDeserializationSchema

NAMES = ["whole", "small", "real", "word", "flag"]
ROW = Types.ROW_NAMED(NAMES, [Types.LONG(), Types.SHORT(), Types.DOUBLE(), Types.STRING(), Types.BOOLEAN()])

strange = ["", " ", "7", "-0", "+5", " 12 ", "007", "0x1F", "1_0", "1e5", "1E-3", ".5", "5.", "-.5", "1.5e400", "٣", "1 2"]
stranger = [
    "nan",
    "NaN",
    "inf",
    "-Infinity",
    "nan(1)",
    "-nan",
    "\t8",
    "--1",
    "1e",
    "-",
    "1f",
    "0b1",
    "1e999",
    "5\0",
    "\x0b3",
]
number = st.one_of(
    st.integers(-(2**63) - 2, 2**63 + 1).map(str),
    st.floats().map(repr),
    st.sampled_from([*strange, *stranger]),
    st.text("0123456789.-+eExX_ ninfa()", max_size=6),
)
word = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=4), st.sampled_from(['"', "a b", "#x", '"a,b"'])
)
flag = st.sampled_from(["true", "false", "True", "FALSE", "tRue", " true", "", "1", "0", "yes"])
fields = (number, number, number, word, flag)
line = st.integers(0, 4).flatmap(
    lambda at: fields[at].map(
        lambda text: [text if n == at else usual for n, usual in enumerate(["3", "4", "0.5", "a", "true"])]
    )
)


def outcome(parse: Callable[[], list[Any]]) -> Any:
    try:
        return [list(map(repr, row)) for row in parse()]
    except ValueError:
        return "an error"


@settings(max_examples=examples(200), deadline=None)
@given(rows=st.lists(line, min_size=1, max_size=3))
def the_columns_of_csv_lines_hold_what_the_lines_give_one_by_one(rows: list[list[str]]) -> None:
    schema = CsvRowDeserializationSchema.Builder(ROW).build()
    lines = [",".join(fields).encode() for fields in rows]
    assert outcome(lambda: schema.deserialize_batch(lines)) == outcome(lambda: [schema.deserialize(line) for line in lines])


@settings(max_examples=examples(100), deadline=None)
@given(
    values=st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**63) - 1, 2**63), st.floats(), st.text(max_size=3), number),
        min_size=5,
        max_size=10,
    )
)
def the_columns_of_json_objects_hold_what_the_objects_give_one_by_one(values: list[Any]) -> None:
    schema = JsonRowDeserializationSchema.builder().type_info(ROW).build()
    objects = [dict(zip(NAMES, part)) for part in (values[:5], values[5:])]
    texts = [msgspec.json.encode(each) for each in objects]
    expected = outcome(lambda: [schema.deserialize(text) for text in texts])
    assert outcome(lambda: schema.deserialize_batch(texts)) == expected
    if expected != "an error":
        columns = columns_of(schema.deserialize_batch(texts))
        assert columns is not None
        assert outcome(lambda: columns.of(columns.batch).rows()) == expected


@pytest.mark.parametrize("lines", [[b"1,2,0.5,a,true", b"2,3,1.5,b,false"], [b",,,,"], [b"-1,2,nan,,"]])
def test_plain_csv_lines_become_columns(lines: list[bytes]) -> None:
    assert columns_of(CsvRowDeserializationSchema.Builder(ROW).build().deserialize_batch(lines)) is not None
