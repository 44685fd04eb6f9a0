"""The schema of an operator's stored state: states and columns with stable ids. Pure.

A schema only grows: a new declaration creates a new version, ids are never reused, and all stored data names the version
that wrote it. A reader with the newest schema can therefore read everything.

    operator schema, version 3
        key        declared type, version of the hash
        states     name -> id (part of every stored key), kind, kind of slices
                columns    the states that share a row: position in the row, kind, declared types, version that added it

Whether a new declaration fits the stored state is a verdict: `AsIs`, `AfterMigration` or `Incompatible`. A column whose
type changes keeps its former types: each row is read by the types of the version that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import msgspec
import xxhash

from holdfast.common.typeinfo.evolution import Unfit, evolution, same_type, without_hints
from holdfast.common.typeinfo.text import type_text
from holdfast.errors import IncompatibleState

__all__ = [
    "ENTRIES",
    "HASH_VERSION",
    "ROWS",
    "TIMERS",
    "VALUES",
    "AfterMigration",
    "AsIs",
    "ColumnSchema",
    "FormerTypes",
    "Incompatible",
    "KeySchema",
    "OperatorSchema",
    "StateSchema",
    "Verdict",
    "joined",
    "judge_column",
    "judge_key",
    "outside_name",
    "refusal",
]

HASH_VERSION = 1
"""Version of the hash in `holdfast.state.keys.key_groups`, which assigns keys to key groups."""

ROWS = "rows"
"""Kind of a state with one row per key."""
TIMERS = "timers"
"""Kind of a state with the timers of one service."""
ENTRIES = "entries"
"""Kind of a state with the entries of a column's large maps or lists."""

VALUES = "values"
"""Kind of a state with the large values of a column, which have rows of their own."""

_MOST_STATES = (1 << 16) - 1
_FIRST_ENTRIES = 1 << 15
"""Ids from here on belong to states with entries, or large values, of columns."""
_MOST_COLUMNS = 1 << 10
"""Columns per state that have a reserved id for their entries or large values."""
_WHOLE_NUMBERS = ("BYTE", "SHORT", "INT", "LONG", "BIG_INT")
"""Integer types, in order of width."""


@dataclass(frozen=True)
class AsIs:
    """The stored form is already that of the declaration."""


@dataclass(frozen=True)
class AfterMigration:
    """Every stored value can be converted to the declaration."""

    change: str
    """What the conversion changes."""


@dataclass(frozen=True)
class Incompatible:
    """Stored values cannot be converted to the declaration."""

    reason: str


Verdict = Union[AsIs, AfterMigration, Incompatible]


class FormerTypes(msgspec.Struct, frozen=True):
    """Types that a column had before the present ones."""

    types: tuple[dict[str, Any], ...]
    """The same as `ColumnSchema.types`."""
    until: int
    """The first schema version that no longer has them."""


class ColumnSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state of the user or of an operator: a column in the rows of a `StateSchema`. Its position is its id there."""

    name: str
    kind: str
    """Flink's kind: value, list, map, reducing or aggregating."""
    types: tuple[dict[str, Any], ...] = ()
    """Serializer snapshots of the declared types (two for a map); empty: values are pickled."""
    ttl: bool = False
    """Whether each value, element or entry carries the time of its last write."""
    since: int = 0
    """The schema version that added the column."""
    former: tuple[FormerTypes, ...] = ()
    """Oldest first."""

    def __str__(self) -> str:
        kind = f"a {self.kind} state" + (" with time-to-live" if self.ttl else "")
        return f"{kind} of {', '.join(map(type_text, self.types))}" if self.types else f"{kind} without declared type"

    @property
    def changed(self) -> int:
        """The schema version that added or last changed the column."""
        return self.former[-1].until if self.former else self.since

    def history(self, version: int) -> list[tuple[dict[str, Any], ...]]:
        """The types of rows written by a schema version, then each later version of them; the last are the present types."""
        return [*(each.types for each in self.former if version < each.until), self.types]

    def since_types(self, earlier: ColumnSchema) -> list[tuple[dict[str, Any], ...]]:
        """The types of an earlier form of this column, then each later version of them."""
        return [*(each.types for each in self.former[len(earlier.former) :]), self.types]

    def continues(self, earlier: ColumnSchema, version: int) -> bool:
        """Whether this column evolved from an earlier one, in a schema of this version."""
        if (self.name, self.kind, self.ttl, self.since) != (earlier.name, earlier.kind, earlier.ttl, earlier.since):
            return False
        common = self.former[: len(earlier.former)]
        later = self.former[len(earlier.former) :]
        return (
            [each.until for each in common] == [each.until for each in earlier.former]
            and all(_same_form(each.types, former.types) for each, former in zip(common, earlier.former))
            and _same_form(later[0].types if later else self.types, earlier.types)
            and (not later or later[0].until > version)
        )


def _same_form(types: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether values of these types have the same stored form. Defaults may differ, since each subtask computes its own."""
    return types == others or [*map(without_hints, types)] == [*map(without_hints, others)]


class StateSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything stored under one state id."""

    id: int
    """From 1; part of every stored key."""
    kind: str
    slices: str = ""
    """The kind of slices: ``window`` (a window's start), ``time`` (a bucket of timers), or empty: no slices."""
    columns: tuple[ColumnSchema, ...] = ()
    since: int = 0
    """The schema version that added the state."""

    def width(self, version: int) -> int:
        """The number of columns in rows of a schema version."""
        return sum(column.since <= version for column in self.columns)

    def version(self, newest: int) -> int:
        """The schema id of this state's rows in version ``newest``: the last version up to it that changed the state."""
        changes = [column.since for column in self.columns] + [each.until for c in self.columns for each in c.former]
        return max((change for change in changes if change <= newest), default=self.since)


class KeySchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The keys of an operator's state."""

    type: dict[str, Any] | None = None
    """Serializer snapshot of the declared type; None: not declared."""
    hash_version: int = HASH_VERSION


class OperatorSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schema of one operator's keyed state.

    >>> schema = OperatorSchema().with_state("keyed", ROWS).with_column("keyed", ColumnSchema("count", "value"))
    >>> schema.version, schema.states["keyed"].id, schema.column("keyed", "count")
    (2, 1, 0)
    """

    version: int = 0
    key: KeySchema = KeySchema()
    states: dict[str, StateSchema] = {}

    @staticmethod
    def of_plain(data: Any) -> OperatorSchema:
        """Parse a schema from checkpoint metadata, as written by `plain`.

        Raises:
            IncompatibleState: a later release wrote it in an unknown form.
        """
        try:
            return msgspec.convert(data, OperatorSchema)
        except msgspec.ValidationError as error:
            raise IncompatibleState(f"this release cannot read the schema of the stored state: {error}") from error

    def plain(self) -> dict[str, Any]:
        """The schema as plain data, for checkpoint metadata."""
        data: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self))
        return data

    @property
    def fingerprint(self) -> str:
        """A hash that distinguishes schemas, e.g. those of subtasks that declared their states in another order."""
        return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(self))

    def with_state(self, name: str, kind: str, slices: str = "") -> OperatorSchema:
        """The schema with this state; a new state is added in a new version.

        Raises:
            IncompatibleState: the state exists with another kind or other slices.
        """
        known = self.states.get(name)
        if known is not None:
            if (known.kind, known.slices) != (kind, slices):
                raise IncompatibleState(
                    f"the state {name!r} holds {_content(known.kind, known.slices)} in the checkpoint and "
                    f"{_content(kind, slices)} in the program"
                )
            return self
        version = self.version + 1
        new = StateSchema(self._free_id(), kind, slices, since=version)
        return msgspec.structs.replace(self, version=version, states={**self.states, name: new})

    def with_outside(self, state: str, position: int) -> OperatorSchema:
        """The schema with a state for a column's content outside of its rows (`outside_name`).

        When a column outgrows its rows depends on a subtask's data, so the id must depend on the column alone. The form of
        rows stays the same, and so does the version.
        """
        rows = self.states[state]
        column = rows.columns[position]
        name = outside_name(state, column.name)
        if name in self.states:
            return self
        number = _FIRST_ENTRIES + rows.id * _MOST_COLUMNS + position
        if position >= _MOST_COLUMNS or number > _MOST_STATES:
            number = self._free_id()
        new = StateSchema(number, ENTRIES, rows.slices)
        if column.kind == "value":
            new = StateSchema(number, VALUES, rows.slices, (column,), since=column.since)
        return msgspec.structs.replace(self, states={**self.states, name: new})

    def _free_id(self) -> int:
        """The id for a new state.

        Raises:
            IncompatibleState: all ids are used.
        """
        number = 1 + max((state.id for state in self.states.values() if state.id < _FIRST_ENTRIES), default=0)
        if number >= _FIRST_ENTRIES:
            raise IncompatibleState(f"an operator has at most {_FIRST_ENTRIES - 1} states")
        return number

    def with_column(self, state: str, column: ColumnSchema) -> OperatorSchema:
        """The schema with one more column, added in a new version. The column's name must be new in the state."""
        version = self.version + 1
        known = self.states[state]
        columns = (*known.columns, msgspec.structs.replace(column, since=version))
        changed = msgspec.structs.replace(known, columns=columns)
        return msgspec.structs.replace(self, version=version, states={**self.states, state: changed})

    def with_types(self, state: str, position: int, types: tuple[dict[str, Any], ...]) -> OperatorSchema:
        """The schema in which a column has other types, from a new version on."""
        version = self.version + 1
        known = self.states[state]
        old = known.columns[position]
        new = msgspec.structs.replace(old, types=types, former=(*old.former, FormerTypes(old.types, version)))
        columns = (*known.columns[:position], new, *known.columns[position + 1 :])
        states = {**self.states, state: msgspec.structs.replace(known, columns=columns)}
        outside = outside_name(state, old.name)
        if outside in states and states[outside].kind == VALUES:
            states[outside] = msgspec.structs.replace(states[outside], columns=(new,))
        return msgspec.structs.replace(self, version=version, states=states)

    def with_key(self, declared: Mapping[str, Any] | None) -> OperatorSchema:
        """The schema with this key type (a serializer snapshot), already approved by `judge_key`."""
        if declared is None or (self.key.type is not None and same_type(self.key.type, declared)):
            return self
        key = KeySchema(dict(declared), self.key.hash_version)
        return msgspec.structs.replace(self, version=self.version + 1, key=key)

    def continues(self, earlier: OperatorSchema) -> bool:
        """Whether this schema evolved from an earlier one and can therefore read its data."""

        def grown(name: str, old: StateSchema) -> bool:
            new = self.states.get(name)
            return (
                new is not None
                and len(new.columns) >= len(old.columns)
                and all(column.continues(before, earlier.version) for before, column in zip(old.columns, new.columns))
                and ((new.id, new.kind, new.slices, new.since) == (old.id, old.kind, old.slices, old.since))
            )

        return self.version >= earlier.version and all(grown(name, old) for name, old in earlier.states.items())

    @property
    def evolved(self) -> str:
        """A hash of all changes of types. A store with rows of new types fits only schemas with the same hash."""
        changes = [
            (name, n, c.former) for name, s in sorted(self.states.items()) for n, c in enumerate(s.columns) if c.former
        ]
        return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(changes)) if changes else ""

    def column(self, state: str, name: str) -> int | None:
        """The position of a column; None if the state has no column of this name."""
        columns = self.states[state].columns
        return next((i for i, column in enumerate(columns) if column.name == name), None)


def outside_name(state: str, column: str) -> str:
    """The name of the state with a column's content outside of its rows: entries, or large values."""
    return f"{state}/{column}"


def judge_column(stored: ColumnSchema, declared: ColumnSchema) -> Verdict:
    """Judge whether a column's stored values fit a new declaration of the same name."""
    if stored.kind != declared.kind:
        return Incompatible("a state cannot change its kind")
    if stored.ttl != declared.ttl:
        return Incompatible("a time-to-live cannot be added or removed, as the times of the last writes are stored or not")
    if stored.types == declared.types:
        return AsIs()
    if not stored.types:
        return AfterMigration("pickled values are checked against the declared type and stored in its form")
    if not declared.types:
        return AfterMigration("values in their type's form are pickled")
    try:
        if stored.kind == "map" and not same_type(stored.types[0], declared.types[0]):
            return Incompatible("the keys of a map must keep their type")
        changes = evolution(stored.types[-1], declared.types[-1]).changes
    except Unfit as error:
        return Incompatible(str(error))
    return AfterMigration("; ".join(changes)) if changes else AsIs()


def refusal(where: str, verdict: Incompatible, stored: object, declared: object) -> IncompatibleState:
    """The error for a state that does not fit its declaration; ``where`` names the state and its operator."""
    return IncompatibleState(
        f"{where} cannot be used as the program declares it: {verdict.reason}.\n"
        f"    stored:   {stored}\n    declared: {declared}\n"
        "Restore the old declaration, or give the new state another name (it then starts empty)."
    )


def judge_key(stored: KeySchema, declared: Mapping[str, Any] | None, hash_version: int = HASH_VERSION) -> Verdict:
    """Judge whether stored keys can be found as keys of the declared type.

    The stored form of a key does not depend on its declared type, so only the values matter.
    """
    if stored.hash_version != hash_version:
        return Incompatible(
            f"its keys were assigned to key groups by version {stored.hash_version} of the hash; this release computes "
            f"version {hash_version}"
        )
    if stored.type is None or declared is None or same_type(stored.type, declared):
        return AsIs()
    if {stored.type.get("type"), declared.get("type")} <= set(_WHOLE_NUMBERS):
        return AsIs()
    return Incompatible(
        f"its keys were declared as {type_text(stored.type)} and are now declared as {type_text(declared)}: the state of "
        "the old keys would not be found"
    )


def restored_schema(where: str, schemas: Sequence[Any]) -> OperatorSchema:
    """The schema that reads the state of several subtasks.

    Args:
        where: The operator, for the message.
        schemas: The subtasks' schemas as plain data; at least one.

    Raises:
        IncompatibleState: two of them contradict.
    """
    schema = joined([OperatorSchema.of_plain(schema) for schema in schemas])
    if schema is None:
        raise IncompatibleState(
            f"the subtasks of operator {where} have declared different states, or in different orders, so that their "
            "state cannot be redistributed: resume with the parallelism that the checkpoint was written at, and declare "
            "all states in open()"
        )
    return schema


def joined(schemas: Sequence[OperatorSchema]) -> OperatorSchema | None:
    """Merge schemas, e.g. of redistributed subtasks, into one that reads all their data; None if two of them contradict.

    Subtasks of one program may be at different versions, and different columns may have outgrown their rows.
    """
    newest = max(schemas, key=lambda schema: schema.version)
    states = dict(newest.states)
    for schema in schemas:
        for name, state in schema.states.items():
            if state.kind in (ENTRIES, VALUES):
                states.setdefault(name, state)
    for name, state in states.items():
        if state.kind == VALUES:  # the column belongs to the rows, in whichever schema they are
            rows, column = name.split("/", 1)
            columns = tuple(each for each in states[rows].columns if each.name == column)
            states[name] = msgspec.structs.replace(state, columns=columns)
    result = msgspec.structs.replace(newest, states=states)
    distinct = len({state.id for state in states.values()}) == len(states)
    return result if distinct and all(map(result.continues, schemas)) else None


def _content(kind: str, slices: str) -> str:
    return f"{kind} in slices of {slices}" if slices else kind
