"""Functions that only read a field: read for a whole batch at once, with the same results and the same errors."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pytest

from holdfast.common import Row, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import JobFailed, UserCodeError
from holdfast.runtime.records.getters import getter, read_all

from .inprocess import LedgerSink, SplitSource


class Payment(NamedTuple):
    user: int
    at: int


def first(payment: Any) -> Any:
    return payment[0]


OUTSIDE = 1
READS = [
    lambda payment: payment[0],
    lambda payment: payment[-1],
    lambda payment: payment.at,
    first,
    itemgetter(0, 1),
    attrgetter("user"),
]
OTHERS = [
    lambda payment: payment,
    lambda payment: payment[OUTSIDE],
    lambda payment: payment[0] % 8,
    lambda payment: payment[0][0],
    lambda payment: payment.user.real,
    lambda payment: (payment[0], payment[1]),
    lambda payment: OUTSIDE,
    lambda *payment: payment[0],
    lambda payment, *, position=0: payment[0],
    lambda other, payment=(5, 6): payment[0],
    len,
    Payment.count,
]


@pytest.mark.parametrize("function", READS)
def a_function_that_reads_a_field_has_a_getter_with_the_same_results(function):
    values = [Payment(7, 70), Payment(8, 80)]
    assert read_all(getter(function), values) == [function(value) for value in values]


@pytest.mark.parametrize("function", OTHERS)
def a_function_that_does_anything_else_is_called(function):
    assert getter(function) is None


def a_timestamp_assigner_reads_its_first_argument_only():
    assert getter(lambda payment, stamp: payment[1], 2)((7, 70)) == 70
    assert getter(lambda payment, stamp: stamp[1], 2) is None
    assert getter(lambda payment: payment[1], 2) is None


def a_getter_reads_rows_and_dicts_as_the_function_does():
    by_name = getter(lambda value: value["user"])
    assert read_all(by_name, [Row(user=7), {"user": 8}]) == [7, 8]


@pytest.mark.parametrize(
    "build",
    [
        lambda stream: stream.key_by(lambda value: value[2]).map(lambda value: value),
        lambda stream: stream.map(lambda value: value[2]),
        lambda stream: stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda value, stamp: value[2])
        ),
    ],
    ids=["key", "map", "timestamp"],
)
def a_field_that_is_missing_is_told_with_the_line_of_the_function_and_the_element(job, build):
    def program(env: StreamExecutionEnvironment) -> None:
        values = [(1, 2, 3), (4, 5), (6, 7, 8)]
        stream = env.from_source(SplitSource({"a": values}), WatermarkStrategy.no_watermarks(), "values")
        build(stream).sink_to(LedgerSink("out"))

    with pytest.raises((JobFailed, UserCodeError)) as failure:
        job(program, parallelism=1).run()
    told = str(failure.value)
    for part in ("value[2]", "IndexError", "element: (4, 5)"):
        assert part in told
