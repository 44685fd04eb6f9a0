"""Assigns an operator's stored state to its subtasks, at the same or at another parallelism. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.checkpoint.metadata import (
    BROADCAST,
    CHANNEL_STATE,
    OWN,
    UNION,
    WHOLE,
    KeyedHandle,
    ListedState,
    ListPart,
    OperatorCheckpoint,
    SubtaskState,
)
from holdfast.state.keys.key_groups import KeyGroupRange, key_group_range

__all__ = ["OperatorSnapshot", "assigned"]


@dataclass(frozen=True)
class OperatorSnapshot:
    """The state of one operator that a subtask restores."""

    state: SubtaskState = field(default_factory=SubtaskState)
    schemas: dict[str, Any] = field(default_factory=dict)
    """The schemas of the keyed state, as plain data, by fingerprint."""
    listed: dict[str, ListedState] = field(default_factory=dict)
    """The listed states by name."""
    generator: Any = None
    """The state of the watermark generator, as plain data; None for operators that generate no watermarks."""
    definition: dict[str, Any] | None = None
    """The definition that the state was stored with (`holdfast.runtime.plan.definitions`)."""
    moved: bool = False
    """Whether the state was stored at another parallelism."""

    def with_channel_state(self, parts: list[ListPart]) -> OperatorSnapshot:
        """Add the input that the subtask had not processed."""
        if not parts:
            return self
        state = SubtaskState(self.state.keyed, {**self.state.lists, CHANNEL_STATE: parts})
        return replace(self, state=state, listed={**self.listed, CHANNEL_STATE: ListedState(OWN)})


def assigned(operator: OperatorCheckpoint, parallelism: int, subtask: int) -> OperatorSnapshot:
    """The state that one of ``parallelism`` subtasks restores."""
    groups = key_group_range(operator.max_parallelism, parallelism, subtask)
    lists = {
        name: _share([state.lists.get(name, []) for state in operator.subtasks], listed.mode, parallelism, subtask)
        for name, listed in operator.listed.items()
    }
    state = SubtaskState(_clipped(operator.subtasks, groups), {name: parts for name, parts in lists.items() if parts})
    return OperatorSnapshot(
        state=state,
        schemas=operator.schemas,
        listed=operator.listed,
        generator=_generator(operator.generators, parallelism, subtask),
        definition=operator.definition,
        moved=len(operator.subtasks) not in (0, parallelism),
    )


def _clipped(subtasks: Sequence[SubtaskState], groups: KeyGroupRange) -> list[KeyedHandle]:
    clipped = []
    for state in subtasks:
        for handle in state.keyed:
            first, last = max(handle.first, groups.first), min(handle.last, groups.last)
            if (first, last) == (handle.first, handle.last):
                clipped.append(handle)
            elif first <= last:
                clipped.append(msgspec.structs.replace(handle, first=first, last=last))
    return clipped


def _share(stored: Sequence[list[ListPart]], mode: str, parallelism: int, subtask: int) -> list[ListPart]:
    """The parts of a listed state for one subtask; ``stored``: the parts of each old subtask."""
    if mode == UNION:
        return [part for parts in stored for part in parts]
    if not stored:
        return []
    if mode == BROADCAST:
        return stored[subtask % len(stored)]
    if len(stored) == parallelism:
        return stored[subtask]
    if mode == WHOLE:  # by the subtask's number alone, so that operators of a chain stay together
        return [p for old, parts in enumerate(stored) if old * parallelism // len(stored) == subtask for p in parts]
    every = [part for parts in stored for part in parts]
    if mode == OWN:
        return every
    count = sum(map(len, every))
    return _elements(every, subtask * count // parallelism, (subtask + 1) * count // parallelism)


def _elements(parts: Sequence[ListPart], first: int, end: int) -> list[ListPart]:
    """The elements ``first`` to ``end`` of a list in parts, as parts."""
    taken = []
    for part in parts:
        low, high = max(first, 0), min(end, len(part))
        if low < high:
            if part.file is None:
                taken.append(ListPart(part.elements[low:high]))
            else:
                taken.append(ListPart(file=part.file, first=part.first + low, count=high - low))
        first, end = first - len(part), end - len(part)
    return taken


def _generator(stored: Sequence[Any], parallelism: int, subtask: int) -> Any:
    if len(stored) == parallelism:
        return stored[subtask]
    known = [state for state in stored if state is not None]
    if not known:
        return None
    # As for several inputs: that of the active one furthest behind; if all are idle, that of the one furthest ahead.
    active = [state for state in known if not state.get("idle")]
    return min(active, key=_progress) if active else max(known, key=_progress)


def _progress(state: Mapping[str, Any]) -> list[int]:
    """How far a generator has come, comparable between the states of one operator, which have the same names."""
    return [state[name] for name in ("emitted", "max_timestamp") if name in state]
