"""Subtasks whose columns have outgrown their rows in another order: one takes over the state of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor
from holdfast.state.backends import compaction
from holdfast.state.keys.key_groups import KeyGroupRange, key_group, key_group_range
from holdfast.state.stored.schema import OperatorSchema, joined

from .backend import Backend

STATES = (MapStateDescriptor("m", Types.LONG(), Types.LONG()), ListStateDescriptor("l", Types.LONG()))
MANY = 700


def fill(subtask: Backend, key: int, names: str) -> dict[str, Any]:
    """Give a key a small map and list; those of ``names`` grow large, in this order, each in an epoch of its own."""
    size = {"m": 5, "l": 5}
    for name in ("", *names):
        subtask.use(key)
        if name:
            size[name] = MANY
        subtask.handles["m"].put_all({n: key + n for n in range(size["m"])})
        subtask.handles["l"].update(list(range(key, key + size["l"])))
        subtask.checkpoint()
    return content(subtask, key)


def content(subtask: Backend, key: int) -> dict[str, Any]:
    subtask.use(key)
    return {"m": dict(subtask.handles["m"].items()), "l": list(subtask.handles["l"].get())}


@pytest.mark.parametrize("bases", [2, 1000])
@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("by", ["rocksdb", "hashmap"])
def a_subtask_takes_over_maps_and_lists_that_have_grown_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by: str, bases: int
):
    monkeypatch.setattr(compaction, "MOST_DELTAS", bases)
    expected, olds = {}, []
    for number, names in enumerate(("ml", "lm", "m", "")):
        groups = key_group_range(128, 4, number)
        key = next(key for key in range(1000) if key_group(key, 128) in groups)
        old = Backend(kind, STATES, tmp_path / str(number))
        expected[key] = fill(old, key, names)
        old.checkpoint()
        olds.append(old)
    new = Backend(by, STATES, tmp_path / "new")
    new.close()
    schemas: list[OperatorSchema] = []
    handles = []
    for number, old in enumerate(olds):
        new.objects.objects.update(old.objects.objects)
        stored, schema = old.checkpoints[-1]
        assert schema is not None
        schemas.append(schema)
        groups = key_group_range(128, 4, number)
        handles += [msgspec.structs.replace(each, first=groups.first, last=groups.last) for each in stored]
        old.close()
    new.groups = KeyGroupRange(0, 127)
    new.begin(handles, joined(schemas))
    assert {key: content(new, key) for key in expected} == expected
    for key in expected:
        new.use(key)
        new.handles["m"].put(10_000, 1)
        new.handles["l"].add(2)
    new.checkpoint()
    new.checkpoint()
    new.restart(elsewhere=True)
    for key, before in expected.items():
        assert content(new, key) == {"m": {**before["m"], 10_000: 1}, "l": [*before["l"], 2]}
    new.close()
