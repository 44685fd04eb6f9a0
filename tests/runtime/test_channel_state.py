"""Channel state that comes to another parallelism: event time stays behind each record that waits."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.metadata import ListPart
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.channels.channel_state import ChannelState
from holdfast.runtime.channels.channels import InputMerge, Lane
from holdfast.runtime.plan.plan import InputKind, Vertex
from holdfast.runtime.records.frames import BARRIER, DATA, Barrier, Frame, encode_barrier, encode_data, pack_frame
from holdfast.runtime.records.spill import FrameStore


def waiting(directory: Any, subtask: int, parallelism: int, frame_records: int = 1024) -> ChannelState:
    vertex = Vertex(1, "v", parallelism, 128, 1, (), None, (InputKind.KEYED,))
    storage = Storage.open(str(directory / "checkpoints"))
    return ChannelState(storage, vertex, subtask, lambda: FrameStore(str(directory), 1 << 20), frame_records)


def from_one_sender(directory: Any, epoch: int, before: int, timestamps: list[int], end: int) -> InputMerge:
    """The input of an epoch: a frame for each record, and a barrier with the watermark ``end``."""
    merge = InputMerge({(0, 0): Lane(0, False, before)}, FrameStore(str(directory), 1 << 20))
    for n, timestamp in enumerate(timestamps):
        frame = Frame(timestamp - 1, [timestamp], [timestamp], ["key"])
        merge.add(pack_frame(DATA, 1, 0, 0, 0, n, encode_data(frame)))
    merge.add(pack_frame(BARRIER, 1, 0, 0, 0, 0, encode_barrier(Barrier(epoch, "a", len(timestamps), end, False))))
    merge.verify(epoch)
    return merge


def an_old_subtask_that_came_to_a_later_barrier_does_not_overtake_what_waits_in_another(tmp_path):
    behind, ahead = waiting(tmp_path, 0, 2), waiting(tmp_path, 1, 2)
    behind.add(1, from_one_sender(tmp_path, 1, MIN_TIMESTAMP, [5], 10), MIN_TIMESTAMP)
    behind.add(2, from_one_sender(tmp_path, 2, MIN_TIMESTAMP, [], 40), MIN_TIMESTAMP)
    behind.add(3, from_one_sender(tmp_path, 3, MIN_TIMESTAMP, [], 100), MIN_TIMESTAMP)  # it has moved the barrier before
    ahead.add(3, from_one_sender(tmp_path, 3, 10, [50, 60], 100), 10)
    parts: list[ListPart] = [part for each in (behind, ahead) for part in each.snapshot(lambda: "unused")]

    restored = waiting(tmp_path, 0, 1)
    restored.restore(parts)
    watermark, seen = MIN_TIMESTAMP, []
    while restored:
        for frame, _, after in restored.oldest(watermark).frames():
            if frame is not None:
                seen.append((frame.values[0], watermark))
            watermark = max(watermark, after)
        restored.processed()
    assert [timestamp for timestamp, _ in seen] == [5, 50, 60]
    assert all(at < timestamp for timestamp, at in seen), seen
    assert watermark == 100


def a_later_barrier_does_not_overtake_records_that_wait_in_rounds(tmp_path):
    """They wait in one lane, whose own sender may be further than theirs was."""

    def from_three(epoch: int, timestamps: list[int], ends: list[int]) -> InputMerge:
        merge = InputMerge({(0, n): Lane(0, False, 5) for n in range(3)}, FrameStore(str(tmp_path), 1 << 20))
        for n, timestamp in enumerate(timestamps):
            frame = Frame(5, [timestamp], [timestamp], ["key"])
            merge.add(pack_frame(DATA, 1, 0, 0, 1, n, encode_data(frame)))
        for n, end in enumerate(ends):
            barrier = Barrier(epoch, "a", len(timestamps) if n == 1 else 0, end, False)
            merge.add(pack_frame(BARRIER, 1, 0, 0, n, 0, encode_barrier(barrier)))
        merge.verify(epoch)
        return merge

    state = waiting(tmp_path, 0, 1, frame_records=1)
    state.add(1, from_three(1, [50, 60, 70], [100, 100, 5]), 5)
    frame, _, watermark = next(state.oldest(5).frames())
    assert (frame.values, watermark) == ([50], 5)
    state.sort(5)  # a deadline has come
    state.add(2, from_three(2, [], [100, 100, 100]), 5)

    seen = []
    while state:
        for frame, _, after in state.oldest(watermark).frames():
            if frame is not None:
                seen.append((frame.values[0], watermark))
            watermark = max(watermark, after)
        state.processed()
    assert seen == [(60, 5), (70, 5)]
    assert watermark == 100
