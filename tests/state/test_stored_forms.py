"""Checkpoints that a release has stored are restored by every later one, with either backend.

``python -m tests.state.test_stored_forms NAME`` stores one of today's form; what is in ``golden`` is never stored again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state import compaction
from holdfast.state.schema import OperatorSchema

from .filled import STATES, Filled

GOLDEN = Path(__file__).parent / "golden"
KEYS = range(60)


class Stored(msgspec.Struct):
    """A checkpoint of one subtask, and what is in it."""

    objects: dict[str, bytes]
    handles: list[KeyedHandle]
    schema: dict[str, Any]
    content: list[tuple[Any, Any]]


def plain(content: dict[Any, Any]) -> list[tuple[Any, Any]]:
    listed: list[tuple[Any, Any]] = msgspec.msgpack.decode(
        msgspec.msgpack.encode(sorted(content.items(), key=repr)), type=list[tuple[Any, Any]]
    )
    return listed


@pytest.mark.parametrize("by", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("form", ["2", "2_timer_chunks"])
def a_stored_checkpoint_is_restored(tmp_path, form, kind, by):
    data = zstandard.decompress((GOLDEN / f"checkpoint_{kind}_{form}.zst").read_bytes())
    stored = msgspec.msgpack.decode(data, type=Stored)
    new = Filled(by, STATES, tmp_path)
    new.close()
    new.objects.objects.update(stored.objects)
    new.begin(stored.handles, OperatorSchema.of_plain(stored.schema))
    assert plain(new.content(KEYS)) == stored.content
    new.close()


def store(kind: str, name: str) -> None:
    """Store a checkpoint with a base, and deltas behind it."""
    compaction.MOST_DELTAS = 4
    one = Filled(kind, STATES)
    one.fill(KEYS, 7)
    handles, schema = one.checkpoints[-1]
    assert schema is not None
    used = {each.path for handle in handles for each in handle.handles()}
    assert used
    objects = {path: data for path, data in one.objects.objects.items() if path in used}
    stored = Stored(objects, handles, schema.plain(), plain(one.content(KEYS)))
    (GOLDEN / f"{name}.zst").write_bytes(zstandard.compress(msgspec.msgpack.encode(stored), 19))
    one.close()


if __name__ == "__main__":
    for each in ("rocksdb", "hashmap"):
        store(each, f"checkpoint_{each}_{sys.argv[1]}")
