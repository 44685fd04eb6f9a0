"""Channel state: frames of earlier epochs that a subtask has not processed yet, and their form in a checkpoint.

A subtask processes the input of its epochs one after the other. If a deadline cuts an epoch, the rest waits, and goes into
the checkpoint as a listed state of the chain's first operator. Its parts come in pairs: a cursor, written at every barrier,
and the frames, written once. Waiting keyed records that do not advance event time are processed in rounds (`Rounds`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

import msgspec

from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import ListPart
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Storage
from holdfast.runtime.channels.channels import InputMerge, Lane
from holdfast.runtime.channels.rounds import Rounds, RoundsMerge
from holdfast.runtime.plan.event_time import combined
from holdfast.runtime.plan.listed_states import read_part, write_part
from holdfast.runtime.plan.plan import InputKind, Vertex
from holdfast.runtime.records.frames import HEADER_SIZE, Barrier, Frame, decode_data, encode_data
from holdfast.runtime.records.spill import FrameStore
from holdfast.state.keys.key_groups import group_assigner

__all__ = ["ChannelState", "other_inputs"]

_MOST_SORTED = 32 << 20
"""Larger inputs of an epoch, in bytes, are not put in rounds, because that decodes all of an input at once."""
_MOST_JOINED = 1 << 20
"""Inputs of several epochs are combined up to this many bytes."""


class _StoredLane(msgspec.Struct, frozen=True, array_like=True):
    """A lane of a merge, see `Lane`."""

    channel: int
    sender: int
    index: int
    watermark: int
    idle: bool
    end_watermark: int
    """The watermark after its last frame."""
    end_idle: bool
    frames: int
    """The number of its frames in the part that follows the cursor."""
    next: int
    """The number of processed frames."""
    skip: int


class _Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of an epoch's input has been processed."""

    epoch: Epoch
    parallelism: int
    max_parallelism: int
    """Like ``parallelism``, that of the vertex that received the input."""
    inputs: list[str]
    """The kinds of the operator's inputs."""
    lanes: list[_StoredLane]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Cursor).decode


@dataclass
class _Waiting:
    """The input of one epoch that is only partly processed, or not at all."""

    epoch: Epoch
    merge: InputMerge
    frames: ListPart | None = None
    """Its frames in the storage, if stored."""
    first: tuple[int, ...] = ()
    """For each lane, the first stored frame."""

    def remaining(self) -> Iterator[int]:
        """The unprocessed frames, by their place in the store."""
        for lane in self.merge.lanes.values():
            for _, place in lane.frames[lane.next :]:
                yield place

    @property
    def size(self) -> int:
        """The bytes of the unprocessed frames."""
        return sum(map(self.merge.store.size, self.remaining()))


def other_inputs(vertex: Vertex, parts: Sequence[ListPart]) -> str:
    """Say how the inputs of stored channel state differ from the vertex's inputs; empty if they do not."""
    now = _inputs(vertex)
    for cursor in _cursors(parts):
        if cursor.inputs != now:
            return f"inputs {cursor.inputs}, and the program has inputs {now}"
    return ""


def _held(merge: InputMerge) -> bool:
    """Whether a channel reports records held back upstream."""
    return any(lane.barrier is not None and lane.barrier.held for lane in merge.lanes.values())


def _cursors(parts: Sequence[ListPart]) -> list[_Cursor]:
    with parsing("the channel state in the checkpoint", "the place of a subtask in its input"):
        return [_decode(element) for inline in parts[::2] for element in inline.elements]


def _inputs(vertex: Vertex) -> list[str]:
    return [kind.value for kind in vertex.inputs]


def _held_by(later: Sequence[_Cursor]) -> list[tuple[_StoredLane, list[bytes]]]:
    """A lane without frames that holds back event time, at that of the old subtasks before their remaining input."""
    if not later:
        return []
    watermark = min(combined((lane.watermark, lane.idle) for lane in cursor.lanes) for cursor in later)
    first = later[0].lanes[0]
    return [(_StoredLane(first.channel, 0, first.index, watermark, False, watermark, False, frames=0, next=0, skip=0), [])]


class ChannelState:
    """The input that a subtask has not processed, oldest first.

    Args:
        storage: The checkpoint storage.
        vertex: The subtask's vertex.
        subtask: The subtask's number.
        new_store: Makes an empty store of frames.
        frame_records: The most records of a frame.
    """

    def __init__(
        self, storage: Storage, vertex: Vertex, subtask: int, new_store: Callable[[], FrameStore], frame_records: int
    ) -> None:
        self._storage = storage
        self._vertex = vertex
        self._subtask = subtask
        self._new_store = new_store
        self._frame_records = frame_records
        self._keyed = all(kind is InputKind.KEYED for kind in vertex.inputs)
        self._rounds = Rounds()
        self._waiting: deque[_Waiting] = deque()
        self.idle = False
        """Whether the channels were idle at the end of the last processed input."""
        self.held = False
        """Whether they also reported records held back upstream."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, epoch: Epoch, merge: InputMerge, watermark: int) -> None:
        """Add the input of a new epoch; ``watermark``: the event time that the subtask has reached."""
        if self._waiting and not any(lane.frames for lane in merge.lanes.values()):
            last = self._waiting[-1].merge
            # A lane whose sender is further may hold records of another sender (`sort`): event time moves only after all of
            # them.
            still = last.all_processed or merge.end <= watermark
            if still and last.lanes.keys() == merge.lanes.keys():  # the new input only moves the barriers
                for name, lane in last.lanes.items():
                    lane.barrier = merge.lanes[name].barrier
                merge.store.close()
                return
        if not self._waiting:
            self._rounds = Rounds()
        self._waiting.append(_Waiting(epoch, merge))
        if len(self._waiting) > 1:
            self.sort(watermark)

    def sort(self, watermark: int) -> None:
        """Put the newest input's records in the order of their rounds, unless some of the waiting input advances event time.

        Inputs of earlier epochs are merged into it if they are not much larger, so that a long backlog is not a long queue.
        """
        *older, newest = self._waiting
        merge, store = newest.merge, newest.merge.store
        size = newest.size
        if len(self._timeless(watermark)) < len(self._waiting) or size > _MOST_SORTED:
            return
        for each in older:
            self._number(each)
        self._rounds.forget()
        joined = [newest]
        while older and older[-1].size <= min(2 * size, _MOST_JOINED - size):
            joined.insert(0, older.pop())
            size += joined[0].size
        merge.store = self._new_store()
        stores = [*(each.merge.store for each in joined[:-1]), store]
        for index in range(len(self._vertex.inputs)):
            runs = [
                (lane, held)
                for each, held in zip(joined, stores)
                for lane in each.merge.lanes.values()
                if lane.index == index
            ]
            into = next(lane for lane in merge.lanes.values() if lane.index == index)
            self._rounds.sort(runs, into, merge.store, self._frame_records)
        for held in stores:
            held.close()
        self._waiting = deque([*older, newest])

    def _number(self, waiting: _Waiting) -> None:
        for lane in waiting.merge.lanes.values():
            self._rounds.number(lane, waiting.merge.store)

    def _timeless(self, watermark: int) -> list[_Waiting]:
        """The oldest inputs, up to the first that advances event time; none for input without keys."""
        return list(takewhile(lambda each: self._keyed and each.merge.end <= watermark, self._waiting))

    def in_rounds(self, watermark: int) -> RoundsMerge:
        """The oldest records, to be processed round by round: those that do not advance event time.

        Args:
            watermark: The event time that the subtask has reached.
        """
        timeless = self._timeless(watermark)
        for each in timeless:
            self._number(each)
        return RoundsMerge(
            self._rounds, [(lane, each.merge.store) for each in timeless for lane in each.merge.lanes.values()]
        )

    def processed_in_rounds(self, watermark: int) -> None:
        """Remove what has been processed of the input that `in_rounds` returned for this watermark."""
        count = len(self._timeless(watermark))
        waiting, self._waiting = self._waiting, deque()
        for number, each in enumerate(waiting):
            if number < count and each.merge.all_processed:
                self.idle, self.held = each.merge.idle, _held(each.merge)
                each.merge.store.close()
            else:
                self._waiting.append(each)

    def oldest(self, watermark: int) -> InputMerge:
        """The input to process next; ``watermark``: the event time that the subtask has reached."""
        merge = self._waiting[0].merge
        merge.not_before(watermark)
        return merge

    def processed(self) -> None:
        """Remove the oldest input, which has been processed."""
        merge = self._waiting.popleft().merge
        self.idle, self.held = merge.idle, _held(merge)

    @property
    def size(self) -> int:
        """The bytes of all unprocessed frames."""
        return sum(waiting.size for waiting in self._waiting)

    def snapshot(self, new_path: Callable[[], str]) -> list[ListPart]:
        """Write the input that is not stored yet; returns the parts of the listed state.

        Args:
            new_path: Returns a unique storage path for a file.
        """
        parts = []
        for waiting in self._waiting:
            if waiting.frames is None:
                store = waiting.merge.store
                waiting.first = tuple(lane.next for lane in waiting.merge.lanes.values())
                waiting.frames = write_part(self._storage, list(map(store.look, waiting.remaining())), new_path)
            parts += [ListPart([_encode(self._cursor(waiting))]), waiting.frames]
        return parts

    def _cursor(self, waiting: _Waiting) -> _Cursor:
        lanes = []
        for ((channel, sender), lane), first in zip(waiting.merge.lanes.items(), waiting.first, strict=True):
            end = lane.barrier
            assert end is not None
            lanes.append(
                _StoredLane(
                    channel,
                    sender,
                    lane.index,
                    lane.watermark,
                    lane.idle,
                    end.watermark,
                    end.idle,
                    len(lane.frames) - first,
                    lane.next - first,
                    lane.skip,
                )
            )
        return _Cursor(waiting.epoch, self._vertex.parallelism, self._vertex.max_parallelism, _inputs(self._vertex), lanes)

    # restore

    def restore(self, parts: Sequence[ListPart]) -> None:
        """Restore the parts of a checkpoint: this subtask's own, or, after a rescaling, those of all subtasks.

        The caller has checked the operator's inputs (`other_inputs`).

        Raises:
            CorruptFile: a file is missing or altered.
        """
        stored = list(zip(_cursors(parts), parts[1::2], strict=True))
        width = self._vertex.parallelism, self._vertex.max_parallelism
        if all((cursor.parallelism, cursor.max_parallelism) == width for cursor, _ in stored):
            for cursor, frames in stored:
                lanes = self._lanes(cursor, read_part(self._storage, frames))
                self._waiting.append(self._restored(cursor, lanes))
                self._waiting[-1].frames = frames
                self._waiting[-1].first = (0,) * len(cursor.lanes)
        else:
            self._redistribute(stored)

    def _lanes(self, cursor: _Cursor, frames: Sequence[bytes]) -> list[tuple[_StoredLane, list[bytes]]]:
        """The lanes with their frames, including processed ones."""
        lanes, at = [], 0
        for lane in cursor.lanes:
            lanes.append((lane, list(frames[at : at + lane.frames])))
            at += lane.frames
        return lanes

    def _restored(self, cursor: _Cursor, stored: Sequence[tuple[_StoredLane, list[bytes]]]) -> _Waiting:
        store = self._new_store()
        lanes = {}
        for each, frames in stored:
            lane = lanes[(each.channel, each.sender)] = Lane(each.index, False, each.watermark)
            lane.frames = [(n, store.put(frame)) for n, frame in enumerate(frames)]
            lane.barrier = Barrier(cursor.epoch, "", len(frames), each.end_watermark, each.end_idle)
            lane.idle, lane.next, lane.skip = each.idle, each.next, each.skip
        return _Waiting(cursor.epoch, InputMerge(lanes, store))

    def _redistribute(self, stored: Sequence[tuple[_Cursor, ListPart]]) -> None:
        """Take this subtask's records: those of its key groups, and every n-th frame of those without keys.

        A key's records are in one lane or have no order, so lanes of several old subtasks can be merged, epoch by epoch. An
        epoch's input may have got a later epoch's barrier (`add`), so the input of later epochs holds event time back in it.
        """
        mine = self._share()
        for epoch in sorted({cursor.epoch for cursor, _ in stored}):
            lanes: list[tuple[_StoredLane, list[bytes]]] = []
            for cursor, part in stored:
                if cursor.epoch == epoch:
                    for lane, frames in self._lanes(cursor, read_part(self._storage, part)):
                        taken = []
                        for n, encoded in enumerate(frames[lane.next :]):
                            frame = decode_data(memoryview(encoded)[HEADER_SIZE:])
                            if n == 0:
                                frame = frame.part(lane.skip, len(frame.values))
                            positions = mine(frame)
                            if positions:
                                taken.append(encoded[:HEADER_SIZE] + encode_data(frame.chosen(positions)))
                        lanes.append((msgspec.structs.replace(lane, next=0, skip=0), taken))
            lanes += _held_by([cursor for cursor, _ in stored if cursor.epoch > epoch])
            numbered = [(msgspec.structs.replace(lane, sender=n), taken) for n, (lane, taken) in enumerate(lanes)]
            self._waiting.append(self._restored(_Cursor(epoch, 0, 0, [], []), numbered))

    def _share(self) -> Callable[[Frame], list[int]]:
        """A function that returns the positions of this subtask's records in a frame; all subtasks call it in one order."""
        parallelism = self._vertex.parallelism
        assign, dealt = group_assigner(self._vertex.max_parallelism, parallelism), count()

        def mine(frame: Frame) -> list[int]:
            if frame.keys is not None:
                return [at for at, owner in enumerate(assign(frame.keys)) if owner == self._subtask]
            return list(range(len(frame.values))) if next(dealt) % parallelism == self._subtask else []

        return mine

    def close(self) -> None:
        """Drop everything."""
        for waiting in self._waiting:
            waiting.merge.store.close()
        self._waiting.clear()
