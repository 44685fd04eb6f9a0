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

from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.backends import compaction
from holdfast.state.cells import codec, large_values
from holdfast.state.store import blob_files
from holdfast.state.store.blob_file import SUFFIX
from holdfast.state.stored.schema import VALUES, OperatorSchema

from .filled import STATES, Filled

GOLDEN = Path(__file__).parent / "golden"
KEYS = range(60)
BACKENDS = ("rocksdb", "hashmap")
LARGE_VALUES = "large_values"
"""In the names of forms in which values lie outside of their rows."""
BLOBS = "blobs"
"""In the names of forms whose rows lie in blob files."""
STUBS = "rests"
"""In the names of forms in which some of them have stubs."""


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


@pytest.mark.parametrize("by", BACKENDS)
@pytest.mark.parametrize(
    "name",
    [
        *(f"{kind}_{form}" for kind in BACKENDS for form in ("2", "2_timer_chunks")),
        f"rocksdb_2_{LARGE_VALUES}",
        f"rocksdb_2_{BLOBS}",
        f"rocksdb_2_{BLOBS}_{STUBS}",
    ],
)
def a_stored_checkpoint_is_restored(tmp_path, name, by):
    data = zstandard.decompress((GOLDEN / f"checkpoint_{name}.zst").read_bytes())
    stored = msgspec.msgpack.decode(data, type=Stored)
    names = [file.name for handle in stored.handles for file in handle.base if isinstance(file, RawFile)]
    assert any(each.endswith(SUFFIX) for each in names) == (BLOBS in name)
    new = Filled(by, STATES, tmp_path)
    new.close()
    new.objects.objects.update(stored.objects)
    new.begin(stored.handles, OperatorSchema.of_plain(stored.schema))
    if by == "rocksdb":
        table = new.spaces[False].table()
        assert bool(table.store.get_stubs(table._store_keys(list(KEYS)), b"\x91\x02")[1]) == (STUBS in name)
    assert plain(new.content(KEYS)) == stored.content
    assert any(each.kind == VALUES for each in new.state.schema.states.values()) == (LARGE_VALUES in name)
    for key in KEYS:
        new.use(key)
        assert new.handles["text"].value() == (None if new.handles["n"].value() is None else "x" * 40)
    new.close()


def store(kind: str, name: str) -> None:
    """Store a checkpoint with a base, and deltas behind it."""
    compaction.MOST_DELTAS = 4
    if LARGE_VALUES in name:
        codec._LARGE_VALUE, large_values._ENOUGH, large_values._RARELY = 1, 1, 10
    if STUBS in name:
        codec._LARGE_VALUE, large_values._ENOUGH = 1, 1
    if BLOBS in name:
        blob_files._LEAST, blob_files._SAVING = 1, 0.0
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
    for each in BACKENDS:
        store(each, f"checkpoint_{each}_{sys.argv[1]}")
