"""The sinks whose output is in the driver."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from connector_harness import Crash, SinkRun

from holdfast.common.time import Instant
from holdfast.common.typeinfo import Types
from holdfast.common.types import Row, RowKind
from holdfast.connectors.collect import CollectSink
from holdfast.connectors.java_text import text_of
from holdfast.connectors.print import PrintSink
from holdfast.errors import JobFailed

Output = Callable[[], list[str]]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: capsys.readouterr().out.splitlines()


def the_lines_of_an_epoch_are_printed_once_when_it_is_complete(output: Output) -> None:
    run = SinkRun(PrintSink(), parallelism=1)
    with pytest.raises(Crash):
        run.epoch([["lost"]], crash_at="prepared")
    assert output() == []
    run.epoch([[1, "two", (3, True), None]])
    assert output() == ["1", "two", "(3, True)", "None"]
    run.epoch([[]])
    assert output() == []


@pytest.mark.parametrize(
    ("identifier", "parallelism", "expected"),
    [
        (None, 1, ["a"]),
        (None, 2, ["1> a", "2> b"]),
        ("id", 1, ["id> a"]),
        ("id", 2, ["id:1> a", "id:2> b"]),
    ],
)
def the_prefix_is_that_of_flink(output: Output, identifier: str | None, parallelism: int, expected: list[str]) -> None:
    SinkRun(PrintSink(identifier), parallelism=parallelism).epoch([["a"], ["b"]])
    assert output() == expected


@pytest.mark.parametrize("crash_at", ["complete", "committed"])
def a_line_is_printed_exactly_once_across_a_crash(output: Output, tmp_path: Path, crash_at: str) -> None:
    run = SinkRun(PrintSink(), tmp_path.as_uri())
    run.epoch([["1"], []])
    with pytest.raises(Crash):
        run.epoch([["2"], ["3"]], crash_at=crash_at)
    run.start()
    run.epoch([["4"], []])
    run.start()
    assert output() == ["1> 1", "1> 2", "2> 3", "1> 4"]


def a_job_that_starts_afresh_prints_although_an_earlier_run_did(output: Output, tmp_path: Path) -> None:
    for _ in range(2):
        SinkRun(PrintSink(), tmp_path.as_uri(), parallelism=1).epoch([["x"]])
    assert output() == ["x", "x"]


def a_lone_surrogate_does_not_fail_the_job(output: Output) -> None:
    SinkRun(PrintSink(), parallelism=1).epoch([["\ud800"]])
    assert output() == ["\\ud800"]


@pytest.mark.parametrize(
    ("type_info", "value", "expected"),
    [
        (None, (1, "x", True), "(1, 'x', True)"),
        (Types.PICKLED_BYTE_ARRAY(), [True], "[True]"),
        (Types.ROW([Types.INT(), Types.STRING()]), Row(1, "x"), "+I[1,x]"),
        (Types.ROW([Types.INT()]), Row.of_kind(RowKind.UPDATE_BEFORE, 1), "-U[1]"),
        (Types.TUPLE([Types.INT(), Types.STRING()]), (1, "x"), "(1,x)"),
        (Types.TUPLE([Types.INT(), Types.TUPLE([Types.BOOLEAN()])]), (1, (False,)), "(1,(false))"),
        (Types.BOOLEAN(), True, "true"),
        (Types.STRING(), None, "null"),
        (Types.LIST(Types.INT()), [1, 2], "[1, 2]"),
        (Types.MAP(Types.STRING(), Types.BOOLEAN()), {"a": True, "b": None}, "{a=true, b=null}"),
        (Types.DOUBLE(), 1.0, "1.0"),
        (Types.DOUBLE(), 12345678.9, "1.23456789E7"),
        (Types.DOUBLE(), 1e10, "1.0E10"),
        (Types.DOUBLE(), 0.00012, "1.2E-4"),
        (Types.DOUBLE(), -0.001, "-0.001"),
        (Types.DOUBLE(), float("nan"), "NaN"),
        (Types.DOUBLE(), float("-inf"), "-Infinity"),
        (Types.FLOAT(), 3.140000104904175, "3.14"),
        (Types.FLOAT(), 1.0, "1.0"),
        (Types.FLOAT(), 16777216.0, "1.6777216E7"),
        (Types.FLOAT(), 123456.0, "123456.0"),
        (Types.FLOAT(), 100000.0, "100000.0"),
        (Types.DOUBLE(), 120000000.0, "1.2E8"),
        (Types.INSTANT(), Instant(1, 500_000_000), "1970-01-01T00:00:01.500Z"),
        (Types.INSTANT(), Instant(1, 0), "1970-01-01T00:00:01Z"),
    ],
)
def the_text_of_a_typed_value_is_that_of_flink(type_info: Any, value: Any, expected: str) -> None:
    assert text_of(type_info)(value) == expected


class Client:
    """A job client whose job the test ends."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def get_job_execution_result(self) -> Future[None]:
        return self.future


def the_collected_records_come_in_order_and_end_with_the_job() -> None:
    sink, client = CollectSink(), Client()
    run = SinkRun(sink)
    results = sink.results(client)
    run.epoch([[1, {"a": (2,)}], [lambda: 3]])
    assert [next(results), next(results)] == [1, {"a": (2,)}]
    assert next(results)() == 3
    run.epoch([[4], []])
    client.future.set_result(None)
    assert list(results) == [4]


def a_reader_waits_for_the_next_record() -> None:
    sink, client = CollectSink(), Client()
    run = SinkRun(sink, parallelism=1)
    results = sink.results(client)
    writer = threading.Thread(target=lambda: (run.epoch([["late"]]), client.future.set_result(None)))
    writer.start()
    assert list(results) == ["late"]
    writer.join()


def the_failure_of_the_job_follows_its_last_records() -> None:
    sink, client = CollectSink(), Client()
    SinkRun(sink, parallelism=1).epoch([[1]])
    client.future.set_exception(JobFailed("boom"))
    results = sink.results(client)
    assert next(results) == 1
    with pytest.raises(JobFailed, match="boom"):
        next(results)


@pytest.mark.parametrize("crash_at", SinkRun.CRASH_POINTS)
def a_job_restarted_in_the_same_program_repeats_nothing(crash_at: str) -> None:
    sink, client = CollectSink(), Client()
    run = SinkRun(sink, parallelism=1)
    run.epoch([[1]])
    with pytest.raises(Crash):
        run.epoch([[2]], crash_at=crash_at)
    run.start()
    if run.completed == 1:
        run.epoch([[2]])
    run.epoch([[3]])
    client.future.set_result(None)
    assert list(sink.results(client)) == [1, 2, 3]


def a_reader_that_has_closed_leaves_nothing_behind() -> None:
    sink, client = CollectSink(), Client()
    run = SinkRun(sink, parallelism=1)
    results = sink.results(client)
    run.epoch([[1, 2]])
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]
    run.epoch([[3]])
    assert not sink.mailbox.values
    mailbox = weakref.ref(sink.mailbox)
    del sink, run, results
    gc.collect()
    assert mailbox() is None
