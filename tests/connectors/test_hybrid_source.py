"""The source of several sources one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from connector_harness import SourceRun, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Time, WatermarkStrategy
from holdfast.connectors.base import EpochInput, SplitRange
from holdfast.connectors.collection import CollectionSource
from holdfast.connectors.number_seq import NumberSequenceSource
from holdfast.datastream import TumblingEventTimeWindows
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.hybrid_source import HybridSource
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.connectors.socket import SocketTextSource
from holdfast.errors import ConfigurationError, IncompatibleState
from holdfast.testing import InProcessEnvironment


def hybrid(*sources: Any) -> HybridSource:
    builder = HybridSource.builder(sources[0])
    for source in sources[1:]:
        builder.add_source(source)
    return builder.build()


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    per_epoch=st.integers(1, 50),
    crashes=st.sets(st.integers(0, 12)),
)
@settings(max_examples=30, deadline=None)
def the_sources_are_read_one_after_the_other_whatever_the_epochs_and_crashes(
    sizes: list[int], per_epoch: int, crashes: set[int]
) -> None:
    values = [[(number, i) for i in range(size)] for number, size in enumerate(sizes)]
    run = SourceRun(hybrid(*map(CollectionSource, values))).start()
    read: list[Any] = []
    epochs = 0
    while not run.finished:
        if epochs in crashes:
            run.plan(per_epoch)
            run.crash()
        read += flat(run.epoch(per_epoch))
        epochs += 1
        assert epochs < 500
    assert read == [value for each in values for value in each]


def test_files_come_before_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path)).build()
    source = hybrid(files, NumberSequenceSource(1, 3))
    assert source.bounded
    run = SourceRun(source, (tmp_path / "checkpoints").as_uri()).start()
    assert sorted(flat(run.epoch())) == ["one", "three", "two"]
    assert not run.finished
    assert flat(run.epoch()) == [1, 2, 3]
    assert run.finished


class Endless:
    """Ten numbers of a split that is never told to end."""

    bounded = True

    def create_enumerator(self, job: Any, uid: str) -> Any:
        return self

    def create_reader(self, context: Any) -> Any:
        return CollectionSource(range(10)).create_reader(context)

    def start(self, state: Any) -> None:
        self.next = state or 0

    def plan(self, max_records: int) -> EpochInput:
        start, self.next = self.next, min(10, self.next + max_records)
        return EpochInput((SplitRange("forever", start, self.next),), finished=self.next == 10)

    def snapshot(self) -> Any:
        return self.next

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        self.completed = checkpoint_id

    def close(self) -> None:
        self.closed = True


def a_source_that_has_ended_does_not_hold_the_watermark_back() -> None:
    run = SourceRun(hybrid(Endless(), NumberSequenceSource(1, 3))).start()
    planned = run.enumerator.plan(6)
    assert [(part.split, part.last) for part in planned.ranges] == [("source 1: forever", False)]
    run.state = run.enumerator.snapshot()
    run.crash()
    planned = run.enumerator.plan(6)
    assert [(part.split, part.start, part.end, part.last) for part in planned.ranges] == [
        ("source 1: forever", 6, 10, False),
        ("source 1: forever", 10, 10, True),
    ]
    assert (planned.finished, planned.backlog) == (False, 1)
    assert [part.last for part in run.enumerator.plan(6).ranges] == [True]


def an_ended_source_is_told_of_its_last_checkpoint_and_closed() -> None:
    source = Endless()
    enumerator = hybrid(source, NumberSequenceSource(1, 3)).create_enumerator(None, "uid")  # type: ignore[arg-type]
    enumerator.start(None)
    enumerator.plan(10)
    first = enumerator.snapshot()
    enumerator.plan(10)
    enumerator.checkpoint_completed(7, first)
    assert source.completed == 7
    assert not hasattr(source, "closed")
    enumerator.checkpoint_completed(8, enumerator.snapshot())
    assert (source.completed, source.closed) == (7, True)
    enumerator.close()


def the_windows_of_both_sources_are_complete() -> None:
    env = InProcessEnvironment().set_parallelism(2)
    source = hybrid(NumberSequenceSource(0, 25), CollectionSource(range(26, 40)))
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda number, _: number)
    sums = env.from_source(source, times, "numbers").map(lambda number: (0, number)).key_by(lambda pair: pair[0])
    windows = sums.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(lambda a, b: (0, a[1] + b[1]))
    with windows.execute_and_collect() as results:
        assert [total for _, total in results] == [sum(range(start, start + 10)) for start in range(0, 40, 10)]


def test_what_cannot_follow_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"source 1 .* a SocketTextSource, is unbounded.*or put it last"):
        hybrid(SocketTextSource("localhost", 1), NumberSequenceSource(1, 2))
    with pytest.raises(TypeError, match=r"a KafkaSourceBuilder. Call build\(\) on it"):
        hybrid(NumberSequenceSource(1, 2), KafkaSource.builder())
    assert not hybrid(NumberSequenceSource(1, 2), SocketTextSource("localhost", 1)).bounded


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"sizes": {}, "next": {}}, "another kind of connector than this HybridSource"),
        ({"number": 2, "state": None, "finished": False, "open": {}}, "source 3 of a HybridSource.* one of 2 sources"),
        ({"number": 1, "state": {"topics": {}}, "finished": False, "open": {}}, "another kind of connector"),
        ({"number": 1, "state": {"sizes": {"a": 3}, "next": {}}, "finished": True, "open": {}}, "3 records"),
    ],
)
def the_checkpoint_of_another_source_is_refused(state: Any, why: str) -> None:
    source = hybrid(NumberSequenceSource(1, 2), NumberSequenceSource(1, 2))
    with pytest.raises(IncompatibleState, match=why):
        source.check_position(state)


def test_where_a_source_that_has_ended_stood_does_not_matter() -> None:
    source = hybrid(NumberSequenceSource(1, 2), NumberSequenceSource(1, 2))
    source.check_position({"number": 0, "state": {"topics": {}}, "finished": True, "open": {}})
