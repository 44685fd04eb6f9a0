"""A subtask's input from many senders: which channels there are, in which order their frames come, and whose attempts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.channels.channels import ChannelIncomplete, InputMerge, Lane, receivers, seen_attempts, senders
from holdfast.runtime.plan.event_time import combined
from holdfast.runtime.plan.plan import Partitioning
from holdfast.runtime.records.frames import (
    BARRIER,
    DATA,
    HEADER_SIZE,
    Barrier,
    Frame,
    decode_barrier,
    encode_barrier,
    encode_data,
    pack_frame,
    unpack_header,
)
from holdfast.runtime.records.spill import FrameStore

_EPOCH = 7


@given(st.sampled_from(Partitioning), st.integers(1, 40), st.integers(1, 40))
def the_senders_of_a_subtask_are_those_that_send_to_it(partitioning: Partitioning, count: int, width: int):
    width = count if partitioning is Partitioning.FORWARD else width
    for receiver in range(width):
        found = [n for n in range(count) if receiver in receivers(partitioning, n, count, width)]
        assert list(senders(partitioning, receiver, count, width)) == found


@given(st.builds(Barrier, st.integers(0, 2**60), st.text("0123456789abcdef"), st.integers(0, 2**31),
                 st.integers(-(2**63), 2**63 - 1), st.booleans()))  # fmt: skip
def a_barrier_arrives_as_it_was_sent(barrier: Barrier):
    frame = pack_frame(BARRIER, 1, 2, 3, 4, 5, encode_barrier(barrier))
    assert unpack_header(frame) == (BARRIER, 1, 2, 3, 4, 5)
    assert decode_barrier(memoryview(frame)[HEADER_SIZE:]) == barrier


def merge_of(directory: Any, channels: list[tuple[int, bool, list[int], bool]], attempts: list[str]) -> InputMerge:
    """The input of an epoch from channels with an input index, broadcast or not, the frames' watermarks, and idle or not."""
    merge = InputMerge(
        {(number, 0): Lane(index, broadcast, MIN_TIMESTAMP) for number, (index, broadcast, _, _) in enumerate(channels)},
        FrameStore(str(directory), 1 << 20),
    )
    for number, (_, _, watermarks, idle) in enumerate(channels):
        for sequence, watermark in enumerate(watermarks):
            content = encode_data(Frame(watermark, [(number, sequence)], None, None))
            merge.add(pack_frame(DATA, 1, 0, number, 0, sequence, content))
        barrier = Barrier(_EPOCH, attempts[number], len(watermarks), max([0, *watermarks]), idle)
        merge.add(pack_frame(BARRIER, 1, 0, number, 0, 0, encode_barrier(barrier)))
    return merge


def in_order(channels: list[tuple[int, bool, list[int], bool]]) -> list[tuple[Any, int]]:
    """The definition: broadcast first, then the channel furthest behind; time is the minimum of the channels not idle."""
    times = [(MIN_TIMESTAMP, False)] * len(channels)
    left = [list(enumerate(watermarks)) for _, _, watermarks, _ in channels]

    def finish(number: int) -> None:
        _, _, watermarks, idle = channels[number]
        times[number] = max([0, times[number][0], *watermarks]), idle

    for number, (_, _, watermarks, _) in enumerate(channels):
        if not watermarks:
            finish(number)
    order = sorted(range(len(channels)), key=lambda number: channels[number][0])
    told: list[tuple[Any, int]] = []
    for wanted in (True, False):
        mine = [number for number in order if channels[number][1] is wanted]
        while ready := [number for number in mine if left[number]]:
            number = min(ready, key=lambda each: times[each][0])
            sequence, watermark = left[number].pop(0)
            times[number] = max(times[number][0], watermark), False
            if not left[number]:
                finish(number)
            told.append(((number, sequence), combined(times)))
    return [*told, (None, combined(times))]


_CHANNELS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.lists(st.integers(0, 30), max_size=4), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(_CHANNELS)
def the_frames_of_many_channels_come_in_order_of_event_time(tmp_path_factory: pytest.TempPathFactory, channels: Any):
    merge = merge_of(tmp_path_factory.getbasetemp(), channels, ["a"] * len(channels))
    merge.verify(_EPOCH)
    told = [(None if frame is None else frame.values[0], time) for frame, _, time in merge.frames()]
    assert told == in_order(channels)


@pytest.mark.parametrize("frames", [[], [10]])
def a_barrier_whose_watermark_is_below_that_of_earlier_epochs_does_not_set_time_back(tmp_path, frames):
    """The sender of a subtask may begin further behind: after a rescaling, or in an epoch that waited."""
    merge = merge_of(tmp_path, [(0, False, frames, False)], ["a"])
    merge.verify(_EPOCH)
    merge.not_before(50)
    assert [time for _, _, time in merge.frames()] == [50] * (len(frames) + 1)
    (lane,) = merge.lanes.values()
    assert lane.watermark == merge.end == 50


@given(_CHANNELS, st.data())
def an_input_that_was_cut_goes_on_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory, channels: Any, data: st.DataObject
):
    merge = merge_of(tmp_path_factory.getbasetemp(), channels, ["a"] * len(channels))
    merge.verify(_EPOCH)
    cuts = data.draw(st.sets(st.integers(0, 40), max_size=6))
    told: list[tuple[Any, int]] = []
    while not told or told[-1][0] is not None:
        for frame, _, time in merge.frames():
            if frame is not None and len(told) in cuts:
                cuts.discard(len(told))
                merge.cut(0)
                break
            told.append((None if frame is None else frame.values[0], time))
    assert told == in_order(channels)


def test_the_attempts_of_a_channels_senders_are_told_in_one_digest(tmp_path: Any):
    merge = merge_of(tmp_path, [(0, False, [], False), (0, False, [3], False)], ["one", "two"])
    assert merge.verify(_EPOCH) == {0: seen_attempts(["one"]), 1: seen_attempts(["two"])}
    assert seen_attempts(["one", "two"]) != seen_attempts(["two", "one"])
    with pytest.raises(ChannelIncomplete, match="no barrier of epoch 8"):
        merge.verify(_EPOCH + 1)
