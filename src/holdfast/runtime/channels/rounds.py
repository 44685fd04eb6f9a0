"""Rounds: the order in which a subtask processes waiting records, fair to all keys.

Each round processes one record of every waiting key, so a key with a few records does not wait behind a key with thousands.
This is fair queueing with a queue per key. A key's records keep their order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

from holdfast.runtime.channels.channels import Lane
from holdfast.runtime.records.frames import HEADER_SIZE, Frame, decode_data, encode_data
from holdfast.runtime.records.spill import FrameStore

__all__ = ["Rounds", "RoundsMerge"]


class Rounds:
    """Assigns rounds to arriving records.

    >>> rounds = Rounds()
    >>> list(rounds.arrived(["hot", "hot", "a", "hot", "b", "a"]))
    [1, 2, 1, 3, 1, 2]
    >>> rounds.reached(2)
    >>> list(rounds.arrived(["hot", "a", "c"]))
    [4, 3, 3]
    """

    def __init__(self) -> None:
        self._round = 0
        self._last: dict[Any, int] = {}
        """The round of each key's last record."""

    def arrived(self, keys: Iterable[Any], *, ascending: bool = False) -> array[int]:
        """The rounds of new records, given their keys; they come after all others.

        Args:
            keys: The keys.
            ascending: Whether the records keep their mutual order, so that rounds never descend.
        """
        now, last, rounds = self._round, self._last, array("q")
        for key in keys:
            at = last[key] = max(last.get(key, 0), now) + 1
            rounds.append(at)
            if ascending:
                now = at - 1
        return rounds

    def reached(self, number: int) -> None:
        """Records of this round have been processed."""
        self._round = number

    def forget(self) -> None:
        """Forget the keys that have no waiting records."""
        now = self._round
        self._last = {key: last for key, last in self._last.items() if last > now}

    def sort(self, runs: Sequence[tuple[Lane, FrameStore]], lane: Lane, into: FrameStore, most: int) -> None:
        """Move the waiting records of several lanes to one of them, in the order of their rounds.

        In one lane, a key's records keep their order even if they are processed without rounds, whichever subtasks have sent
        them.

        Args:
            runs: The lanes, the oldest first, with the stores of their frames.
            lane: The lane that receives the records.
            into: The store that receives their frames.
            most: The most records of a frame.
        """
        frames, rounds, header = [], array("q"), b""
        for each, store in runs:
            stored = [store.get(place) for _, place in each.frames[each.next :]]
            if stored:
                first, *others = [decode_data(memoryview(one)[HEADER_SIZE:]) for one in stored]
                frames.append(_joined([first.part(each.skip, len(first.values)), *others]))
                given = each.rounds and [at for one in each.rounds[each.next :] for at in one][each.skip :]
                rounds.extend(given or self.arrived(frames[-1].keys or ()))
                header = stored[0][:HEADER_SIZE]
            each.frames, each.rounds, each.next, each.skip = [], [], 0, 0
        if not frames:
            return
        frame = _joined(frames)
        frame.watermark = lane.watermark  # the lane's time advances after all of these frames, at its barrier
        order = sorted(range(len(rounds)), key=rounds.__getitem__)
        lane.rounds = []
        for at in range(0, len(order), most):
            chosen = order[at : at + most]
            place = into.put(header + encode_data(frame.chosen(chosen)))
            lane.frames.append((len(lane.frames), place))
            lane.rounds.append(array("q", map(rounds.__getitem__, chosen)))

    def number(self, lane: Lane, store: FrameStore) -> None:
        """Assign rounds to a lane's waiting records, unless they have some; they keep their order."""
        if lane.rounds is not None:
            return
        waiting: list[list[Any]] = []
        for at, (_, place) in enumerate(lane.frames):
            keys = decode_data(memoryview(store.look(place))[HEADER_SIZE:]).keys if at >= lane.next else None
            waiting.append((keys or [])[lane.skip if at == lane.next else 0 :])
        rounds = self.arrived([key for keys in waiting for key in keys], ascending=True)
        lane.rounds, first = [], 0
        for at, keys in enumerate(waiting):
            processed = array("q", [self._round]) * (lane.skip if at == lane.next else 0)
            lane.rounds.append(processed + rounds[first : first + len(keys)])
            first += len(keys)


def _joined(frames: Sequence[Frame]) -> Frame:
    """Join frames of a keyed channel into one."""
    values: list[Any] = []
    keys: list[Any] = []
    timestamps: list[int] = []
    late = []
    for frame in frames:
        late += [(first + len(values), end + len(values), at) for first, end, at in frame.late]
        timestamps += frame.batch().stamps()
        keys += frame.keys or ()
        values += frame.values
    timed = any(frame.timestamps is not None for frame in frames)
    return Frame(frames[-1].watermark, values, timestamps if timed else None, keys, None, late)


class RoundsMerge:
    """Waiting records of several lanes, round by round; within a round, by the order of the lanes.

    Args:
        rounds: Assigned the records' rounds.
        lanes: The lanes, the oldest first, with the stores of their frames. Processing moves their positions.
    """

    def __init__(self, rounds: Rounds, lanes: Sequence[tuple[Lane, FrameStore]]) -> None:
        self._rounds = rounds
        self._lanes = [(lane, store) for lane, store in lanes if lane.next < len(lane.frames)]
        self._heads = [(_rounds_of(lane)[lane.skip], number) for number, (lane, _) in enumerate(self._lanes)]
        heapify(self._heads)
        self._frames: dict[int, Frame] = {}
        """The decoded, partly processed frame of each lane."""
        self.keys = 0
        """The number of keys in the first round of the records that `take` returned."""

    def take(self) -> tuple[Frame, int] | None:
        """The records to process next, with the index of their input; None if there are no more.

        Each of their rounds has at least half as many keys as the first one (`keys`). Records of rounds with only a few keys
        may take longer.
        """
        if not self._heads:
            return None
        _, number = self._heads[0]
        lane, store = self._lanes[number]
        frame = self._frames.get(number)
        if frame is None:
            place = lane.frames[lane.next][1]
            frame = self._frames[number] = decode_data(memoryview(store.look(place))[HEADER_SIZE:])
        rounds = _rounds_of(lane)
        end = len(rounds)
        if len(self._heads) > 1:
            until, other = min(self._heads[1:3])
            end = (bisect_right if number < other else bisect_left)(rounds, until, lane.skip)
        self.keys, end = _even(rounds, lane.skip, end)
        return frame.part(lane.skip, end), lane.index

    def processed(self, count: int) -> None:
        """The first ``count`` records that `take` returned have been processed."""
        if not count:
            return
        _, number = self._heads[0]
        lane, store = self._lanes[number]
        rounds = _rounds_of(lane)
        lane.skip += count
        self._rounds.reached(rounds[lane.skip - 1])
        if lane.skip == len(rounds):
            store.get(lane.frames[lane.next][1])
            del self._frames[number]
            lane.next, lane.skip = lane.next + 1, 0
        if lane.next < len(lane.frames):
            heapreplace(self._heads, (_rounds_of(lane)[lane.skip], number))
        else:
            heappop(self._heads)


def _even(rounds: array[int], first: int, end: int) -> tuple[int, int]:
    """The number of keys in the first round, and the position of the first round with less than half as many.

    >>> _even(array("q", [1, 1, 1, 1, 2, 2, 2, 3, 4]), 0, 9)
    (4, 7)
    """
    at = bisect_right(rounds, rounds[first], first, end)
    keys = at - first
    while at < end:
        after = bisect_right(rounds, rounds[at], at, end)
        if 2 * (after - at) < keys:
            break
        at = after
    return keys, at


def _rounds_of(lane: Lane) -> array[int]:
    assert lane.rounds is not None
    return lane.rounds[lane.next]
