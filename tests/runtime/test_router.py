"""Records from the subtasks of one vertex to those of the next: through routers, frames and the merge of the input."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from holdfast import compiled
from holdfast.common.formats.columns import Columns, Fields, col, columns_of
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.operations.data_stream_utils import DataStreamUtils
from holdfast.errors import UserCodeError
from holdfast.runtime.channels.channels import InputMerge, Router, first_partition, receivers
from holdfast.runtime.plan.plan import Channel, JobPlan, Partitioning, Vertex
from holdfast.runtime.records.frames import DATA, HEADER_SIZE, Frame, decode_barrier, decode_data, unpack_header
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.samples import EdgeSample
from holdfast.runtime.records.user_code import OperatorName
from holdfast.runtime.time.clock import Passing
from holdfast.state.keys.key_groups import key_group

WIDE, NARROW = 4, 2
NAME = OperatorName("sender", "sender")
SHAPES: dict[str, Any] = {
    "HASH": lambda stream: stream.key_by(lambda v: v % 7).reduce(max),
    "REBALANCE": lambda stream: stream.rebalance().map(abs),
    "RESCALE": lambda stream: stream.rescale().map(abs),
    "SHUFFLE": lambda stream: stream.shuffle().map(abs),
    "BROADCAST": lambda stream: stream.broadcast().map(abs),
    "CUSTOM": lambda stream: stream.partition_custom(lambda key, n: key % n, lambda v: v // 2).map(abs),
}


def plan(shape: Any, sending: int, receiving: int, **config: str) -> JobPlan:
    """A source, another vertex in its level, a map, and what receives its records."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(sending).set_max_parallelism(128)
    for key, value in config.items():
        env._configuration.set_string(key, value)
    env.from_collection([1]).rebalance().map(lambda v: v).set_parallelism(3).print().set_parallelism(3)
    stream = env.from_collection([1]).rebalance().map(lambda v: v).uid("sender")
    shape(stream).set_parallelism(receiving).uid("receiver").print().set_parallelism(receiving)
    return env._plan("job")


def vertex_of(job: JobPlan, uid: str) -> Vertex:
    return next(vertex for vertex in job.vertices if any(chained.uid == uid for chained in vertex.chain))


def channel_of(job: JobPlan) -> Channel:
    (channel,) = [channel for chained in vertex_of(job, "sender").chain for channel in chained.channels]
    return channel


class Sent:
    """What the subtasks send in an epoch, by the partition of the next stage."""

    def __init__(self, job: JobPlan, **state: Any) -> None:
        self.job = job
        self.frames: list[tuple[int, bytes]] = []
        self.passing = Passing()
        sender = vertex_of(job, "sender")
        self.routers = [
            Router(job, sender, channel_of(job), n, lambda to, frame: self.frames.append((to, frame)), NAME, self.passing)
            for n in range(sender.parallelism)
        ]

    def received(self, epoch: int = 1) -> list[list[tuple[Any, int | None]]]:
        """The values of each receiving subtask with their timestamps, in the order of the frames."""
        for n, router in enumerate(self.routers):
            router.end(epoch, f"attempt {n}")
        receiver, found = vertex_of(self.job, "receiver"), []
        first = first_partition(self.job, receiver)
        for subtask in range(receiver.parallelism):
            merge = InputMerge.of(self.job, receiver, subtask, MIN_TIMESTAMP, "unused", 1 << 20)
            for partition, frame in self.frames:
                if partition == first + subtask:
                    assert unpack_header(frame).level == receiver.level
                    merge.add(frame)
            merge.verify(epoch)
            batches = [frame.batch() for frame, _, _ in merge.frames() if frame is not None]
            if channel_of(self.job).partitioning is Partitioning.HASH:
                select: Any = channel_of(self.job).key_selector
                assert all(list(batch.keys or ()) == [select(value) for value in batch.values] for batch in batches)
            found.append([pair for batch in batches for pair in zip(batch.values, batch.stamps())])
        return found


def frames_of(router: Router, sent: Sent) -> list[Frame]:
    """The data frames that a router has sent, in order; it ends its epoch."""
    router.end(1, "a")
    return [decode_data(frame[HEADER_SIZE:]) for _, frame in sent.frames if unpack_header(frame).kind == DATA]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("sending", "receiving"), [(WIDE, NARROW), (NARROW, WIDE), (3, 3), (WIDE, 1)])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("in_use", [False, True])
def a_record_reaches_the_subtasks_that_its_partitioning_says(
    shape: str, sending: int, receiving: int, timed: bool, in_use: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "IN_USE", in_use)
    job = plan(SHAPES[shape], sending, receiving)
    kind = channel_of(job).partitioning
    sent = Sent(job)
    assert {router.target for router in sent.routers} == {vertex_of(job, "receiver").id}
    for n, router in enumerate(sent.routers):
        for start in range(0, 60, 20):  # three batches
            values = [1000 * n + at for at in range(start, start + 20)]
            router.process(RecordBatch(values, [value + 5 for value in values] if timed else None))
        router.process(RecordBatch([], [] if timed else None))
        assert router.records == 60
    received = sent.received()
    copies = receiving if kind is Partitioning.BROADCAST else 1
    assert Counter(value for each in received for value, _ in each) == {
        1000 * n + at: copies for n in range(sending) for at in range(60)
    }
    for subtask, each in enumerate(received):
        assert all(stamp == (value + 5 if timed else MIN_TIMESTAMP) for value, stamp in each)
        for n in range(sending):
            mine = [value for value, _ in each if value // 1000 == n]
            assert mine == sorted(mine), "in order"
            if kind is not Partitioning.FORWARD and subtask not in receivers(kind, n, sending, receiving):
                assert mine == []
            elif kind in (Partitioning.REBALANCE, Partitioning.RESCALE):
                assert len(mine) == 60 // len(receivers(kind, n, sending, receiving)), "evenly"
        if kind is Partitioning.HASH:
            assert {key_group(value % 7, 128) * receiving // 128 for value, _ in each} <= {subtask}
        if kind is Partitioning.CUSTOM:
            assert {value // 2 % receiving for value, _ in each} <= {subtask}


def the_subtasks_of_a_rebalance_begin_with_different_receivers():
    sent = Sent(plan(SHAPES["REBALANCE"], WIDE, WIDE))
    for n, router in enumerate(sent.routers):
        router.process(RecordBatch([n], None))
    assert [value for each in sent.received() for value, _ in each] == [0, 1, 2, 3]


def a_frame_is_sent_when_it_is_full_and_holds_records_with_or_without_time():
    job = plan(SHAPES["RESCALE"], WIDE, WIDE, **{"holdfast.frame.records": "3"})
    sent = Sent(job)
    router = sent.routers[1]
    router.watermark = 7
    router.process(RecordBatch([1, 2], None))
    assert sent.frames == []
    router.process(RecordBatch([3], [30]))
    assert len(sent.frames) == 1, "records with a time have a frame of their own"
    router.process(RecordBatch([4, 5], [40, 50]))
    assert len(sent.frames) == 2
    assert sent.received()[1] == [(1, MIN_TIMESTAMP), (2, MIN_TIMESTAMP), (3, 30), (4, 40), (5, 50)]
    sent.frames.clear()
    for each in sent.routers:
        each.begin()
    assert router.records == 0
    assert sent.received(2) == [[], [], [], []]


@pytest.mark.parametrize("wrong", [-1, NARROW, "a", None, 0.5])
def a_partitioner_that_returns_no_subtask_is_told(wrong: Any):
    sent = Sent(plan(lambda stream: stream.partition_custom(lambda key, n: wrong, lambda v: v).map(abs), WIDE, NARROW))
    with pytest.raises(UserCodeError, match=f"must return a whole number from 0 to {NARROW - 1}"):
        sent.routers[0].process(RecordBatch([1], None))


def the_frames_of_a_channel_to_a_later_level_take_the_way_through_the_level_between():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(2).set_max_parallelism(128)
    stream = env.from_collection([1]).rebalance().map(lambda v: v).uid("sender")
    between = stream.rebalance().map(abs).uid("between")
    between.union(stream).key_by(lambda v: v).reduce(max).uid("receiver").set_parallelism(7).print().set_parallelism(7)
    job = env._plan("job")
    sender, receiver = vertex_of(job, "sender"), vertex_of(job, "receiver")
    assert (sender.level, vertex_of(job, "between").level, receiver.level) == (1, 2, 3)
    channels = [channel for chained in sender.chain for channel in chained.channels]
    for channel in channels:
        frames: list[tuple[int, bytes]] = []
        router = Router(job, sender, channel, 0, lambda to, frame, into=frames: into.append((to, frame)), NAME, Passing())
        router.process(RecordBatch(list(range(40)), None))
        router.end(1, "a")
        headers = [unpack_header(frame) for _, frame in frames]
        assert {header.level for header in headers} == {2 if channel.target != receiver.id else 3}
        assert [to for to, _ in frames] == [header.partition % 2 for header in headers]
        assert {header.partition for header in headers} == set(range(2 if channel.target != receiver.id else 7))


@pytest.mark.parametrize("receiving", [NARROW, 1])
def a_key_that_no_subtask_can_have_is_told(receiving: int):
    sent = Sent(plan(lambda stream: stream.key_by(lambda v: [v]).reduce(max), WIDE, receiving))
    with pytest.raises(UserCodeError, match="a key must be hashable"):
        sent.routers[0].process(RecordBatch([1], None))


@pytest.mark.parametrize("shape", ["REBALANCE", "SHUFFLE"])
@pytest.mark.parametrize("timed", [False, True])
def the_rows_of_columns_are_spread_with_their_times(shape: str, timed: bool):
    sent = Sent(plan(SHAPES[shape], WIDE, NARROW))
    for n, router in enumerate(sent.routers):
        numbers = list(range(60 * n, 60 * n + 60))
        columns = Columns(pa.RecordBatch.from_pydict({"n": numbers})).as_list()
        router.process(RecordBatch(columns, array("q", [each + 5 for each in numbers]) if timed else None))
    received = sent.received()
    assert sorted(row.n for each in received for row, _ in each) == list(range(60 * WIDE))
    assert all(stamp == (row.n + 5 if timed else MIN_TIMESTAMP) for each in received for row, stamp in each)
    if shape == "REBALANCE":
        assert [len(each) for each in received] == [30 * WIDE] * NARROW


@pytest.mark.parametrize("key", [lambda row: row.n % 7, col("n"), col("n", "text")])
@pytest.mark.parametrize("receiving", [NARROW, 1])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("in_use", [False, True])
def the_rows_of_columns_go_where_their_keys_belong(
    key: Any, receiving: int, timed: bool, in_use: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "IN_USE", in_use)
    sent = Sent(plan(lambda stream: stream.key_by(key).reduce(max), WIDE, receiving))
    for numbers in (list(range(40)), [40], list(range(41, 60))):
        columns = Columns(pa.RecordBatch.from_pydict({"n": numbers, "text": list(map(str, numbers))})).as_list()
        sent.routers[0].process(RecordBatch(columns, array("q", [each + 5 for each in numbers]) if timed else None))
    received = sent.received()
    frames = [decode_data(frame[HEADER_SIZE:]) for _, frame in sent.frames if unpack_header(frame).kind == DATA]
    assert {columns_of(frame.values) is not None for frame in frames} == {isinstance(key, Fields)}, "whole columns stay"
    assert sorted(row.n for each in received for row, _ in each) == list(range(60))
    for subtask, each in enumerate(received):
        assert [row.n for row, _ in each] == sorted(row.n for row, _ in each), "in order"
        assert {key_group(key(row), 128) * receiving // 128 for row, _ in each} <= {subtask}
        assert all(stamp == (row.n + 5 if timed else MIN_TIMESTAMP) for row, stamp in each)


@pytest.mark.parametrize("columnar", [False, True])
def a_stream_that_is_partitioned_by_its_key_already_stays_in_its_subtask(columnar: bool):
    def shape(stream: Any) -> Any:
        return DataStreamUtils.reinterpret_as_keyed_stream(stream, col("n")).reduce(max).start_new_chain()

    sent = Sent(plan(shape, NARROW, NARROW))
    first = first_partition(sent.job, vertex_of(sent.job, "receiver"))
    for n, router in enumerate(sent.routers):
        own = [{"n": key} for key in range(60) if key_group(key, 128) * NARROW // 128 == n]
        rows = Columns(pa.RecordBatch.from_pylist(own)).as_list() if columnar else own
        router.process(RecordBatch(rows, [each["n"] + 5 for each in own]))
        frames = frames_of(router, sent)
        assert {to - first for to, _ in sent.frames} == {n}
        assert all(frame.keys is not None and list(frame.keys) == list(map(col("n"), frame.values)) for frame in frames)
        assert all((columns_of(frame.values) is not None) is columnar for frame in frames)
        passed = [pair for frame in frames for pair in zip(map(col("n"), frame.values), frame.batch().stamps())]
        assert passed == [(each["n"], each["n"] + 5) for each in own]
        sent.frames.clear()
    wrong = next(key for key in range(60) if key_group(key, 128) * NARROW // 128 == 1)
    with pytest.raises(UserCodeError, match=f"the key {wrong} belongs to subtask 1"):
        sent.routers[0].process(RecordBatch([{"n": wrong}], None))


def test_records_that_are_late_by_their_own_split_keep_its_watermark():
    sent = Sent(plan(SHAPES["RESCALE"], NARROW, 1))
    router = sent.routers[0]
    for values, late_by in (([1, 2], MIN_TIMESTAMP), ([3, 4, 5], 70), ([6], MIN_TIMESTAMP)):
        sent.passing.late_by = late_by
        router.process(RecordBatch(values, [10 * value for value in values]))
    (frame,) = frames_of(router, sent)
    assert (frame.values, frame.late) == ([1, 2, 3, 4, 5, 6], [(2, 5, 70)])


def test_in_a_traced_epoch_each_record_has_the_place_it_came_from():
    sent = Sent(plan(SHAPES["RESCALE"], NARROW, 1))
    router = sent.routers[0]
    for values, place in (([1, 2], "first line"), ([3], "second line")):
        router.location = lambda place=place: place  # type: ignore[misc]
        router.process(RecordBatch(values, None))
    (frame,) = frames_of(router, sent)
    assert frame.locations == ["first line", "first line", "second line"]


def a_sample_of_an_edge_gets_the_records_that_are_sent():
    sent = Sent(plan(SHAPES["HASH"], NARROW, 1))
    router = sent.routers[0]
    router.sample = sample = EdgeSample()
    router.process(RecordBatch([1, 9], [5, 6]))
    frames_of(router, sent)
    assert sample.records == [(5, "1", "1"), (6, "2", "9")]


def a_barrier_tells_the_frames_before_it_and_the_time_at_the_end_of_the_epoch():
    sent = Sent(plan(SHAPES["RESCALE"], NARROW, 1, **{"holdfast.frame.records": "2"}))
    router = sent.routers[0]
    router.process(RecordBatch([1, 2], None))
    router.process(RecordBatch([3], None))
    router.watermark, router.idle, router.held = 40, True, True
    router.end(8, "attempt")
    *data, (_, barrier) = sent.frames
    assert [decode_data(frame[HEADER_SIZE:]).watermark for _, frame in data] == [MIN_TIMESTAMP, 40]
    assert [unpack_header(frame).sequence for _, frame in data] == [0, 1]
    assert decode_barrier(barrier[HEADER_SIZE:]) == (8, "attempt", 2, 40, True, True)


def an_element_that_cannot_be_pickled_is_told():
    sent = Sent(plan(SHAPES["RESCALE"], WIDE, NARROW))
    sent.routers[0].process(RecordBatch([threading.Lock()], None))
    with pytest.raises(UserCodeError, match="cannot be pickled"):
        sent.routers[0].end(1, "a")
