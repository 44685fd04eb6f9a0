"""The difference of two checkpoints or savepoints: operators, states and their types. Pure but for the sizes."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.state_api.snapshots.catalog import Snapshot
from holdfast.state_api.snapshots.contents import OperatorContent, StateContent, describe

__all__ = ["Difference", "diff"]


@dataclass(frozen=True)
class Difference:
    """One line of `diff`."""

    where: str
    """The operator's uid, or ``source`` and its uid."""
    what: str
    """The state, or the property of the operator; empty for the operator itself."""
    before: str
    """Empty: not in the first snapshot."""
    after: str
    """Empty: not in the second snapshot."""


def diff(first: Snapshot, second: Snapshot, sizes: bool = True) -> list[Difference]:
    """List what differs between two snapshots, of one job or of two.

    Args:
        first: A checkpoint or savepoint, from `open_snapshot`.
        second: Another one.
        sizes: Whether to compare stored sizes, too.

    Raises:
        HoldfastError: as for `describe`.
    """
    before = {each.uid: each for each in describe(first, sizes)}
    after = {each.uid: each for each in describe(second, sizes)}
    found = []
    for uid in sorted(before.keys() | after.keys()):
        found += _operator(uid, before.get(uid), after.get(uid))
    sources = [each.checkpoint.sources for each in (first, second)]
    for uid in sorted(sources[0].keys() | sources[1].keys()):
        texts = ["" if uid not in each else repr(each[uid].enumerator) for each in sources]
        found += _line(f"source {uid}", "position", *texts)
    return found


def _operator(uid: str, before: OperatorContent | None, after: OperatorContent | None) -> list[Difference]:
    if before is None or after is None:
        return _line(uid, "", "" if before is None else repr(before.name), "" if after is None else repr(after.name))
    lines = []
    for name in ("name", "parallelism", "max_parallelism", "key_type"):
        lines += _line(uid, name.replace("_", " "), str(getattr(before, name)), str(getattr(after, name)))
    old, new = ({(each.family, each.name): each for each in content.states} for content in (before, after))
    for at in sorted(old.keys() | new.keys()):
        lines += _line(uid, f"state {at[1]}", _text(old.get(at)), _text(new.get(at)))
    for family in sorted(before.sizes.keys() | after.sizes.keys()):
        texts = [str(content.sizes.get(family, 0)) for content in (before, after)]
        lines += _line(uid, f"bytes of {family}", *texts)
    return lines


def _line(where: str, what: str, before: str, after: str) -> list[Difference]:
    return [] if before == after else [Difference(where, what, before, after)]


def _text(state: StateContent | None) -> str:
    if state is None:
        return ""
    elements = "" if state.elements is None else f", {state.elements} elements"
    return f"{state.kind} of {state.type}{' with time-to-live' if state.ttl else ''}{elements}"
