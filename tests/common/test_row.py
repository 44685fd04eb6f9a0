"""Row."""

from __future__ import annotations

import copy
import pickle

import pytest

from holdfast.common import Row, RowKind


def test_named_fields_keep_the_order_of_the_call() -> None:
    row = Row(b=1, a=2)
    assert list(row) == [1, 2]
    assert repr(row) == "Row(b=1, a=2)"
    assert (row.b, row["a"], row[0], row[0:2]) == (1, 2, 1, [1, 2])


def test_a_positional_row_has_no_attributes() -> None:
    row = Row(1, "x")
    assert repr(row) == "<Row(1, 'x')>"
    with pytest.raises(AttributeError, match="f0"):
        row.f0
    with pytest.raises(ValueError, match="no field names"):
        row["f0"]
    with pytest.raises(TypeError, match="no field names"):
        row.as_dict()


def test_positional_and_named_fields_do_not_mix() -> None:
    with pytest.raises(ValueError, match="not both"):
        Row(1, a=2)


def test_rows_are_equal_if_their_names_and_values_are_in_their_order() -> None:
    assert Row(a=1, b=2) == Row(a=1, b=2)
    assert hash(Row(a=1, b=2)) == hash(Row(a=1.0, b=2))
    assert Row(a=1, b=2) != Row(b=2, a=1)
    assert Row(a=1, b=2) != Row(a=2, b=1)
    assert Row(a=1) != Row(b=1)
    assert Row(1, 2) != Row(a=1, b=2)
    assert Row(1, 2) == Row(f0=1, f1=2)
    assert Row(1, 2) != (1, 2)
    assert Row(1) != Row(1, 2)


def test_equality_needs_the_same_kind() -> None:
    assert Row.of_kind(RowKind.DELETE, 1) != Row(1)
    assert Row.of_kind(RowKind.DELETE, a=1).get_row_kind() is RowKind.DELETE


def test_rows_can_be_changed() -> None:
    row = Row(a=1, b=2)
    row["a"] = 5
    row[1] = 6
    assert row.as_dict() == {"a": 5, "b": 6}
    row.a = 7
    assert row.a == 7
    with pytest.raises(AttributeError):
        row.c = 1
    row.set_row_kind(RowKind.UPDATE_AFTER)
    row.set_field_names(["x", "y"])
    assert repr(row) == "Row(x=7, y=6)"
    with pytest.raises(ValueError, match="1 names"):
        row.set_field_names(["x"])


def test_a_row_of_names_makes_rows() -> None:
    person = Row("name", "age")
    assert person("Asha", 31) == Row(name="Asha", age=31)
    with pytest.raises(ValueError, match="names 2 fields"):
        person("Asha")


def test_membership_is_of_values() -> None:
    assert 1 in Row(a=1)
    assert "a" not in Row(a=1)
    assert len(Row(a=1, b=2)) == 2


def test_rows_become_dicts_also_nested_ones() -> None:
    row = Row(a=1, b=Row(c=[Row(d=2)], e={"k": Row(f=3)}))
    assert row.as_dict()["b"] == row.b
    assert row.as_dict(True) == {"a": 1, "b": {"c": [{"d": 2}], "e": {"k": {"f": 3}}}}


@pytest.mark.parametrize("row", [Row(1, "x"), Row(a=1, b="x"), Row.of_kind(RowKind.DELETE, a=1), Row()])
def test_rows_survive_pickle_and_copy(row: Row) -> None:
    for other in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert other == row
        assert repr(other) == repr(row)


def test_fields_by_names() -> None:
    assert Row(a=1, b=2).get_fields_by_names(["b", "a"]) == [2, 1]
    with pytest.raises(ValueError, match="no field 'z'"):
        Row(a=1).get_fields_by_names(["z"])
