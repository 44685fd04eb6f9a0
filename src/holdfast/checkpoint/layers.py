"""Layers: the changes from one checkpoint to the next. A checkpoint is stored as the sum of its layers. Pure.

    manifest 1                manifest 2        the checkpoint's entry in the log
    all of checkpoint 90      91 to 130         131 to 140
    ────────────────────────► ────────────────► ──────────────►  checkpoint 140

An epoch writes only its changes. From time to time a roll-up (`kept_manifests`) writes the sum of the newest layers as
a manifest, an immutable file shared by later checkpoints. Every log entry names all manifests of its checkpoint and
holds the rest, so entries do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.handles import FileHandle, Handle, InlineFile, contents_of
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    ListedState,
    OperatorCheckpoint,
    SourceState,
    SubtaskState,
)

__all__ = ["Content", "Layer", "SubtaskChange", "added", "difference", "kept_manifests", "merged", "subtask_change"]


class OperatorHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of an operator's state that do not depend on a subtask (see `OperatorCheckpoint`)."""

    name: str
    uid_given: bool = False
    max_parallelism: int = 128
    parallelism: int = 1
    schemas: dict[str, Any] = {}
    listed: dict[str, ListedState] = {}
    definition: dict[str, Any] | None = None


class OperatorTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The event time of an operator, per subtask."""

    watermarks: list[int] = []
    generators: list[Any] = []
    ahead: list[tuple[int, int, int]] = []


class SubtaskChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change of one subtask's state."""

    state: SubtaskState | None = None
    """The new state; None: the old state stays."""
    deltas: list[Handle] = []
    """Appended to the last keyed handle."""

    def applied_to(self, old: SubtaskState | None) -> SubtaskState:
        """The subtask's state after the change; ``old`` may be missing only if the change holds a new state."""
        state = old if self.state is None else self.state
        if state is None:
            raise ValueError("a change of a subtask that no earlier layer has")
        return _grown(state, self.deltas)

    def contents(self) -> Iterator[FileHandle | InlineFile]:
        """The files that it adds, and what is stored in their place."""
        if self.state is not None:
            yield from self.state.contents()
        yield from contents_of(self.deltas)


class Layer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes between two checkpoints."""

    reset: list[str] = []
    """Uids of operators whose content in earlier layers is obsolete."""
    operators: dict[str, OperatorHead] = {}
    subtasks: dict[str, dict[int, SubtaskChange]] = {}
    times: dict[str, OperatorTime] = {}
    ended: list[str] = []
    """Uids of sources that no longer exist."""
    sources: dict[str, SourceState] = {}


class Content(msgspec.Struct, frozen=True):
    """The part of a checkpoint that is stored in layers."""

    operators: dict[str, OperatorCheckpoint] = {}
    sources: dict[str, SourceState] = {}


def difference(before: Content | CheckpointMetadata, after: Content | CheckpointMetadata) -> Layer:
    """The layer that turns ``before`` into ``after``."""
    layer = Layer(
        reset=[uid for uid in before.operators if uid not in after.operators],
        operators={},
        subtasks={},
        times={},
        ended=[uid for uid in before.sources if uid not in after.sources],
        sources={uid: source for uid, source in after.sources.items() if before.sources.get(uid) != source},
    )
    for uid, operator in after.operators.items():
        old = before.operators.get(uid)
        if old is not None and len(old.subtasks) != len(operator.subtasks):
            layer.reset.append(uid)
            old = None
        head = _head(operator)
        if old is None or _head(old) != head:
            layer.operators[uid] = head
        time = _time(operator)
        if time != (OperatorTime() if old is None else _time(old)):
            layer.times[uid] = time
        changes = {
            n: change
            for n, state in enumerate(operator.subtasks)
            if (change := subtask_change(None if old is None else old.subtasks[n], state)) is not None
        }
        if changes:
            layer.subtasks[uid] = changes
    return layer


def _head(operator: OperatorCheckpoint) -> OperatorHead:
    return OperatorHead(
        operator.name,
        operator.uid_given,
        operator.max_parallelism,
        operator.parallelism,
        operator.schemas,
        operator.listed,
        operator.definition,
    )


def _time(operator: OperatorCheckpoint) -> OperatorTime:
    return OperatorTime(operator.watermarks, operator.generators, operator.ahead)


def subtask_change(old: SubtaskState | None, new: SubtaskState) -> SubtaskChange | None:
    """The change from ``old`` (None: no state) to ``new``; None if they are equal."""
    if old is new or old == new:
        return None
    if old is None or not new.keyed or len(old.keyed) != len(new.keyed) or old.lists != new.lists:
        return SubtaskChange(new)
    known = len(old.keyed[-1].deltas)
    deltas = new.keyed[-1].deltas[known:]
    if not deltas or _grown(old, deltas) != new:
        return SubtaskChange(new)
    return SubtaskChange(None, deltas)


def _grown(state: SubtaskState, deltas: list[Handle]) -> SubtaskState:
    """The state with additional deltas."""
    if not deltas:
        return state
    *older, newest = state.keyed
    grown: KeyedHandle = msgspec.structs.replace(newest, deltas=[*newest.deltas, *deltas])
    return msgspec.structs.replace(state, keyed=[*older, grown])


def added(content: Content | CheckpointMetadata, layers: Iterable[Layer]) -> Content:
    """Apply layers to a content. Unchanged parts stay the same objects."""
    operators = dict(content.operators)
    sources = dict(content.sources)
    for layer in layers:
        for uid in layer.reset:
            operators.pop(uid, None)
        for uid, head in layer.operators.items():
            old = operators.get(uid, OperatorCheckpoint(head.name))
            operators[uid] = msgspec.structs.replace(old, **{name: getattr(head, name) for name in head.__struct_fields__})
        for uid, time in layer.times.items():
            operators[uid] = msgspec.structs.replace(
                operators[uid], watermarks=time.watermarks, generators=time.generators, ahead=time.ahead
            )
        for uid, changes in layer.subtasks.items():
            subtasks = dict(enumerate(operators[uid].subtasks))
            for n, change in changes.items():
                subtasks[n] = change.applied_to(subtasks.get(n))
            operators[uid] = msgspec.structs.replace(operators[uid], subtasks=[subtasks[n] for n in range(len(subtasks))])
        for uid in layer.ended:
            sources.pop(uid, None)
        sources.update(layer.sources)
    return Content(operators, sources)


def merged(layers: Sequence[Layer]) -> Layer:
    """Merge layers into one with the same effect as applying them in order."""
    result = Layer(reset=[], operators={}, subtasks={}, times={}, ended=[], sources={})
    for layer in layers:
        for uid in layer.reset:
            result.operators.pop(uid, None)
            result.subtasks.pop(uid, None)
            result.times.pop(uid, None)
        result.reset.extend(uid for uid in layer.reset if uid not in result.reset)
        result.operators.update(layer.operators)
        result.times.update(layer.times)
        for uid, changes in layer.subtasks.items():
            known = result.subtasks.setdefault(uid, {})
            for n, change in changes.items():
                known[n] = _both(known.get(n), change)
        for uid in layer.ended:
            result.sources.pop(uid, None)
        result.ended.extend(uid for uid in layer.ended if uid not in result.ended)
        result.sources.update(layer.sources)
    return result


def _both(first: SubtaskChange | None, second: SubtaskChange) -> SubtaskChange:
    if first is None or second.state is not None:
        return second
    if first.state is not None:
        return SubtaskChange(second.applied_to(first.state))
    return SubtaskChange(None, [*first.deltas, *second.deltas])


def kept_manifests(sizes: Sequence[int], layer: int) -> int:
    """Return how many manifests a roll-up keeps. It merges the others and the newest layer into one manifest.

    Every manifest is more than twice as large as the next one, so their number and the amount of rewritten data grow only
    logarithmically with the metadata.

    Args:
        sizes: The manifests' sizes in bytes, oldest first.
        layer: The newest layer's size in bytes.

    >>> kept_manifests([1000, 100, 10], 4), kept_manifests([1000, 100, 10], 8), kept_manifests([1000, 100], 600)
    (3, 2, 0)
    """
    kept = len(sizes)
    while kept and sizes[kept - 1] <= 2 * layer:
        kept -= 1
        layer += sizes[kept]
    return kept
