"""Evolution of types: whether stored values of one type can become values of another, and the conversion. Pure.

The rules are Flink's for POJOs and Avro's for numbers:

    numbers       BYTE, SHORT, INT, LONG, BIG_INT, BIG_DEC, each to a later one; the first four also to FLOAT and DOUBLE,
                  where a number that would be rounded is an error; FLOAT to DOUBLE; CHAR to STRING
    records       fields are matched by name: added with a default, removed, renamed by an alias, reordered, and their types
                  may change by these rules. A ROW_NAMED and a POJO are both records.
    other types   of the same kind: element by element; the keys of a MAP must keep their type

Both types are given as serializer snapshots, and the conversion takes and returns stored forms (plain data). So neither
needs the classes of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.common.typeinfo.base import from_described
from holdfast.common.typeinfo.text import type_text

__all__ = ["Evolution", "Unfit", "evolution", "same_type", "without_hints"]

Convert = Callable[[Any], Any]
Snapshot = Mapping[str, Any]

_INTEGERS = ("BYTE", "SHORT", "INT", "LONG")
_WIDER: dict[str, tuple[str, ...]] = {
    **{kind: (*_INTEGERS[n + 1 :], "BIG_INT", "BIG_DEC", "FLOAT", "DOUBLE") for n, kind in enumerate(_INTEGERS)},
    "BIG_INT": ("BIG_DEC",),
    "FLOAT": ("DOUBLE",),
    "CHAR": ("STRING",),
}
"""The types that take all values of a type."""
_SAME_FORM = frozenset(
    [(a, b) for n, a in enumerate(_INTEGERS) for b in _INTEGERS[n + 1 :]] + [("FLOAT", "DOUBLE"), ("CHAR", "STRING")]
)
"""Pairs whose stored forms are equal."""
_RECORDS = ("ROW", "POJO")
_HINTS = ("aliases", "defaults")
_ABSENT: Any = object()


class Unfit(ValueError):
    """Stored values of the one type cannot become values of the other; the message gives the reason."""


class Evolution(NamedTuple):
    """How a stored type becomes another."""

    changes: tuple[str, ...]
    """What changes, in words; empty: nothing, but perhaps aliases and defaults."""
    convert: Convert | None
    """Turns a stored form into the new one; None: they are the same."""


def same_type(stored: Snapshot, declared: Snapshot) -> bool:
    """Whether two snapshots describe the same type; aliases, defaults and the class of a POJO do not count.

    Raises:
        IncompatibleState: a later release wrote one of them.
    """
    try:
        return not evolution(stored, declared).changes
    except Unfit:
        return False


def without_hints(node: Any) -> Any:
    """A snapshot without aliases and defaults, which do not concern the stored form of new values."""
    if isinstance(node, (list, tuple)):
        return [without_hints(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    hints = _HINTS if node.get("type") in _RECORDS else ()
    return {name: without_hints(each) for name, each in node.items() if name not in hints}


def evolution(stored: Snapshot, declared: Snapshot) -> Evolution:
    """Judge whether values of the stored type can become values of the declared one.

    Raises:
        Unfit: they cannot.
        IncompatibleState: a later release wrote one of the types.
    """
    if stored == declared:
        return Evolution((), None)
    old, new = stored.get("type"), declared.get("type")
    if old in _RECORDS and new in _RECORDS:
        return _records(stored, declared)
    if old != new:
        return _wider(stored, declared)
    if old == "TUPLE":
        return _tuple(stored["fields"], declared["fields"])
    if old == "MAP":
        return _map(stored, declared)
    if "element" in declared:
        inner = _within("element", stored["element"], declared["element"])
        if old == "PRIMITIVE_ARRAY" and "BYTE" in (stored["element"]["type"], declared["element"]["type"]) and inner.changes:
            raise Unfit("an array of bytes cannot become an array of numbers")
        return Evolution(inner.changes, _each(inner.convert))
    return Evolution((), None)


def _wider(stored: Snapshot, declared: Snapshot) -> Evolution:
    old, new = str(stored.get("type")), str(declared.get("type"))
    if new not in _WIDER.get(old, ()):
        raise Unfit(f"{type_text(stored)} cannot become {type_text(declared)}")
    change = (f"{old} becomes {new}",)
    if (old, new) in _SAME_FORM:
        return Evolution(change, None)
    before, after = from_described(stored), from_described(declared)
    if new in ("FLOAT", "DOUBLE"):
        return Evolution(change, lambda form: _exact(form, after.conform(form), new))
    return Evolution(change, lambda form: after.encode(after.conform(before.decode(form))))


def _exact(number: int, converted: float, kind: str) -> float:
    if converted != number:
        raise ValueError(f"{kind} would round {number} to {converted:.0f}")
    return converted


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda form: [None if each is None else convert(each) for each in form]


def _within(place: str, stored: Snapshot, declared: Snapshot) -> Evolution:
    try:
        found = evolution(stored, declared)
    except Unfit as error:
        raise Unfit(f"{place}: {error}") from None
    return Evolution(tuple(f"{place}: {change}" for change in found.changes), found.convert)


def _tuple(stored: Sequence[Snapshot], declared: Sequence[Snapshot]) -> Evolution:
    if len(stored) != len(declared):
        raise Unfit(
            "a TUPLE keeps its number of fields; only ROW_NAMED and POJO, whose fields have names, gain and lose them"
        )
    fields = [_within(f"field {n}", old, new) for n, (old, new) in enumerate(zip(stored, declared))]
    converts = [field.convert for field in fields]
    if not any(converts):
        return Evolution(_all_changes(fields), None)
    return Evolution(
        _all_changes(fields), lambda form: tuple([f(v) if f else v for f, v in zip(converts, form, strict=True)])
    )


def _all_changes(parts: Sequence[Evolution]) -> tuple[str, ...]:
    return tuple(change for part in parts for change in part.changes)


def _map(stored: Snapshot, declared: Snapshot) -> Evolution:
    if not same_type(stored["key"], declared["key"]):
        raise Unfit(
            f"the key type {type_text(stored['key'])} cannot become {type_text(declared['key'])}: keys keep their type"
        )
    inner = _within("value", stored["value"], declared["value"])
    convert = inner.convert
    if convert is None:
        return inner

    def converted(form: Any) -> Any:
        if isinstance(form, dict):
            return {key: None if value is None else convert(value) for key, value in form.items()}
        return [(key, None if value is None else convert(value)) for key, value in form]

    return Evolution(inner.changes, converted)


def _names(record: Snapshot) -> list[str]:
    names: list[str] = record.get("names") or [f"f{n}" for n in range(len(record["fields"]))]
    return names


def _records(stored: Snapshot, declared: Snapshot) -> Evolution:
    if "names" not in stored and "names" not in declared and len(stored["fields"]) != len(declared["fields"]):
        raise Unfit("a ROW without names keeps its number of fields; name them, with the aliases f0, f1, ...")
    old = dict(zip(_names(stored), stored["fields"], strict=True))
    places = {name: n for n, name in enumerate(old)}
    changes: list[str] = []
    plan: list[tuple[int | None, Convert | None, Any]] = []
    """For each new field: the old position (None: a new field), the conversion, the default."""
    used: dict[str, str] = {}
    """The new field of each old one."""
    for name, field in zip(_names(declared), declared["fields"], strict=True):
        former = _former(name, old, declared)
        if former is None:
            plan.append((None, None, _default(name, field, declared)))
            changes.append(f"field {name} is added")
            continue
        if former in used:
            raise Unfit(
                f"field {former} would become both {used[former]} and {name}: only one of them can have it as alias or name"
            )
        used[former] = name
        if former != name:
            changes.append(f"field {former} is renamed to {name}")
        inner = _within(f"field {name}", old[former], field)
        changes += inner.changes
        plan.append((places[former], inner.convert, None))
    if old and plan and not used:
        raise Unfit("no field is common; if all were renamed, declare aliases (with_aliases)")
    changes += [f"field {name} is removed" for name in old if name not in used]
    if not changes and [place for place, _, _ in plan] != list(range(len(old))):
        changes.append("the fields are in another order")
    head = stored["type"] == "ROW", declared["type"] == "ROW"
    if head[0] is not head[1] and not changes:
        changes.append(f"{stored['type']} becomes {declared['type']}")
    return Evolution(tuple(changes), _record_converter(plan, *head) if changes else None)


def _former(name: str, old: Mapping[str, Snapshot], declared: Snapshot) -> str | None:
    """The stored name of a declared field; None: there is none."""
    candidates = [name, *declared.get("aliases", {}).get(name, ())]
    return next((each for each in candidates if each in old), None)


def _default(name: str, field: Snapshot, declared: Snapshot) -> Any:
    stored = declared.get("defaults", {}).get(name, _ABSENT)
    if stored is not _ABSENT:
        return None if stored is None else msgspec.convert(stored, from_described(field).annotation)
    if declared["type"] == "POJO":
        raise Unfit(f"field {name} is new and has no default: give it one in the class")
    return None


def _record_converter(plan: Sequence[tuple[int | None, Convert | None, Any]], from_row: bool, to_row: bool) -> Convert:
    def convert(form: Any) -> Any:
        fields = form[1:] if from_row else form
        made = []
        for place, inner, default in plan:
            if place is None:
                made.append(default)
            else:
                value = fields[place]
                made.append(value if value is None or inner is None else inner(value))
        return (form[0] if from_row else 0, *made) if to_row else tuple(made)

    return convert
