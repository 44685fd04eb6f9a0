"""The sources whose records are all known beforehand."""

from __future__ import annotations

import threading

import pytest
from connector_harness import SourceRun, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.collection import CollectionSource
from holdfast.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError, IncompatibleState


@given(size=st.integers(0, 5000), per_epoch=st.integers(1, 3000), crashes=st.sets(st.integers(0, 20)))
@settings(max_examples=25, deadline=None)
def a_collection_is_read_once_and_in_order_whatever_the_epochs(size: int, per_epoch: int, crashes: set[int]) -> None:
    run = SourceRun(CollectionSource(range(size)), max_batch=500).start()
    read: list[int] = []
    epochs = 0
    while not run.finished:
        if epochs in crashes:
            run.plan(per_epoch)
            run.crash()
        read += flat(run.epoch(per_epoch))
        epochs += 1
    assert read == list(range(size))
    assert epochs == max(1, -(-size // per_epoch))


def a_collection_keeps_values_as_they_were_given() -> None:
    values = [{"n": 1}]
    source = CollectionSource(values)
    values[0]["n"] = 2
    run = SourceRun(source).start()
    assert flat(run.plan(10)) == [{"n": 1}]


def a_value_changed_by_a_function_is_read_again_as_it_was() -> None:
    run = SourceRun(CollectionSource([{"n": 1}])).start()
    part = run.enumerator.plan(10).ranges[0]
    reader = run.source.create_reader(None)  # type: ignore[arg-type]
    next(reader.read(part, 10)).values[0]["n"] = 5
    assert next(reader.read(part, 10)).values == [{"n": 1}]


def a_value_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(ConfigurationError, match="value 1 of the collection"):
        CollectionSource([1, threading.Lock()])


def an_empty_collection_finishes_at_once() -> None:
    run = SourceRun(CollectionSource([])).start()
    assert run.epoch() == {}
    assert run.finished


def test_another_collection_does_not_resume_from_the_checkpoint() -> None:
    run = SourceRun(CollectionSource([1, 2, 3])).start()
    run.epoch(1)
    CollectionSource([4, 5, 6]).check_position(run.state)
    with pytest.raises(IncompatibleState, match=r"3 records .*1 records"):
        CollectionSource([1]).check_position(run.state)
    with pytest.raises(IncompatibleState, match=r"\(collection\).*\(numbers from 1 to 3\)"):
        NumberSequenceSource(1, 3).check_position(run.state)
    with pytest.raises(IncompatibleState, match="another kind of connector"):
        CollectionSource([1, 2, 3]).check_position({"number": 0})


def the_place_of_a_value_is_its_number() -> None:
    run = SourceRun(CollectionSource("abcdefghijklm"), max_batch=4).start()
    batches = run.read(run.enumerator.plan(100).ranges[0])
    assert batches[1].locate(1) == "collection, value 5"


@given(start=st.integers(-50, 50), size=st.integers(1, 100_000), per_epoch=st.integers(5_000, 60_000))
@settings(max_examples=20, deadline=None)
def test_every_number_is_read_once(start: int, size: int, per_epoch: int) -> None:
    run = SourceRun(NumberSequenceSource(start, start + size - 1), max_batch=10_000).start()
    read = run.run(per_epoch)
    assert sorted(flat(read)) == list(range(start, start + size))
    assert all(values == sorted(values) for values in read.values())
    assert run.finished_splits == set(read)


def a_short_sequence_is_one_split_in_order() -> None:
    assert list(SourceRun(NumberSequenceSource(1, 100)).start().run(30).values()) == [list(range(1, 101))]


def a_long_sequence_is_read_side_by_side() -> None:
    run = SourceRun(NumberSequenceSource(0, 999_999), max_batch=100_000).start()
    assert len(run.epoch(80_000)) == 8


def a_sequence_must_not_run_backwards() -> None:
    with pytest.raises(ConfigurationError, match="must not be greater"):
        NumberSequenceSource(2, 1)
