"""The two ends of a channel: Router packs a subtask's output into frames, InputMerge merges a subtask's input."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from operator import index
from typing import Any, SupportsIndex

from xxhash import xxh3_128_digest

from holdfast import compiled
from holdfast.checkpoint.ids import Epoch
from holdfast.common.formats.columns import ColumnKeys, Columns, columns_of, packed_stamps, stamp_array
from holdfast.common.formats.positions import part_by, picker, positions_by
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.errors import HoldfastError
from holdfast.runtime.plan.event_time import combined
from holdfast.runtime.plan.plan import Channel, InputKind, JobPlan, Partitioning, Vertex
from holdfast.runtime.records.column_routes import members, plain_keys, subtasks
from holdfast.runtime.records.frames import (
    BARRIER,
    DATA,
    HEADER_SIZE,
    Barrier,
    Frame,
    decode_barrier,
    decode_data,
    encode_barrier,
    encode_data,
    pack_frame,
    unpack_header,
)
from holdfast.runtime.records.getters import getter
from holdfast.runtime.records.owned_keys import OwnedKeys
from holdfast.runtime.records.records import RecordBatch, select_keys
from holdfast.runtime.records.samples import EdgeSample
from holdfast.runtime.records.spill import FrameStore
from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.runtime.time.clock import Passing
from holdfast.state.keys.key_groups import group_assigner

__all__ = ["ChannelIncomplete", "InputMerge", "Lane", "Router", "first_partition", "receivers", "seen_attempts", "senders"]

_PLAIN_KEYS = {str, int, bytes}

Send = Callable[[int, bytes], None]
"""Takes a frame and its target partition in the next stage."""


class ChannelIncomplete(HoldfastError):
    """A task did not get all frames of its input channels; the epoch must be run again."""


def first_partition(plan: JobPlan, vertex: Vertex) -> int:
    """The partition of a vertex's first subtask in its Spark stage."""
    position = 0
    for other in plan.at(vertex.level):
        if other.id == vertex.id:
            return position
        position += other.parallelism
    raise KeyError(vertex.id)


def receivers(partitioning: Partitioning, sender: int, senders: int, count: int) -> range:
    """The subtasks of the receiving vertex to which a sender has a channel."""
    if partitioning is Partitioning.FORWARD:
        return range(sender, sender + 1)
    if partitioning is Partitioning.RESCALE:
        if senders >= count:
            target = sender * count // senders
            return range(target, target + 1)
        return range(sender * count // senders, (sender + 1) * count // senders)
    return range(count)


def senders(partitioning: Partitioning, receiver: int, count: int, receivers: int) -> range:
    """The subtasks of the sending vertex that have a channel to a receiver; the inverse of `receivers`."""
    if partitioning is Partitioning.FORWARD:
        return range(receiver, receiver + 1)
    if partitioning is Partitioning.RESCALE:
        first, end = -(-receiver * count // receivers), -(-(receiver + 1) * count // receivers)
        return range(first, end) if count >= receivers else range(end - 1, end)
    return range(count)


def seen_attempts(attempts: Iterable[str]) -> bytes:
    """A digest of the attempts of a channel's senders, in order."""
    return xxh3_128_digest("\n".join(attempts).encode())


class Router:
    """Sends the records of one channel: partitions them, buffers them by receiver, and packs them into frames."""

    def __init__(
        self,
        plan: JobPlan,
        vertex: Vertex,
        channel: Channel,
        subtask: int,
        send: Send,
        operator: OperatorName,
        passing: Passing,
    ):
        """``passing``: shows the records that pass; they may be late."""
        target = next(v for v in plan.vertices if v.id == channel.target)
        self._channel = channel
        self._sender = subtask
        self._send = send
        self._operator = operator
        self._passing = passing
        self._level = target.level
        self._first = first_partition(plan, target)
        self._next_level_width = sum(v.parallelism for v in plan.at(vertex.level + 1))
        self._relayed = target.level > vertex.level + 1
        self._targets = receivers(channel.partitioning, subtask, vertex.parallelism, target.parallelism)
        self._frame_records = plan.settings.frame_records
        self._assign = group_assigner(target.max_parallelism, target.parallelism)
        self._owned = OwnedKeys(target.max_parallelism, target.parallelism, subtask, operator)
        self._parallelism = target.parallelism
        self._max_parallelism = target.max_parallelism
        self._turn = subtask
        self._random = random.Random()
        self._key = channel.key_selector
        if self._key is not None:
            method = getattr(self._key, "get_key", None)
            self._key = method if callable(method) else self._key
        self._read_key = getter(self._key)
        self.watermark = MIN_TIMESTAMP
        self.idle = self.held = False
        self.location: Callable[[], str] | None = None
        """In traced epochs, returns the origin of the current record."""
        self.records = 0
        self.sample: EdgeSample | None = None
        """In epochs with a requested sample: receives the records of this edge as well."""
        self._open: dict[int, Frame] = {}
        self._frames: dict[int, int] = {}
        self.begin()

    @property
    def target(self) -> int:
        """The number of the receiving vertex."""
        return self._channel.target

    def begin(self) -> None:
        """An epoch starts."""
        self._open = {}
        self._frames = dict.fromkeys(self._targets, 0)
        self.records = 0

    def process(self, batch: RecordBatch) -> None:
        """Send a batch."""
        values, timestamps = batch.values, batch.timestamps
        if not values:
            return
        self.records += len(values)
        kind = self._channel.partitioning
        if kind is Partitioning.HASH:
            if self._channel.columns is not None:
                values = self._channel.columns.applied(values)
            keys = self._keys(values)
            if columns_of(values) is not None and not isinstance(keys, ColumnKeys):
                values = list(values)
            alone = self._parallelism == 1
            try:
                # A single subtask needs no targets, but keys of unusual types must be checked nevertheless.
                targets = [] if alone and self._all_plain(keys) else self._owners(keys)
            except Exception as error:  # raised by the key's own hash or pickling
                raise user_error(error, *self._operator, values[0]) from error
            if alone:
                self._add(0, values, timestamps, keys)
            else:
                self._spread(targets, values, timestamps, keys)
        elif kind is Partitioning.BROADCAST:
            for target in self._targets:
                self._add(target, values, timestamps, None)
        elif kind is Partitioning.FORWARD and self._key is not None:
            keys = self._keys(values)
            self._owned.check(keys, values)
            self._add(self._sender, values if isinstance(keys, ColumnKeys) else list(values), timestamps, keys)
        elif len(self._targets) == 1 and kind is not Partitioning.CUSTOM:
            self._add(self._targets[0], values, timestamps, None)
        elif kind is Partitioning.CUSTOM:
            self._spread(self._chosen(values), values, timestamps, None)
        elif kind is Partitioning.SHUFFLE:
            self._spread(self._random.choices(self._targets, k=len(values)), values, timestamps, None)
        else:
            width, first = len(self._targets), self._targets[0]
            turn = self._turn
            self._turn = (turn + len(values)) % width
            self._spread([first + (turn + i) % width for i in range(len(values))], values, timestamps, None)

    @staticmethod
    def _all_plain(keys: Any) -> bool:
        """Whether all keys have types that every subtask accepts without a check."""
        return plain_keys(keys) if isinstance(keys, ColumnKeys) else set(map(type, keys)) <= _PLAIN_KEYS

    def _owners(self, keys: Any) -> Any:
        """The subtasks that own the keys: a list, or an array for keys in columns."""
        if isinstance(keys, ColumnKeys):
            return subtasks(keys, self._assign, self._max_parallelism, self._parallelism)
        return self._assign(keys)

    def _keys(self, values: list[Any]) -> list[Any]:
        assert self._key is not None
        return select_keys(self._key, self._channel.key_type, values, self._operator, self._read_key)

    def _chosen(self, values: list[Any]) -> list[int]:
        """The target subtasks chosen by the user's partitioner."""
        partition, count = self._channel.partitioner, self._parallelism
        assert partition is not None
        targets: list[int] = []
        for value, key in zip(values, self._keys(values)):
            try:
                target = partition(key, count)
            except (Exception, SystemExit) as error:
                raise user_error(error, *self._operator, value) from error
            if not isinstance(target, SupportsIndex) or not 0 <= index(target) < count:
                refusal = ValueError(
                    f"the partitioner returned {target!r:.80} for the key {key!r:.80}; it must return a whole number from "
                    f"0 to {count - 1}"
                )
                raise user_error(refusal, *self._operator, value)
            targets.append(index(target))
        return targets

    def _spread(self, targets: Any, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        columns = columns_of(values)
        if columns is not None:
            self._spread_columns(targets, columns, timestamps, keys)
            return
        # In plain Python, one call per list costs less than a loop over the records.
        if compiled.IN_USE and type(values) is list and type(targets) is list:
            beside = [each for each in (timestamps, keys) if type(each) is list]
            if len(beside) == (timestamps is not None) + (keys is not None):
                for target, (part, *others) in part_by(targets, [values, *beside]).items():
                    rest = iter(others)
                    stamps = None if timestamps is None else next(rest)
                    self._add(target, part, stamps, None if keys is None else next(rest))
                return
        placed = positions_by(targets)
        if len(placed) == 1:
            self._add(targets[0], values, timestamps, keys)
            return
        for target, positions in placed.items():
            pick = picker(positions)
            self._add(
                target,
                pick(values),
                None if timestamps is None else pick(timestamps),
                None if keys is None else pick(keys),
            )

    def _spread_columns(self, targets: Any, columns: Columns, timestamps: list[int] | None, keys: list[Any] | None) -> None:
        selected = keys if isinstance(keys, ColumnKeys) else None
        stamps = None if timestamps is None else stamp_array(timestamps)
        for target, positions in members(targets):
            part = columns if len(positions) == len(columns) else columns.take(positions)
            self._add(
                target,
                part,
                None if stamps is None else packed_stamps(stamps[positions]),
                None if selected is None else ColumnKeys(part, selected.fields),
            )

    def _add(self, target: int, values: Any, timestamps: Any, keys: Any) -> None:
        frame = self._open.get(target)
        if frame is not None and not frame.extend(values, timestamps, keys):
            self._flush(target)
            frame = None
        if frame is None:
            frame = Frame.of(values, timestamps, keys, None if self.location is None else [])
            self._open[target] = frame
        if self._passing.late_by > MIN_TIMESTAMP:
            frame.late.append((len(frame.values) - len(values), len(frame.values), self._passing.late_by))
        if self.location is not None:
            assert frame.locations is not None
            frame.locations.extend([self.location()] * (len(frame.values) - len(frame.locations)))
        if frame.is_full(self._frame_records):
            self._flush(target)

    def _flush(self, target: int) -> None:
        frame = self._open.pop(target, None)
        if frame is None:
            return
        frame.watermark = self.watermark
        if self.sample is not None:
            self.sample.take(frame.values, frame.timestamps, frame.keys)
        try:
            payload = encode_data(frame)
        except Exception as error:  # raised by the value's own pickling
            raise user_error(
                TypeError(
                    f"an element cannot be sent to the next task, because it cannot be pickled: {error.__cause__ or error}"
                ),
                *self._operator,
                frame.values[0],
            ) from error
        self._dispatch(DATA, target, payload)
        self._frames[target] += 1

    def _dispatch(self, kind: int, target: int, payload: bytes) -> None:
        partition = self._first + target
        frame = pack_frame(kind, self._level, partition, self._channel.id, self._sender, self._frames[target], payload)
        self._send(partition % self._next_level_width if self._relayed else partition, frame)

    def end(self, epoch: Epoch, attempt: str) -> None:
        """Send the buffered records and the barrier."""
        for target in list(self._open):
            self._flush(target)
        for target, frames in self._frames.items():
            self._dispatch(
                BARRIER, target, encode_barrier(Barrier(epoch, attempt, frames, self.watermark, self.idle, self.held))
            )


class Lane:
    """One channel from one sender: its frames of an epoch, and how many have been processed."""

    def __init__(self, index: int, broadcast: bool, watermark: int) -> None:
        self.index = index
        self.broadcast = broadcast
        self.watermark = watermark
        self.idle = False
        self.frames: list[tuple[int, int]] = []
        """Sequence and place in the store."""
        self.barrier: Barrier | None = None
        self.next = 0
        self.skip = 0
        """The number of processed records of the next frame."""
        self.rounds: list[array[int]] | None = None
        """The rounds of each frame's records, if records are processed in rounds."""

    def finish(self) -> None:
        """All frames are processed: the barrier's watermark holds."""
        assert self.barrier is not None
        self.watermark = max(self.watermark, self.barrier.watermark)
        self.idle = self.barrier.idle


class InputMerge:
    """The input of a subtask in an epoch, verified against the barriers and merged by watermark.

    Args:
        lanes: By channel and sending subtask.
        store: Holds the frames.
    """

    def __init__(self, lanes: dict[tuple[int, int], Lane], store: FrameStore) -> None:
        self.lanes = lanes
        self.store = store
        self._current: tuple[Lane, int, int, bytes] | None = None
        """The frame in progress: its lane, the lane's watermark and skip before it, and its bytes."""

    @classmethod
    def of(cls, plan: JobPlan, vertex: Vertex, subtask: int, watermark: int, spill_directory: str, bound: int) -> InputMerge:
        """Create the input of an epoch, with the channels of the plan."""
        lanes: dict[tuple[int, int], Lane] = {}
        for sender in plan.vertices:
            for channel in (c for chained in sender.chain for c in chained.channels if c.target == vertex.id):
                broadcast = vertex.inputs[channel.input_index] is InputKind.BROADCAST
                # The order of broadcast input depends only on its senders, so it is the same in every subtask.
                at = MIN_TIMESTAMP if broadcast else watermark
                for n in senders(channel.partitioning, subtask, sender.parallelism, vertex.parallelism):
                    lanes[(channel.id, n)] = Lane(channel.input_index, broadcast, at)
        return cls(lanes, FrameStore(spill_directory, bound))

    def add(self, frame: bytes) -> None:
        """Add a received frame."""
        header = unpack_header(frame)
        source = self.lanes.get((header.channel, header.sender))
        if source is None:
            raise ChannelIncomplete(f"a frame of an unknown channel {header.channel} from subtask {header.sender}")
        if header.kind == BARRIER:
            if source.barrier is not None:
                raise ChannelIncomplete(f"two barriers on channel {header.channel} from subtask {header.sender}")
            source.barrier = decode_barrier(memoryview(frame)[HEADER_SIZE:])
        else:
            source.frames.append((header.sequence, self.store.put(frame)))

    def verify(self, epoch: Epoch) -> dict[int, bytes]:
        """Check that every channel is complete; returns the `seen_attempts` of each channel.

        Raises:
            ChannelIncomplete: a barrier is missing or of another epoch, or frames are missing or duplicated.
        """
        seen: dict[int, list[str]] = {}
        for (channel, sender), source in self.lanes.items():
            frames, barrier = source.frames, source.barrier
            frames.sort()
            if barrier is None or barrier.epoch != epoch:
                raise ChannelIncomplete(f"no barrier of epoch {epoch} on channel {channel} from subtask {sender}")
            if len(frames) != barrier.frames or [sequence for sequence, _ in frames] != list(range(barrier.frames)):
                raise ChannelIncomplete(
                    f"channel {channel} from subtask {sender}: {len(frames)} of {barrier.frames} frames arrived"
                )
            seen.setdefault(channel, []).append(barrier.attempt)
        return {channel: seen_attempts(attempts) for channel, attempts in seen.items()}

    def not_before(self, watermark: int) -> None:
        """Raise the lanes' watermarks to ``watermark``, which the input of earlier epochs has reached by now."""
        for source in self.lanes.values():
            if not source.broadcast:
                source.watermark = max(source.watermark, watermark)

    def frames(self) -> Iterator[tuple[Frame | None, int, int]]:
        """The frames in processing order: (frame, input index, watermark after it).

        Broadcast records come first, so they apply to all other records of the epoch. Of the other channels, the one with
        the lowest watermark comes first, so that no channel makes another's records late; at equal watermarks, that of the
        first input. A None frame only advances time.
        """
        lanes = sorted(self.lanes.values(), key=lambda source: source.index)
        for source in lanes:
            if source.next == len(source.frames):
                source.finish()
        time = _CombinedTime(lanes)
        yield from self._in_order([source for source in lanes if source.broadcast], time)
        yield from self._in_order([source for source in lanes if not source.broadcast], time)
        yield None, 0, time.now()
        self.store.close()

    def _in_order(self, lanes: list[Lane], time: _CombinedTime) -> Iterator[tuple[Frame, int, int]]:
        ready = [(source.watermark, n) for n, source in enumerate(lanes) if source.next < len(source.frames)]
        heapify(ready)
        while ready:
            position = ready[0][1]
            source = lanes[position]
            encoded = self.store.get(source.frames[source.next][1])
            self._current = source, source.watermark, source.skip, encoded
            source.next += 1
            frame = decode_data(memoryview(encoded)[HEADER_SIZE:])
            if source.skip:
                frame, source.skip = frame.part(source.skip, len(frame.values)), 0
            source.watermark = max(source.watermark, frame.watermark)
            if source.next == len(source.frames):
                source.finish()
                heappop(ready)
            else:
                heapreplace(ready, (source.watermark, position))
            yield frame, source.index, time.now()

    def cut(self, processed: int) -> None:
        """Stop within the latest frame of `frames`; the next call of `frames` begins with the rest of it.

        Args:
            processed: The number of processed records of that frame.
        """
        assert self._current is not None
        source, watermark, skipped, encoded = self._current
        source.next -= 1
        source.watermark, source.idle, source.skip = watermark, False, skipped + processed
        self.store.put_back(source.frames[source.next][1], encoded)
        self._current = None

    @property
    def all_processed(self) -> bool:
        """Whether all frames have been processed."""
        return all(lane.next == len(lane.frames) for lane in self.lanes.values())

    @property
    def end(self) -> int:
        """The watermark after all frames."""
        ends = [(lane.watermark, lane.barrier) for lane in self.lanes.values()]
        return combined((max(at, end.watermark), end.idle) for at, end in ends if end is not None)

    @property
    def idle(self) -> bool:
        """Whether all channels are idle at the end."""
        return all(source.barrier is not None and source.barrier.idle for source in self.lanes.values())


class _CombinedTime:
    """The event time of lanes, as `combined` defines it, at a cost that does not grow with their number.

    Watermarks only rise, and idle lanes stay idle: a lane's entry in the heap is never above its watermark.
    """

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self._lowest = [(lane.watermark, n) for n, lane in enumerate(lanes) if not lane.idle]
        heapify(self._lowest)

    def now(self) -> int:
        """The current event time."""
        lowest = self._lowest
        while lowest:
            watermark, n = lowest[0]
            lane = self._lanes[n]
            if lane.idle:
                heappop(lowest)
            elif lane.watermark > watermark:
                heapreplace(lowest, (lane.watermark, n))
            else:
                return watermark
        return combined((lane.watermark, True) for lane in self._lanes)
