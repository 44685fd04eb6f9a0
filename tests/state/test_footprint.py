"""The estimated memory of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.common import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.cells import footprint
from holdfast.state.cells.footprint import Footprint, deep_size

from .backend import Backend

COUNT = ValueStateDescriptor("count", Types.LONG())
PROFILE = ValueStateDescriptor("profile", Types.STRING())
KEYS = 6_000


def encode(row: list[object]) -> bytes:
    return bytes(3 + (len(row[1]) if isinstance(row[1], str) else 3))


@pytest.mark.parametrize("first", ["read", "written"])
def test_large_rows_that_are_read_and_small_ones_that_are_written_are_as_large_as_both_are_in_the_mean(first: str):
    large, small = [[0, "a" * 1000] for _ in range(4096)], [[0, 1000 + n] for n in range(4096)]
    known = Footprint()
    for _ in range(20):
        for rows in (large, small) if first == "read" else (small, large):
            known.sample(rows, encode)
            known.count(len(rows), sum(map(len, map(encode, rows))))
    mean = (deep_size(large[0]) + deep_size(small[0])) / 2
    assert mean * 0.9 < known.row_bytes - footprint._ROW < mean * 1.1


def test_rows_whose_values_have_left_them_are_soon_known_to_be_small(tmp_path: Path):
    backend = Backend("rocksdb", [COUNT, PROFILE], tmp_path, **{"state.backend.cache.size": "3mb"})
    for key in range(KEYS):
        backend.use(key)
        backend.handles["count"].update(1_000)
        backend.handles["profile"].update("a" * 1000)
    backend.checkpoint()
    for turn in range(8):
        for key in range(turn % 2, KEYS, 2):
            backend.use(key)
            backend.handles["count"].update(backend.handles["count"].value() + 1)
        backend.checkpoint()
    rows = list(backend.space.table().rows.values())
    assert backend.space.codec.leaving
    assert len(rows) > KEYS / 2  # they would all fit
    true = footprint._ROW + sum(map(deep_size, rows)) / len(rows)
    assert backend.space.codec.footprint.row_bytes < 2 * true
    backend.close()
