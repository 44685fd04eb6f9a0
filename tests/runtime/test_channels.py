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


def a_frame_that_was_cut_goes_on_with_the_records_that_were_left(tmp_path: Any):
    merge = merge_of(tmp_path, [(0, False, [], False)], ["a"])
    (lane,) = merge.lanes.values()
    lane.barrier = Barrier(_EPOCH, "a", 2, 50, True)
    for sequence, values in enumerate(["abcdef", "gh"]):
        content = encode_data(Frame(10 * sequence, list(values), list(map(ord, values)), None))
        merge.add(pack_frame(DATA, 1, 0, 0, 0, sequence, content))
    left, taken = [2, 1, 1], []
    while not merge.all_processed:
        for frame, _, time in merge.frames():
            if frame is None:
                continue
            assert frame.timestamps == list(map(ord, frame.values))
            if left:
                taken += frame.values[: left[0]]
                merge.cut(left.pop(0))
                assert lane.watermark == MIN_TIMESTAMP, "time does not pass what is left"
                assert (merge.all_processed, merge.end, merge.idle) == (False, 50, True)
                break
            taken += frame.values
            assert time == (0 if frame.values[-1] == "f" else 50)
    assert "".join(taken) == "abcdefgh"


def test_input_that_is_not_whole_is_refused(tmp_path: Any):
    """Frames and barriers come over networks and from attempts of tasks that Spark has given up."""

    def merge(barrier: Barrier, *sequences: int) -> InputMerge:
        made = InputMerge({(3, 1): Lane(0, False, MIN_TIMESTAMP)}, FrameStore(str(tmp_path), 1 << 20))
        made.add(pack_frame(BARRIER, 1, 0, 3, 1, 0, encode_barrier(barrier)))
        for sequence in sequences:
            made.add(pack_frame(DATA, 1, 0, 3, 1, sequence, encode_data(Frame(0, ["a"], None, None))))
        return made

    whole = Barrier(_EPOCH, "a", 2, 0, False)
    merge(whole, 1, 0).verify(_EPOCH)
    for sequences in ((), (0,), (1,), (0, 0), (0, 2), (0, 1, 1), (0, 1, 2)):
        with pytest.raises(ChannelIncomplete, match=rf"channel 3 from subtask 1: {len(sequences)} of 2 frames arrived"):
            merge(whole, *sequences).verify(_EPOCH)
    with pytest.raises(ChannelIncomplete, match="two barriers on channel 3 from subtask 1"):
        merge(whole, 0, 1).add(pack_frame(BARRIER, 1, 0, 3, 1, 0, encode_barrier(whole)))
    with pytest.raises(ChannelIncomplete, match="a frame of an unknown channel 3 from subtask 2"):
        merge(whole).add(pack_frame(DATA, 1, 0, 3, 2, 0, encode_data(Frame(0, ["a"], None, None))))


def test_the_attempts_of_a_channels_senders_are_told_in_one_digest(tmp_path: Any):
    merge = merge_of(tmp_path, [(0, False, [], False), (0, False, [3], False)], ["one", "two"])
    assert merge.verify(_EPOCH) == {0: seen_attempts(["one"]), 1: seen_attempts(["two"])}
    assert seen_attempts(["one", "two"]) != seen_attempts(["two", "one"])
    with pytest.raises(ChannelIncomplete, match="no barrier of epoch 8"):
        merge.verify(_EPOCH + 1)
