"""Schemas of stored state: ids that stay, versions that are added, verdicts on new declarations."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.typeinfo import Types
from holdfast.errors import IncompatibleState
from holdfast.state.stored import schema as schemas
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import (
    ENTRIES,
    ROWS,
    TIMERS,
    AfterMigration,
    AsIs,
    ColumnSchema,
    Incompatible,
    KeySchema,
    OperatorSchema,
    StateSchema,
    joined,
    judge_column,
    judge_key,
)

LONG, INT, STRING = (t.to_dict() for t in (Types.LONG(), Types.INT(), Types.STRING()))
BIG_INT, DOUBLE = Types.BIG_INT().to_dict(), Types.DOUBLE().to_dict()


def column(*types: dict[str, Any], kind: str = "value", ttl: bool = False, name: str = "n") -> ColumnSchema:
    return ColumnSchema(name, kind, types, ttl)


@pytest.mark.parametrize(
    ("stored", "declared", "verdict"),
    [
        (column(LONG), column(LONG), AsIs),
        (column(), column(), AsIs),
        (column(LONG, ttl=True), column(LONG, ttl=True), AsIs),
        (column(INT), column(LONG), AfterMigration),
        (column(STRING, INT, kind="map"), column(STRING, LONG, kind="map"), AfterMigration),
        (column(), column(LONG), AfterMigration),
        (column(LONG), column(), AfterMigration),
        (column(LONG), column(BIG_INT), AfterMigration),
        (column(LONG), column(DOUBLE), AfterMigration),
        (column(STRING, LONG, kind="map"), column(LONG, LONG, kind="map"), Incompatible),
        (column(LONG), column(LONG, ttl=True), Incompatible),
        (column(LONG), column(INT), Incompatible),
        (column(LONG), column(STRING), Incompatible),
        (column(INT, ttl=True), column(STRING), Incompatible),
        (column(LONG), column(LONG, kind="list"), Incompatible),
    ],
    ids=str,
)
def the_verdict_on_a_declaration(stored: ColumnSchema, declared: ColumnSchema, verdict: type):
    assert isinstance(judge_column(stored, declared), verdict)


@pytest.mark.parametrize(
    ("stored", "declared", "verdict"),
    [
        (KeySchema(LONG), LONG, AsIs()),
        (KeySchema(None), LONG, AsIs()),
        (KeySchema(LONG), None, AsIs()),
        (KeySchema(LONG), BIG_INT, AsIs()),
        (KeySchema(INT), LONG, AsIs()),
    ],
    ids=str,
)
def the_state_of_equal_keys_is_kept(stored: KeySchema, declared: Any, verdict: Any):
    assert judge_key(stored, declared) == verdict


@pytest.mark.parametrize(("stored", "declared"), [(LONG, STRING), (STRING, LONG), (DOUBLE, LONG), (LONG, DOUBLE)], ids=str)
def the_state_of_keys_of_another_type_is_refused(stored: Any, declared: Any):
    verdict = judge_key(KeySchema(stored), declared)
    assert isinstance(verdict, Incompatible)
    assert f"declared as {stored['type']} and are now declared as {declared['type']}" in verdict.reason


def the_state_of_keys_of_another_hash_is_refused():
    verdict = judge_key(KeySchema(None, hash_version=2), None)
    assert isinstance(verdict, Incompatible)
    assert "version 2 of the hash; this release computes version 1" in verdict.reason


def a_key_type_that_changed_is_refused_with_the_operator():
    registry = OperatorSchemaRegistry("'count' (uid 'c')")
    registry.key(LONG)
    later = OperatorSchemaRegistry("'count' (uid 'c')", registry.schema)
    later.key(None)
    assert later.schema == registry.schema
    with pytest.raises(IncompatibleState, match=r"operator 'count' \(uid 'c'\).*declared as LONG.*now declared as STRING"):
        later.key(STRING)


def a_declaration_that_needs_a_migration_is_a_new_version_with_the_former_types():
    registry = OperatorSchemaRegistry("'count' (uid 'c')")
    registry.state("keyed", ROWS)
    registry.column("keyed", column(INT))
    old = registry.schema
    assert registry.column("keyed", column(LONG)) == 0
    new = registry.schema
    assert new.version == old.version + 1
    assert new.continues(old)
    assert not old.continues(new)
    (changed,) = new.states["keyed"].columns
    assert (changed.history(old.version), changed.history(new.version)) == ([(INT,), (LONG,)], [(LONG,)])
    assert (old.evolved, new.evolved != "") == ("", True)
    assert OperatorSchema.of_plain(new.plain()) == new
    assert joined([old, new]) == new


def a_declaration_that_cannot_be_migrated_is_refused_with_both_declarations_side_by_side():
    registry = OperatorSchemaRegistry("'count' (uid 'c')")
    registry.state("keyed", ROWS)
    registry.column("keyed", column(Types.ROW_NAMED(["id", "sum"], [Types.LONG(), Types.STRING()]).to_dict()))
    with pytest.raises(IncompatibleState) as refused:
        registry.column("keyed", column(Types.ROW_NAMED(["id", "sum"], [Types.LONG(), Types.LONG()]).to_dict()))
    assert str(refused.value).splitlines() == [
        "state 'n' of operator 'count' (uid 'c') cannot be used as the program declares it: field sum: STRING cannot become "
        "LONG.",
        "    stored:   a value state of ROW(id LONG, sum STRING)",
        "    declared: a value state of ROW(id LONG, sum LONG)",
        "Restore the old declaration, or give the new state another name (it then starts empty).",
    ]


def a_state_keeps_its_kind():
    schema = OperatorSchema().with_state("event-timers", TIMERS, "time")
    with pytest.raises(
        IncompatibleState, match="'event-timers' holds timers in slices of time in the checkpoint and rows in"
    ):
        schema.with_state("event-timers", ROWS)


names = st.sampled_from("abcdef")
states = st.sampled_from(
    [("keyed", ROWS, ""), ("window", ROWS, "window"), ("event-timers", TIMERS, "time"), ("m", ENTRIES, "")]
)


@given(st.lists(st.tuples(states, names), max_size=30))
def a_schema_only_grows(declared: list[tuple[tuple[str, str, str], str]]):
    schema = OperatorSchema()
    seen: dict[tuple[str, str | None], int] = {}
    versions = [schema]
    for (state, kind, slices), name in declared:
        schema = schema.with_state(state, kind, slices)
        assert seen.setdefault((state, None), schema.states[state].id) == schema.states[state].id
        if schema.column(state, name) is None:
            schema = schema.with_column(state, column(LONG, name=name))
        position = schema.column(state, name)
        assert seen.setdefault((state, name), position) == position
        versions.append(schema)
    assert len({each.id for each in schema.states.values()}) == len(schema.states)
    for old in versions:  # what an old version wrote is known to the newest
        for state, stored in old.states.items():
            assert schema.states[state].width(old.version) == len(stored.columns)
            assert schema.states[state].version(old.version) == stored.version(old.version) <= old.version
    assert OperatorSchema.of_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(schema.plain()))) == schema


steps = st.lists(st.tuples(states, names), max_size=12)


@given(steps, st.lists(st.tuples(st.integers(0, 12), st.lists(names, max_size=3)), min_size=1, max_size=4))
def test_one_schema_reads_the_data_of_all_subtasks_of_a_program(
    declared: list[tuple[tuple[str, str, str], str]], subtasks: list[tuple[int, list[str]]]
):
    """Each subtask has declared a part of the states; columns have outgrown their rows in whatever order."""
    schemas = []
    for count, grown in subtasks:
        schema = OperatorSchema().with_state("keyed", ROWS)
        for (state, kind, slices), name in declared[:count]:
            schema = schema.with_state(state, kind, slices)
            if schema.column(state, name) is None:
                schema = schema.with_column(state, column(LONG, name=name))
            for each in grown:
                if schema.column("keyed", each) is not None:
                    position = schema.column("keyed", each)
                    assert position is not None
                    schema = schema.with_outside("keyed", position)
        schemas.append(schema)
    result = joined(schemas)
    assert result is not None
    assert all(map(result.continues, schemas))
    assert len({each.id for each in result.states.values()}) == len(result.states)


def test_no_schema_reads_the_data_of_subtasks_that_declare_in_another_order():
    first, second = (
        OperatorSchema().with_state("keyed", ROWS).with_column("keyed", column(LONG, name=name)) for name in ("n", "m")
    )
    assert joined([first, second]) is None
    assert joined([first, first]) == first


def a_column_that_outgrows_its_rows_leaves_all_other_ids_and_versions():
    schema = OperatorSchema().with_state("keyed", ROWS).with_column("keyed", column(kind="map"))
    grown = schema.with_outside("keyed", 0)
    assert grown.version == schema.version
    assert grown.states["keyed/n"] == StateSchema(0x8000 + 1024, ENTRIES)
    later = [each.with_state("event-timers", TIMERS, "time") for each in (schema, grown)]
    assert later[0].states["event-timers"] == later[1].states["event-timers"]
    assert joined(later) == joined(later[::-1])


def a_schema_reads_what_it_has_grown_out_of_and_nothing_else():
    first = OperatorSchema().with_state("keyed", ROWS).with_column("keyed", column(LONG))
    grown = first.with_state("event-timers", TIMERS, "time").with_column("keyed", ColumnSchema("other", "value"))
    assert grown.continues(first)
    assert grown.continues(grown)
    assert not first.continues(grown)
    another = OperatorSchema().with_state("event-timers", TIMERS, "time").with_state("keyed", ROWS)
    assert not another.with_column("keyed", column(LONG)).continues(first)
    assert not OperatorSchema().with_state("keyed", ROWS).with_column("keyed", column(STRING)).continues(first)


def a_schema_of_another_form_is_refused():
    with pytest.raises(IncompatibleState, match="this release cannot read"):
        OperatorSchema.of_plain({"version": "one"})


def the_schema_of_an_example_stays_as_it_is():
    """Its stored form is in every checkpoint."""
    schema = (
        OperatorSchema()
        .with_key(STRING)
        .with_state("keyed", ROWS)
        .with_column("keyed", column(LONG, ttl=True))
        .with_state("event-timers", TIMERS, "time")
    )
    assert schema.plain() == {
        "version": 4,
        "key": {"type": {"version": 1, "type": "STRING"}},
        "states": {
            "keyed": {
                "id": 1,
                "kind": "rows",
                "columns": [
                    {"name": "n", "kind": "value", "types": [{"version": 1, "type": "LONG"}], "ttl": True, "since": 3},
                ],
                "since": 2,
            },
            "event-timers": {"id": 2, "kind": "timers", "slices": "time", "since": 4},
        },
    }
    assert schema.states["event-timers"] == StateSchema(2, TIMERS, "time", since=4)


@dataclasses.dataclass
class Created:
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)


@pytest.mark.parametrize("evolved", [False, True])
def the_schemas_of_subtasks_whose_classes_make_a_new_default_for_each_are_joined(evolved: bool):
    schemas = []
    for _ in range(2):
        types = (Types.LIST(Types.POJO(Created)).to_dict(),)
        schema = OperatorSchema().with_state("keyed", ROWS).with_column("keyed", ColumnSchema("s", "value", types))
        schemas.append(schema.with_types("keyed", 0, (Types.POJO(Created).to_dict(),)) if evolved else schema)
    assert schemas[0] != schemas[1]
    assert joined(schemas) in schemas


def a_column_without_a_reserved_id_for_its_entries_gets_another_free_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.state.stored.schema._MOST_COLUMNS", 1)
    schema = OperatorSchema().with_state("first", ROWS).with_state("second", ROWS)
    for state, name in (("first", "n"), ("first", "m"), ("second", "n")):
        schema = schema.with_column(state, column(kind="map", name=name))
    for state, position in (("first", 0), ("second", 0), ("first", 1)):
        schema = schema.with_outside(state, position)
    assert len({state.id for state in schema.states.values()}) == 5


def test_no_schema_reads_two_states_with_one_id(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.state.stored.schema._MOST_COLUMNS", 0)  # so the id of the entries depends on the order
    schema = OperatorSchema().with_state("keyed", ROWS).with_column("keyed", column(kind="map"))
    grown, timed = schema.with_outside("keyed", 0), schema.with_state("event-timers", TIMERS, "time")
    assert joined([grown, timed]) is None


def an_operator_has_as_many_states_as_there_are_ids(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schemas, "_FIRST_ENTRIES", 4)
    registry = OperatorSchemaRegistry("here")
    assert [registry.state(name, ROWS).id for name in "abc"] == [1, 2, 3]
    with pytest.raises(IncompatibleState, match="at most 3 states"):
        registry.state("d", ROWS)
    assert registry.state("c", ROWS).id == 3
