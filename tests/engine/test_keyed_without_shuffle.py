"""Keyed operators in one task: a stream that is partitioned by its key already is not shuffled again."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from holdfast.common import Row, Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.datastream.operations.data_stream_utils import DataStreamUtils
from holdfast.errors import ConfigurationError, JobFailed, UserCodeError
from holdfast.runtime.plan.plan import InputKind

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

KEYS = [n % 17 for n in range(300)]
reinterpret = DataStreamUtils.reinterpret_as_keyed_stream


def stream(env: StreamExecutionEnvironment, name: str = "numbers", cut: int = 20) -> Any:
    source = SplitSource({f"{name}-a": KEYS[:150], f"{name}-b": KEYS[150:]}, cut=cut, seed=4)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)


class Count(KeyedProcessFunction):
    """Numbers the elements of a key, and tells at the end how many there were."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(2**61)
        yield ctx.get_current_key(), self.count.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), -self.count.value()


def counted_twice(env: StreamExecutionEnvironment) -> None:
    first = stream(env).key_by(lambda n: n, Types.LONG()).process(Count()).uid("first").start_new_chain()
    reinterpret(first, lambda each: each[0], Types.LONG()).process(Count()).uid("second").sink_to(LedgerSink("out"))


def expected() -> Counter[Any]:
    counts = Counter(KEYS)
    every = [(key, n) for key, count in counts.items() for n in range(1, count + 2)]  # its end is one more
    return Counter(every + [(key, -(count + 1)) for key, count in counts.items()])


@pytest.mark.parametrize("chaining", ["true", "false"])
def a_second_keyed_operator_works_in_the_task_of_the_first(tmp_path, chaining):
    job = Lab(counted_twice, tmp_path, 3, budget=60, config={"pipeline.operator-chaining.enabled": chaining})
    keyed = [vertex for vertex in job.plan().vertices if vertex.inputs and vertex.name.startswith("KeyedProcess")]
    assert len(keyed) == (1 if chaining == "true" else 2)
    assert {vertex.inputs for vertex in keyed} == {(InputKind.KEYED,)}
    LEDGERS["out"].committed.clear()
    job.run()
    assert Counter(LEDGERS["out"].values) == expected()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def a_job_that_keys_in_its_sources_only_subtask_goes_on_with_key_by_in_several(tmp_path, backend):
    def build(env: StreamExecutionEnvironment) -> None:
        numbers = stream(env)
        keyed = (
            reinterpret(numbers, lambda n: n, Types.LONG()) if job.parallelism == 1 else numbers.key_by(abs, Types.LONG())
        )
        keyed.process(Count()).uid("count").sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    job = Lab(build, tmp_path, 1, budget=60, config={"state.backend.type": backend})
    assert len(job.plan().vertices) == 1
    assert not job._run_until("after complete", 2)
    job.parallelism = 2
    assert len(job.plan().vertices) == 2
    if not job._run_until("run", 2):
        assert job._run_until("", 0)
    counts = Counter(KEYS)
    every = [(key, n) for key, count in counts.items() for n in range(1, count + 1)]
    assert Counter(LEDGERS["out"].values) == Counter(every + [(key, -count) for key, count in counts.items()])


class Sum(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.sum.update((self.sum.value() or 0) + 1)
        yield ctx.get_current_key(), self.sum.value()

    process_element2 = process_element1


def a_stream_that_is_not_shuffled_is_connected_with_one_that_is(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        first = stream(env).key_by(lambda n: n, Types.LONG()).map(lambda n: n)
        other = stream(env, "other").key_by(lambda n: n, Types.LONG())
        reinterpret(first, lambda n: n, Types.LONG()).connect(other).process(Sum()).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path, 2, budget=100).run([("after complete", 2)])
    assert Counter(LEDGERS["out"].values) == Counter((k, n) for k, c in Counter(KEYS).items() for n in range(1, 2 * c + 1))


@pytest.mark.parametrize("chaining", ["true", "false"])
def a_key_of_another_subtask_fails_with_its_element(tmp_path, chaining):
    def build(env: StreamExecutionEnvironment) -> None:
        first = stream(env).key_by(lambda n: n, Types.LONG()).map(lambda n: n).uid("first")
        reinterpret(first, lambda n: n + 1, Types.LONG()).process(Count()).sink_to(LedgerSink("out"))

    job = Lab(build, tmp_path, 2, config={"pipeline.operator-chaining.enabled": chaining})
    with pytest.raises(
        (JobFailed, UserCodeError), match=r"(?s)belongs to subtask \d, but.*Use key_by.*uid 'first'.*element"
    ):
        job.run()


def a_stream_that_moves_on_cannot_be_reinterpreted(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(2)  # type: ignore[arg-type]
    numbers = env.from_collection([1, 2])
    for moved in (numbers.rebalance(), numbers.key_by(abs)):
        with pytest.raises(ConfigurationError, match="takes a stream without a partitioning"):
            reinterpret(moved, abs)
    with pytest.raises(TypeError, match="takes a stream, not 5"):
        reinterpret(5, abs)  # type: ignore[arg-type]
    keyed = reinterpret(numbers.key_by(abs).map(abs).set_parallelism(2), abs).process(Count()).set_parallelism(3)
    keyed.print()
    with pytest.raises(ConfigurationError, match="equal parallelism"):
        env._plan("job")


# ---- project -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [None, Types.TUPLE([Types.LONG(), Types.STRING(), Types.DOUBLE()])])
@pytest.mark.parametrize("keyed", [True, False])
def a_projection_keeps_some_fields(tmp_path, declared, keyed):
    def build(env: StreamExecutionEnvironment) -> None:
        numbers = env.from_collection([(1, "a", 1.5), (2, "b", 2.5)], declared)
        kept = (numbers.key_by(lambda each: each[0]) if keyed else numbers).project(2, 0)
        assert kept.get_type() == (
            Types.PICKLED_BYTE_ARRAY() if declared is None else Types.TUPLE([Types.DOUBLE(), Types.LONG()])
        )
        kept.sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path).run()
    assert sorted(LEDGERS["out"].values) == [(1.5, 1), (2.5, 2)]


def a_projection_of_rows_gives_tuples(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([Row(a=1, b="x")], Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()]))
        rows.project(1).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path).run()
    assert LEDGERS["out"].values == [("x",)]


@pytest.mark.parametrize(
    ("indexes", "told"),
    [((), "takes the positions of the fields"), ((3,), "from 0 to 2, not 3"), ((-1,), "not -1"), (("a",), "not 'a'")],
)
def a_projection_to_fields_that_are_not_there_is_refused(indexes, told):
    env = StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(2)  # type: ignore[arg-type]
    tuples = env.from_collection([(1, 2, 3)], Types.TUPLE([Types.LONG()] * 3))
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        tuples.project(*indexes)
    with pytest.raises(TypeError, match=re.escape("the elements of the stream are Types.LONG()")):
        env.from_collection([1], Types.LONG()).project(0)
