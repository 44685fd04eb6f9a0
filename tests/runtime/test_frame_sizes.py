"""When a frame is full."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.records.frames import Frame


@pytest.mark.parametrize(
    ("record", "most"),
    [
        ("text", 1000),
        (("a", 1, 2.5), 1000),
        (tuple(range(8)), 512),
        ((), 1000),
        ({"a": 1}, 1000),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, 1000),
        ({str(n): n for n in range(8)}, 512),
        ({}, 1000),
    ],
)
def test_a_frame_has_so_many_records_or_as_many_fields_as_stay_in_the_cache(record: Any, most: int) -> None:
    frame = Frame.of([record] * (most - 1), None, None, None)
    assert not frame.is_full(1000)
    assert frame.extend([record], None, None)
    assert frame.is_full(1000)
