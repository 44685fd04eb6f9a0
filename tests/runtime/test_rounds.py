"""Rounds: waiting records are processed fairly, and each key's in order, whatever arrives, and wherever deadlines cut."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.channels.channels import Lane
from holdfast.runtime.channels.rounds import Rounds, RoundsMerge
from holdfast.runtime.records.frame_header import DATA
from holdfast.runtime.records.frames import Frame, encode_data, pack_frame
from holdfast.runtime.records.spill import FrameStore

Records = list[tuple[str, int]]
"""Keys, and the number of each record within its key."""


def store() -> FrameStore:
    return FrameStore(tempfile.gettempdir(), 1 << 20)


def lane_of(records: Records, frame_records: int, frames: FrameStore) -> Lane:
    """A lane with these records, as they come from a channel."""
    lane = Lane(0, False, MIN_TIMESTAMP)
    for n, first in enumerate(range(0, len(records), frame_records)):
        part = records[first : first + frame_records]
        late = [(0, 1, 7)] if part[0][1] % 2 else []  # the odd ones, at the beginning of a frame, are late
        payload = encode_data(Frame(MIN_TIMESTAMP, part, [n for _, n in part], [key for key, _ in part], None, late))
        lane.frames.append((n, frames.put(pack_frame(DATA, 1, 0, 0, 0, n, payload))))
    return lane


class Waiting:
    """The lanes of a subtask, epoch by epoch."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.lanes: list[tuple[Lane, FrameStore]] = []
        self.processed: Records = []
        self.late: Records = []

    def arrives(self, records: Records, frame_records: int, sorts: bool, join: bool = False) -> None:
        frames = store()
        lane = lane_of(records, frame_records, frames)
        if sorts:
            for each, held in self.lanes:
                self.rounds.number(each, held)
            self.rounds.forget()
            into = store()
            older = [self.lanes.pop()] if join and self.lanes else []
            self.rounds.sort([*older, (lane, frames)], lane, into, frame_records)
            frames = into
        self.lanes.append((lane, frames))

    def process(self, most: int) -> None:
        for lane, frames in self.lanes:
            self.rounds.number(lane, frames)
        merge = RoundsMerge(self.rounds, self.lanes)
        while most and (taken := merge.take()):
            frame, _ = taken
            count = min(most, len(frame.values))
            assert [key for key, _ in frame.values] == frame.keys
            assert [number for _, number in frame.values] == frame.timestamps
            self.processed += frame.values[:count]
            self.late += [frame.values[at] for first, end, _ in frame.late for at in range(first, min(end, count))]
            merge.processed(count)
            most -= count


epochs = st.lists(
    st.tuples(
        st.lists(st.sampled_from("aaaaaabcde"), max_size=40),
        st.integers(1, 9),
        st.booleans(),
        st.booleans(),
        st.integers(0, 25),
    ),
    min_size=1,
    max_size=8,
)
"""By epoch: the keys of its records, the records of a frame, whether they are put in order and joined, and the deadline."""


def numbered(given: list[tuple[Any, ...]]) -> list[Records]:
    seen: dict[str, int] = defaultdict(int)
    found: list[Records] = []
    for keys, *_ in given:
        found.append([])
        for key in keys:
            seen[key] += 1
            found[-1].append((key, seen[key]))
    return found


@given(epochs)
def test_every_record_is_processed_once_and_each_keys_in_order(given):
    waiting, sent = Waiting(), numbered(given)
    late = []
    for records, (_, frame_records, sorts, join, most) in zip(sent, given):
        waiting.arrives(records, frame_records, sorts, join)
        late += [first for first in records[::frame_records] if first[1] % 2]
        waiting.process(most)
    waiting.process(10**6)
    assert sorted(waiting.processed) == sorted(record for records in sent for record in records)
    for key in "abcde":
        numbers = [number for each, number in waiting.processed if each == key]
        assert numbers == sorted(numbers)
    assert sorted(waiting.late) == sorted(late)


@given(st.integers(1, 300), st.lists(st.sampled_from("bcde"), min_size=1, max_size=20), st.integers(1, 9))
def a_key_with_few_records_waits_for_as_many_of_the_hot_key_only(backlog, others, frame_records):
    waiting = Waiting()
    waiting.arrives([("hot", n) for n in range(backlog)], frame_records, sorts=False)
    waiting.arrives(numbered([(["hot", *others], 0, True, 0)])[0], frame_records, sorts=True)
    waiting.process(10**6)
    of_others = [at for at, (key, _) in enumerate(waiting.processed) if key != "hot"]
    rounds = max(others.count(key) for key in others)
    assert of_others[-1] < len(others) + rounds


def the_first_record_of_a_key_is_of_the_round_after_the_last_processed_one():
    rounds = Rounds()
    assert list(rounds.arrived("aaab")) == [1, 2, 3, 1]
    rounds.reached(2)
    assert list(rounds.arrived("abc")) == [4, 3, 3]
    rounds.forget()  # nothing that waits
    assert list(rounds.arrived("abc")) == [5, 4, 4]
    rounds.reached(5)
    rounds.forget()
    assert list(rounds.arrived("abbc", ascending=True)) == [6, 6, 7, 7]


def the_records_of_a_round_with_less_than_half_of_the_keys_come_later():
    rounds, frames = Rounds(), store()
    lane = lane_of([("a", 2), ("b", 2), ("c", 2), ("d", 2), ("a", 4), ("b", 4), ("a", 6)], 7, frames)
    rounds.number(lane, frames)
    merge = RoundsMerge(rounds, [(lane, frames)])
    taken = []
    while (found := merge.take()) is not None:
        taken.append((merge.keys, found[0].keys))
        merge.processed(len(found[0].values))
    assert taken == [(4, ["a", "b", "c", "d", "a", "b"]), (1, ["a"])]
    assert list(rounds.arrived("z")) == [4], "new keys begin after the last round"
    assert [frames.size(place) for _, place in lane.frames] == [0], "what is processed needs no memory"


def a_lane_whose_records_were_processed_in_part_has_rounds_for_the_rest():
    rounds, frames = Rounds(), store()
    lane = lane_of([("a", 2), ("a", 4), ("b", 2), ("a", 6), ("b", 4)], 3, frames)
    lane.skip = 1
    rounds.number(lane, frames)
    assert [list(each) for each in lane.rounds or ()] == [[0, 1, 1], [2, 2]]
