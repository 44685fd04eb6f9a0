"""The external sort of keyed input in BATCH mode."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.runtime.records.frames import Frame
from holdfast.runtime.records.sorted_input import SortedInput, sorted_frames
from holdfast.state.keys.key_codec import encode_key

keys = st.one_of(st.integers(0, 5), st.sampled_from(["a", "b", True, 1.0]))
records = st.lists(st.tuples(keys, st.integers(0, 9), st.integers(0, 1)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(records=records, frame=st.integers(1, 7), bound=st.sampled_from([1, 3000, 1 << 30]), size=st.integers(1, 9))
def test_records_are_sorted_by_key_and_time_and_stable_within_any_memory(records, frame, bound, size):
    """``records``: key, timestamp, input. The value of each is its number."""
    numbered = list(enumerate(records))
    with tempfile.TemporaryDirectory() as directory:
        sorting = SortedInput(directory, bound)
        for index in (0, 1):
            part = [(number, record) for number, record in numbered if record[2] == index]
            for at in range(0, len(part), frame):
                numbers, chosen = zip(*part[at : at + frame])
                sorting.add(index, Frame(0, list(numbers), [r[1] for r in chosen], [r[0] for r in chosen]))
        given_back = list(sorting.frames(size))
        sorting.close()
        assert list(Path(directory).iterdir()) == []
    assert all(0 < len(frame.values) <= size for _, frame in given_back)
    flat = [
        (encode_key(key), stamp, index, number)
        for index, frame in given_back
        for number, stamp, key in zip(frame.values, frame.timestamps or [], frame.keys or [], strict=True)
    ]
    # Equal keys of different types have the same bytes; of equal keys and times, the first input comes first.
    assert flat == sorted((encode_key(r[0]), r[1], r[2], number) for number, r in numbered)


def the_watermark_comes_behind_everything_and_records_without_keys_first(tmp_path):
    keyed = Frame(5, ["k2", "k1"], None, [2, 1], ["here", "there"])
    plain = Frame(7, ["rule"], [3], None)
    given = [(keyed, 0, 5), (plain, 1, 6), (None, 0, MAX_TIMESTAMP)]
    told = list(sorted_frames(given, str(tmp_path), 1 << 20, 10))
    assert [(frame and frame.values, index, watermark) for frame, index, watermark in told] == [
        (["rule"], 1, MIN_TIMESTAMP),
        (["k1", "k2"], 0, MIN_TIMESTAMP),
        (None, 0, MAX_TIMESTAMP),
    ]
    assert told[1][0].locations == ["there", "here"]
    assert told[1][0].timestamps is None
