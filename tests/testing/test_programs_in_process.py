"""Programs in this process: the job's engine without Spark, a test source with instructions, a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Configuration, RestartStrategies, Time, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.window import TumblingEventTimeWindows, TumblingProcessingTimeWindows
from holdfast.errors import HoldfastError
from holdfast.testing import InProcessEnvironment, TestSource, VirtualClock

BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, stamp: stamp)


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return list(results)


def running_sum(env: StreamExecutionEnvironment, source: TestSource) -> Any:
    return env.from_source(source, BY_VALUE, "numbers").key_by(lambda n: 0).sum()


def a_program_runs_with_several_subtasks_and_a_shuffle() -> None:
    env = InProcessEnvironment().set_parallelism(3)
    words = env.from_collection(["a b", "b c", "a"]).flat_map(lambda line: line.split())
    counts = words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1)
    assert sorted(collected(counts)) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)]


def an_aborted_epoch_is_repeated_exactly_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def log(n: int) -> int:
        with runs.open("a") as file:
            file.write(f"{n} ")
        return n

    env = InProcessEnvironment()
    source = TestSource([1, 2, TestSource.ABORT(), 3, TestSource.ABORT(), 4])
    stream = env.from_source(source, BY_VALUE, "numbers").map(log).key_by(lambda n: 0).sum()
    assert collected(stream) == [1, 3, 6, 10]
    assert runs.read_text().split() == ["1", "2", "1", "2", "3", "3", "4"]


def an_abort_fails_a_job_that_does_not_restart() -> None:
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    running_sum(env, TestSource([1, TestSource.ABORT(), 2])).print()
    with pytest.raises(HoldfastError, match="ABORT"):
        env.execute("aborted")


def a_job_that_has_met_eof_goes_on_behind_it(tmp_path: Path) -> None:
    source = TestSource([1, 2, TestSource.EOF, 3, 4])
    found = []
    for _ in range(2):
        env = InProcessEnvironment(Configuration().set_string("execution.checkpointing.dir", f"file://{tmp_path}"))
        with running_sum(env, source).execute_and_collect("resumed") as results:
            found.append(list(results))
    assert found == [[1, 3], [1, 3, 6, 10]]  # a new program collects the results of the checkpoint again


def a_pause_moves_the_virtual_clock() -> None:
    clock = VirtualClock()
    env = InProcessEnvironment(clock=clock)
    source = TestSource([1, 2, TestSource.PAUSE(Time.seconds(60)), 3], clock=clock)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    windows = numbers.key_by(lambda n: 0).window(TumblingProcessingTimeWindows.of(Time.seconds(10)))
    assert collected(windows.reduce(lambda a, b: a + b)) == [3]  # that of 3 is pending when the input ends
    assert clock.now() == 60_000


def a_pause_without_a_virtual_clock_takes_its_time() -> None:
    env = InProcessEnvironment()
    stamps = running_sum(env, TestSource([1, TestSource.PAUSE(Time.milliseconds(30)), 1]))
    assert collected(stamps) == [1, 2]


class Timer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 5000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield timestamp


def a_processing_time_timer_fires_at_the_time_of_the_clock() -> None:
    clock = VirtualClock(start=1_000_000)
    env = InProcessEnvironment(clock=clock)
    source = TestSource(["a", TestSource.PAUSE(Time.seconds(5)), "b", TestSource.PAUSE(Time.seconds(9))], clock=clock)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "names")
    assert collected(numbers.key_by(lambda name: name).process(Timer())) == [1_005_000, 1_010_000]


def the_timestamps_of_the_test_source_fire_windows() -> None:
    env = InProcessEnvironment()
    source = TestSource(["a", "b", TestSource.ABORT(), "c"], timestamps=[1, 9, 12], epoch=1)
    letters = env.from_source(source, BY_VALUE, "letters")
    windows = letters.key_by(lambda v: 0).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    assert collected(windows.reduce(lambda a, b: a + b)) == ["ab", "c"]
    with pytest.raises(ValueError, match="2 elements and 1 timestamps"):
        TestSource([1, TestSource.EOF, 2], timestamps=[4])


def an_error_of_a_function_fails_the_job_with_the_origin_of_the_record() -> None:
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    env.from_source(TestSource([1, 0]), BY_VALUE, "numbers").map(lambda n: 1 // n).print()
    with pytest.raises(HoldfastError, match=r"record: element 1 of the test source"):
        env.execute("failing")


def a_job_in_this_process_takes_savepoints(tmp_path: Path) -> None:
    clock = VirtualClock()
    env = InProcessEnvironment(clock=clock)
    source = TestSource([1, 2, TestSource.PAUSE(Time.days(1))])
    running_sum(env, source).print()
    client = env.execute_async("saved")
    saved = client.stop_with_savepoint(False, f"file://{tmp_path}/savepoints").result()
    assert Path(saved.removeprefix("file://")).exists()
    assert client.get_job_execution_result().result().get_job_id() == client.get_job_id()


def a_second_job_of_a_program_without_names_is_another_job(tmp_path: Path) -> None:
    config = Configuration()
    config.set_string("execution.checkpointing.dir", str(tmp_path))
    env = InProcessEnvironment(config)
    for numbers in ([1, 2, 3], [4, 5, 6]):
        with env.from_collection(numbers).map(lambda n: n).execute_and_collect() as results:
            assert list(results) == numbers
