"""The schema of an operator's stored state: its states and columns with stable ids. Pure.

A schema only grows: a new declaration gives a new version, ids are never used again, and whatever was written names
the version that it was written by. So a reader that has the newest schema can read everything.

    operator schema, version 3
        key        declared type, version of the hash
        states     name -> id (in every stored key), kind, what its slices are
            columns    the states that share the rows: position in the row, kind, declared types, version that added it

Whether a new declaration fits what is stored is a verdict: `AsIs`, `AfterMigration` or `Incompatible`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import msgspec
import xxhash

from holdfast.errors import IncompatibleState

__all__ = [
    "ENTRIES",
    "HASH_VERSION",
    "ROWS",
    "TIMERS",
    "AfterMigration",
    "AsIs",
    "ColumnSchema",
    "Incompatible",
    "KeySchema",
    "OperatorSchema",
    "StateSchema",
    "Verdict",
    "judge_column",
    "judge_key",
    "merged",
]

HASH_VERSION = 1
"""The version of the hash by which `holdfast.state.key_groups` assigns keys to key groups."""

ROWS = "rows"
"""The kind of a state that holds a row for each key."""
TIMERS = "timers"
"""The kind of a state that holds the timers of one service."""
ENTRIES = "entries"
"""The kind of a state that holds the entries of a column that has outgrown its row."""

_MOST_STATES = (1 << 16) - 1
_WHOLE_NUMBERS = ("BYTE", "SHORT", "INT", "LONG", "BIG_INT")
"""Whole numbers, each wider than the one before."""


@dataclass(frozen=True)
class AsIs:
    """The stored form is that of the declaration."""


@dataclass(frozen=True)
class AfterMigration:
    """Every stored value can be converted to the declaration."""

    change: str
    """What the conversion does."""


@dataclass(frozen=True)
class Incompatible:
    """What is stored cannot become what is declared."""

    reason: str


Verdict = Union[AsIs, AfterMigration, Incompatible]


class ColumnSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state of the user (or of an operator) in the rows of a `StateSchema`. Its id is its position there."""

    name: str
    kind: str
    """Flink's kinds: value, list, map, reducing, aggregating."""
    types: tuple[dict[str, Any], ...] = ()
    """Serializer snapshots of the declared types (a map has two); empty: values are pickled."""
    ttl: bool = False
    """Whether every part carries the time of its last write."""
    since: int = 0
    """The schema version that added the column."""

    def __str__(self) -> str:
        kind = f"a {self.kind} state" + (" with time-to-live" if self.ttl else "")
        return f"{kind} of {', '.join(map(_type_name, self.types))}" if self.types else f"{kind} without declared type"


class StateSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that is stored under one state id."""

    id: int
    """From 1, in every stored key."""
    kind: str
    slices: str = ""
    """What divides the state: ``window`` (a window's start), ``time`` (a bucket of timers); empty: nothing."""
    columns: tuple[ColumnSchema, ...] = ()
    since: int = 0
    """The schema version that added the state."""

    def width(self, version: int) -> int:
        """How many columns the rows of a schema version have."""
        return sum(column.since <= version for column in self.columns)

    def version(self, newest: int) -> int:
        """The last schema version up to ``newest`` that changed this state: the id of the schema of its rows."""
        return max((column.since for column in self.columns if column.since <= newest), default=self.since)


class KeySchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The keys of an operator's state."""

    type: dict[str, Any] | None = None
    """Serializer snapshot of the declared type, if one was declared."""
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
        """The schema in checkpoint metadata: what `plain` gave.

        Raises:
            IncompatibleState: a later release wrote it in a form that this one does not know.
        """
        try:
            return msgspec.convert(data, OperatorSchema)
        except msgspec.ValidationError as error:
            raise IncompatibleState(f"a schema of stored state that this release does not read: {error}") from error

    def plain(self) -> dict[str, Any]:
        """The schema as plain data, for checkpoint metadata."""
        data: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self))
        return data

    @property
    def fingerprint(self) -> str:
        """Tells schemas apart, as those of subtasks that declare states in another order."""
        return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(self))

    def with_state(self, name: str, kind: str, slices: str = "") -> OperatorSchema:
        """The schema with this state, which is added in a new version if it is not there.

        Raises:
            IncompatibleState: it is there with another kind or other slices.
        """
        known = self.states.get(name)
        if known is not None:
            if (known.kind, known.slices) != (kind, slices):
                raise IncompatibleState(
                    f"the state {name!r} holds {_content(known.kind, known.slices)} in the checkpoint and "
                    f"{_content(kind, slices)} in the program"
                )
            return self
        if len(self.states) >= _MOST_STATES:
            raise IncompatibleState(f"an operator has at most {_MOST_STATES} states")
        version = self.version + 1
        new = StateSchema(len(self.states) + 1, kind, slices, since=version)
        return msgspec.structs.replace(self, version=version, states={**self.states, name: new})

    def with_column(self, state: str, column: ColumnSchema) -> OperatorSchema:
        """The schema with one more column, added in a new version. Its name must be new in the state."""
        version = self.version + 1
        known = self.states[state]
        columns = (*known.columns, msgspec.structs.replace(column, since=version))
        changed = msgspec.structs.replace(known, columns=columns)
        return msgspec.structs.replace(self, version=version, states={**self.states, state: changed})

    def with_key(self, declared: Mapping[str, Any] | None) -> OperatorSchema:
        """The schema with this type of the key (a serializer snapshot), which `judge_key` has found to fit."""
        if declared is None or declared == self.key.type:
            return self
        key = KeySchema(dict(declared), self.key.hash_version)
        return msgspec.structs.replace(self, version=self.version + 1, key=key)

    def continues(self, earlier: OperatorSchema) -> bool:
        """Whether this schema has grown out of an earlier one, so that it reads what that one wrote."""

        def grown(name: str, old: StateSchema) -> bool:
            new = self.states.get(name)
            return (
                new is not None
                and new.columns[: len(old.columns)] == old.columns
                and ((new.id, new.kind, new.slices, new.since) == (old.id, old.kind, old.slices, old.since))
            )

        return self.version >= earlier.version and all(grown(name, old) for name, old in earlier.states.items())

    def column(self, state: str, name: str) -> int | None:
        """The position of a column; None if the state has no column of this name."""
        columns = self.states[state].columns
        return next((i for i, column in enumerate(columns) if column.name == name), None)


def judge_column(stored: ColumnSchema, declared: ColumnSchema) -> Verdict:
    """Whether a column's stored values fit a new declaration of the same name."""
    if stored.kind != declared.kind:
        return Incompatible("a state keeps its kind")
    if stored.types == declared.types and stored.ttl == declared.ttl:
        return AsIs()
    changes = []
    if stored.ttl != declared.ttl:
        changes.append("every value gains the time of its last write" if declared.ttl else "times of last writes go")
    if not stored.types and declared.types:
        changes.append("pickled values are checked against the declared type and stored in its form")
    elif stored.types and not declared.types:
        changes.append("values in their type's form are pickled")
    elif not all(map(_widens, stored.types, declared.types)):
        return Incompatible("values of the old type are none of the new one")
    elif stored.types != declared.types:
        changes.append("whole numbers become wider")
    return AfterMigration("; ".join(changes))


def judge_key(stored: KeySchema, declared: Mapping[str, Any] | None, hash_version: int = HASH_VERSION) -> Verdict:
    """Whether the state of stored keys is found under keys of the declared type.

    Keys have one stored form, whatever their declared type, so only their values matter.
    """
    if stored.hash_version != hash_version:
        return Incompatible(
            f"its keys were assigned to key groups by version {stored.hash_version} of the hash; this release computes "
            f"version {hash_version}"
        )
    if stored.type is None or declared is None or dict(declared) == stored.type:
        return AsIs()
    if {stored.type.get("type"), declared.get("type")} <= set(_WHOLE_NUMBERS):
        return AsIs()
    return Incompatible(
        f"its keys were declared as {_type_name(stored.type)} and are now declared as {_type_name(declared)}: the state of "
        "the old keys would not be found"
    )


def merged(schemas: Sequence[OperatorSchema]) -> OperatorSchema:
    """One schema with all states and columns of several, e.g. of the subtasks whose state is redistributed.

    The ids of the first schema stay; what it lacks is added. Names join the schemas: of the same name are the same state.

    Raises:
        IncompatibleState: two of them have different states of the same name.
    """
    result = schemas[0]
    for other in schemas[1:]:
        for name, state in other.states.items():
            result = result.with_state(name, state.kind, state.slices)
            for column in state.columns:
                position = result.column(name, column.name)
                if position is None:
                    result = result.with_column(name, column)
                    continue
                known = result.states[name].columns[position]
                if not isinstance(judge_column(known, column), AsIs):
                    raise IncompatibleState(
                        f"state {column.name!r} is {known} in one subtask and {column} in another; give each state a name "
                        "of its own"
                    )
    return result


def _widens(stored: Mapping[str, Any], declared: Mapping[str, Any]) -> bool:
    """Whether every value of the stored type is one of the declared type, in the same stored form."""
    if stored == declared:
        return True
    old, new = stored.get("type"), declared.get("type")
    narrow = _WHOLE_NUMBERS[:-1]  # BIG_INT has a stored form of its own
    return old in narrow and new in narrow and narrow.index(old) < narrow.index(new)


def _type_name(snapshot: Mapping[str, Any]) -> str:
    return str(snapshot.get("type", snapshot))


def _content(kind: str, slices: str) -> str:
    return f"{kind} in slices of {slices}" if slices else kind
