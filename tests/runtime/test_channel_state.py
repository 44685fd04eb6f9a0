"""Channel state that comes to another parallelism: event time stays behind each record that waits."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.metadata import ListPart
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.channels.channel_state import ChannelState, other_inputs
from holdfast.runtime.channels.channels import InputMerge, Lane
from holdfast.runtime.plan.plan import InputKind, Vertex
from holdfast.runtime.records.frames import (
    BARRIER,
    DATA,
    HEADER_SIZE,
    Barrier,
    Frame,
    encode_barrier,
    encode_data,
    pack_frame,
)
from holdfast.runtime.records.spill import FrameStore
from holdfast.state.keys.key_groups import group_assigner


def waiting(
    directory: Any,
    subtask: int,
    parallelism: int,
    frame_records: int = 1024,
    inputs: tuple[InputKind, ...] = (InputKind.KEYED,),
) -> ChannelState:
    vertex = Vertex(1, "v", parallelism, 128, 1, (), None, inputs)
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


TWO = (InputKind.KEYED, InputKind.KEYED)
KEYS = "abcdef"
Sent = list[tuple[str, int]]
"""The records of a frame: their keys, and their numbers, which rise within a key."""


def from_senders(directory: Any, epoch: int, lanes: list[list[Sent]], end: int, *, held: bool = False) -> InputMerge:
    """The input of an epoch at two inputs with two senders each: the frames of each lane, which end at a watermark."""
    merge = InputMerge({(n // 2, n % 2): Lane(n // 2, False, 5) for n in range(4)}, FrameStore(str(directory), 1 << 20))
    for n, frames in enumerate(lanes):
        for sequence, records in enumerate(frames):
            frame = Frame(5, [(key, at) for key, at in records], [at for _, at in records], [key for key, _ in records])
            merge.add(pack_frame(DATA, 1, 0, n // 2, n % 2, sequence, encode_data(frame)))
        barrier = Barrier(epoch, "a", len(frames), end, n == 0, held)
        merge.add(pack_frame(BARRIER, 1, 0, n // 2, n % 2, 0, encode_barrier(barrier)))
    merge.verify(epoch)
    return merge


class Subtasks:
    """The subtasks of a vertex, which process waiting records in rounds or in order, and restore each other's."""

    def __init__(self, directory: Any) -> None:
        self.directory = directory
        self.files = 0
        self.states = [self.new(0, 1)]
        self.watermarks = [5]
        self.seen: dict[tuple[int, str], list[int]] = defaultdict(list)
        """By input and key."""

    def new(self, subtask: int, parallelism: int) -> ChannelState:
        return waiting(self.directory, subtask, parallelism, 2, TWO)

    def new_path(self) -> str:
        self.files += 1
        return f"channels/{self.files}"

    def process(self, index: int, frame: Frame, count: int) -> None:
        for key, at in frame.values[:count]:
            self.seen[(index, key)].append(at)

    def rounds(self, count: int) -> None:
        """Process so many records of each subtask round by round, or all that do not move event time."""
        for state, watermark in zip(self.states, self.watermarks):
            merge, left = state.in_rounds(watermark), count
            while left and (taken := merge.take()) is not None:
                frame, index = taken
                done = min(left, len(frame.values))
                self.process(index, frame, done)
                merge.processed(done)
                left -= done
            state.processed_in_rounds(watermark)

    def in_order(self, count: int) -> None:
        """Process so many records of each subtask in the order of event time."""
        for n, state in enumerate(self.states):
            left = count
            while state:
                merge = state.oldest(self.watermarks[n])
                for frame, index, watermark in merge.frames():
                    if frame is not None:
                        done = min(left, len(frame.values))
                        self.process(index, frame, done)
                        left -= done
                        if done < len(frame.values):
                            merge.cut(done)
                            break
                    assert watermark >= self.watermarks[n]
                    self.watermarks[n] = watermark
                else:
                    state.processed()
                    continue
                break

    def restored(self, parallelism: int) -> None:
        """Go on from a checkpoint, at some parallelism."""
        each = [state.snapshot(self.new_path) for state in self.states]
        sizes = [state.size for state in self.states]
        for state in self.states:
            state.close()
            assert not state
        before, self.states = len(self.states), [self.new(n, parallelism) for n in range(parallelism)]
        for n, state in enumerate(self.states):
            state.restore(each[n] if before == parallelism else [part for parts in each for part in parts])
        if before == parallelism:
            assert [state.size for state in self.states] == sizes
            for state, parts in zip(self.states, each):
                again = state.snapshot(self.new_path)
                assert all(one is other for one, other in zip(again[1::2], parts[1::2], strict=True)), "stored once"
        else:
            self.watermarks = [min(self.watermarks)] * parallelism


_STEPS = st.lists(st.tuples(st.sampled_from(["input", "rounds", "in_order", "restored"]), st.integers(0, 9)), max_size=12)


@settings(max_examples=examples(60))
@given(steps=_STEPS, drawn=st.randoms(use_true_random=False))
def the_waiting_records_of_each_key_are_processed_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], drawn: Any
):
    """Whatever waits, in rounds or in order of event time, is stored, joined, and comes to another parallelism."""
    subtasks, sent = Subtasks(tmp_path_factory.mktemp("channels")), 0
    expected: dict[tuple[int, str], list[int]] = defaultdict(list)
    for epoch, (step, number) in enumerate([("input", 0), *steps], 1):
        if step == "input":
            width, end = len(subtasks.states), drawn.choice([5, 5, 5, 5 + epoch])
            lanes: list[list[list[Sent]]] = [[[] for _ in range(4)] for _ in range(width)]
            for _ in range(drawn.choice([0, 3, 12])):
                key, index = drawn.choice(KEYS), drawn.randrange(2)
                (owner,) = group_assigner(128, width)([key])
                lane = lanes[owner][2 * index + KEYS.index(key) % 2]
                if not lane or drawn.random() < 0.4:
                    lane.append([])
                lane[-1].append((key, sent))
                expected[(index, key)].append(sent)
                sent += 1
            behind = list(map(bool, subtasks.states))
            for n, state in enumerate(subtasks.states):
                state.add(epoch, from_senders(subtasks.directory, epoch, lanes[n], end), subtasks.watermarks[n])
            subtasks.in_order(number)
            for n, state in enumerate(subtasks.states):
                if state and not behind[n]:  # a deadline has come
                    state.sort(subtasks.watermarks[n])
        else:
            getattr(subtasks, step)(1 + number % 3 if step == "restored" else number)
    subtasks.rounds(1_000)
    subtasks.in_order(1_000)
    assert not any(subtasks.states)
    assert subtasks.seen == expected


def a_long_backlog_is_no_long_queue(tmp_path):
    """New input joins that of the epochs before, unless that is much larger: it is sorted and stored again with it."""
    state, queued = waiting(tmp_path, 0, 1, 2, TWO), []
    for epoch in range(1, 17):
        state.add(epoch, from_senders(tmp_path, epoch, [[[("a", epoch)]], [], [], []], 5), 5)
        queued.append(len(state.snapshot(lambda: f"channels/{epoch}")) // 2)  # noqa: B023  (called at once)
    assert queued[:2] == [1, 1]
    assert max(queued) <= 4
    taken = []
    merge = state.in_rounds(5)
    while (part := merge.take()) is not None:
        taken += part[0].values
        merge.processed(len(part[0].values))
    assert taken == [("a", n) for n in range(1, 17)]


def the_records_that_wait_since_before_a_restore_come_before_those_of_a_smaller_epoch(tmp_path):
    before = waiting(tmp_path, 0, 1, 2, TWO)
    before.add(1, from_senders(tmp_path, 1, [[[("a", n)] for n in range(12)], [], [], []], 5), 5)
    state = waiting(tmp_path, 0, 1, 2, TWO)
    state.restore(before.snapshot(lambda: "channels/1"))
    state.add(2, from_senders(tmp_path, 2, [[], [[("a", 12)]], [], []], 5), 5)
    merge = state.in_rounds(5)
    taken = []
    while (part := merge.take()) is not None:
        taken += part[0].values
        merge.processed(len(part[0].values))
    assert taken == [("a", n) for n in range(13)]


@pytest.mark.parametrize("held", [False, True])
def test_the_last_input_says_whether_the_channels_are_idle_and_records_held_back(tmp_path, held):
    for in_rounds in (False, True):
        state = waiting(tmp_path, 0, 1, 2, TWO)
        assert (state.idle, state.held) == (False, False)
        state.add(1, from_senders(tmp_path, 1, [[[("a", 1)]], [], [], []], 5, held=held), 5)
        if in_rounds:
            merge = state.in_rounds(5)
            assert merge.take() is not None
            merge.processed(1)
            state.processed_in_rounds(5)
        else:
            assert len(list(state.oldest(5).frames())) == 2
            state.processed()
        assert (bool(state), state.idle, state.held) == (False, False, held)


def test_channel_state_without_its_frames_is_not_restored(tmp_path):
    state = waiting(tmp_path, 0, 1, 2, TWO)
    state.add(1, from_senders(tmp_path, 1, [[[("a", 1)]], [], [], []], 5), 5)
    cursor, _ = state.snapshot(lambda: "channels/1")
    with pytest.raises(ValueError, match="shorter"):
        waiting(tmp_path, 0, 1, 2, TWO).restore([cursor])


def the_records_of_input_that_moves_event_time_are_not_processed_in_rounds(tmp_path):
    for end, first in ((5, ["a"]), (6, None)):
        state = waiting(tmp_path, 0, 1, 2, TWO)
        state.add(1, from_senders(tmp_path, 1, [[[("a", 1)]], [], [], []], end), 5)
        taken = state.in_rounds(5).take()
        assert (taken and taken[0].keys) == first


def an_epoch_without_records_moves_the_barriers_of_the_one_that_waits(tmp_path):
    state = waiting(tmp_path, 0, 1, 2, TWO)
    state.add(1, from_senders(tmp_path, 1, [[[("a", 1)]], [], [], []], 5), 5)
    held = state.size
    state.add(2, from_senders(tmp_path, 2, [[], [], [], []], 5, held=True), 5)
    assert len(state.snapshot(lambda: "channels/1")) == 2
    assert state.size == held > HEADER_SIZE
    list(state.oldest(5).frames())
    state.processed()
    assert (bool(state), state.held) == (False, True)


def a_key_does_not_wait_for_its_records_of_input_that_is_processed(tmp_path):
    state = waiting(tmp_path, 0, 1, 2, TWO)
    state.add(1, from_senders(tmp_path, 1, [[[("a", n)] for n in range(9)], [], [], []], 5), 5)
    state.sort(5)
    list(state.oldest(5).frames())  # without rounds
    state.processed()
    state.add(2, from_senders(tmp_path, 2, [[[("b", 9), ("a", 10)]], [], [], []], 5), 5)
    merge = state.in_rounds(5)
    taken = merge.take()
    assert taken is not None
    assert (merge.keys, taken[0].keys) == (2, ["b", "a"])


def the_records_without_keys_are_dealt_to_the_new_subtasks(tmp_path):
    inputs = (InputKind.PLAIN,)
    merge = InputMerge({(0, 0): Lane(0, False, 5)}, FrameStore(str(tmp_path), 1 << 20))
    for n in range(4):
        merge.add(pack_frame(DATA, 1, 0, 0, 0, n, encode_data(Frame(5, [2 * n, 2 * n + 1], None, None))))
    merge.add(pack_frame(BARRIER, 1, 0, 0, 0, 0, encode_barrier(Barrier(1, "a", 4, 5, False))))
    merge.verify(1)
    before = waiting(tmp_path, 0, 1, 2, inputs)
    before.add(1, merge, 5)
    assert before.in_rounds(5).take() is None, "rounds are of keys"
    next(before.oldest(5).frames())
    merge.cut(1)
    parts, values = before.snapshot(lambda: "channels/1"), []
    for subtask in range(2):
        state = waiting(tmp_path, subtask, 2, 2, inputs)
        state.restore(parts)
        values.append([frame.values for frame, _, _ in state.oldest(5).frames() if frame is not None])
    assert values == [[[1], [4, 5]], [[2, 3], [6, 7]]]


def the_frames_of_each_epoch_are_stored_once_also_by_the_subtask_that_restores_them(tmp_path):
    state = waiting(tmp_path, 0, 1, 2, TWO)
    for epoch in (1, 2, 3):  # they move event time: they are not joined
        state.add(epoch, from_senders(tmp_path, epoch, [[[("a", epoch)]], [], [], []], 5 + epoch), 5)
    parts = state.snapshot(lambda: "channels/1")
    assert len(parts) == 6
    restored = waiting(tmp_path, 0, 1, 2, TWO)
    restored.restore(parts)
    again = restored.snapshot(lambda: "channels/2")
    assert again == parts
    assert all(one is other for one, other in zip(again[1::2], parts[1::2], strict=True))


def test_channel_state_of_other_inputs_is_told(tmp_path):
    state = waiting(tmp_path, 0, 1, 2, TWO)
    state.add(1, from_senders(tmp_path, 1, [[[("a", 1)]], [], [], []], 5), 5)
    parts = state.snapshot(lambda: "channels/1")
    kinds = [(InputKind.KEYED, InputKind.PLAIN), TWO]
    told = [other_inputs(Vertex(1, "v", 1, 128, 1, (), None, inputs), parts) for inputs in kinds]
    assert told == ["inputs ['KEYED', 'KEYED'], and the program has inputs ['KEYED', 'PLAIN']", ""]
