"""Every parameter of every operator: what becomes of the state when a program that goes on has another value."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import holdfast
from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
)
from holdfast.datastream.operations.batches import col
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.table import KStream
from holdfast.table.changes import JoinForeignKey, JoinTables
from holdfast.testing import OneInputTestHarness, TwoInputTestHarness

DEFINED = "in its definition, with tests in test_changed_operators or below"
NEW = "takes effect on new elements"
SCHEMA = "a declared type, in the schema of the state"
TAG = "where late elements go"
USERS = "the user's function: what its results mean is the user's"
TTL = "a time-to-live that changes: tests/state"
BELOW = "a test below"

PARAMETERS: dict[str, dict[str, str]] = {
    "WindowOperator": {
        "assigner": DEFINED,
        "trigger": DEFINED,
        "content": DEFINED,
        "window_function": USERS,
        "allowed_lateness_ms": DEFINED,
        "late_tag": TAG,
        "clears": DEFINED,
        "evictor": DEFINED,
        "two_inputs": DEFINED,
        "by_rows": "set by `continuing`",
        "former": "set by `continuing`",
    },
    "IntervalJoinOperator": {
        "func": USERS,
        "lower": DEFINED,
        "upper": DEFINED,
        "left_type": SCHEMA,
        "right_type": SCHEMA,
        "left_late_tag": TAG,
        "right_late_tag": TAG,
        "outer": DEFINED,
    },
    "TemporalJoinOperator": {
        "func": USERS,
        "left_outer": BELOW,
        "left_type": SCHEMA,
        "right_type": SCHEMA,
        "left_late_tag": TAG,
        "right_late_tag": TAG,
    },
    "AsyncWaitOperator": {
        "func": USERS,
        "timeout_ms": "requests under way are sent again, with the program's time",
        "capacity": "requests under way are sent again, as many at a time as the program says",
        "ordered": "requests under way are sent again in the order of their elements",
        "strategy": "requests under way are sent again, with the program's retries",
    },
    "TimestampsAndWatermarksOperator": {"strategy": BELOW},
    "CepFactory": {"operator": "always the same", "func": "PatternFunction", "options": SCHEMA},
    "PatternFunction": {
        "automaton": DEFINED,
        "skip": DEFINED,
        "function": USERS,
        "event_time": DEFINED,
        "event_type": SCHEMA,
        "comparator": "orders the elements of a time when it has come, also those that were there before",
    },
    "VersionedFactory": {
        "operator": "by the kind of table",
        "func": "NewestVersion or JoinVersions",
        "options": SCHEMA,
        "allowed": NEW,
    },
    "WindowedFactory": {"operator": "always the same", "func": "an aggregate of windows", "options": SCHEMA},
    "SuppressFactory": {"operator": "always the same", "func": "Suppress", "options": SCHEMA},
    "FunctionFactory": {
        "operator": "another one has another state: refused by the kinds of its states",
        "func": USERS + ", or below",
        "options": SCHEMA,
    },
    "SinkOperator": {"sink": "refused by kind of connector: test_restore_check"},
    "IdentityOperator": {},
    "Timeless": {},
    "FirstOfKey": {"ttl": TTL},
    "FirstWithinWatermark": {"delay": NEW},
    "LastOfKey": {"ttl": TTL, "element_type": SCHEMA},
    "TopN": {
        "n": DEFINED,
        "order": USERS,
        "descending": DEFINED,
        "unique_key": DEFINED,
        "rank_field": DEFINED,
        "offset": DEFINED,
    },
    "Best": {
        "n": DEFINED,
        "order": USERS,
        "descending": DEFINED,
        "offset": DEFINED,
        "shorter": "set by `continuing`",
    },
    "Sum": {"position": BELOW},
    "Min": {"position": BELOW},
    "Max": {"position": BELOW},
    "MinBy": {"position": BELOW},
    "MaxBy": {"position": BELOW},
    "JoinTables": {"joiner": USERS, "keeps_left": BELOW, "keeps_right": BELOW},
    "JoinTable": {"joiner": USERS, "keeps_left": NEW},
    "JoinForeignKey": {"joiner": USERS, "keeps_left": BELOW},
    "Materialize": {"value_type": SCHEMA},
    "Aggregate": {"initializer": USERS, "adder": USERS, "subtractor": USERS, "result_type": SCHEMA},
    "Subscribe": {"foreign_key": USERS},
    "LatestVersion": {},
    "NewestVersion": {"value_type": SCHEMA, "retention": DEFINED},
    "Suppress": {"suppressed": DEFINED, "closes_after": "refused by the windows before it"},
    "AggregateWindows": {"windows": DEFINED, "initializer": USERS, "adder": USERS},
    "AggregateSliding": {"windows": DEFINED, "initializer": USERS, "adder": USERS},
    "AggregateSessions": {"windows": DEFINED, "initializer": USERS, "adder": USERS, "merger": USERS},
    "JoinVersions": {"joiner": USERS, "keeps_left": NEW, "value_type": SCHEMA, "retention": DEFINED, "grace": NEW},
}


def _all_of(base: type) -> set[type]:
    found = set()
    for each in base.__subclasses__():
        found |= {each} | _all_of(each)
    return found


def _parameters(made: type) -> set[str]:
    if is_dataclass(made):
        return {each.name for each in fields(made)}
    if made.__init__ is object.__init__:  # type: ignore[misc]
        return set()
    return set(inspect.signature(made).parameters)


def an_operator_with_state_says_of_each_parameter_what_a_change_does() -> None:
    packages = tuple(f"{holdfast.__name__}.{name}." for name in ("cep", "datastream", "functions", "runtime", "table"))
    for package in packages:
        module = importlib.import_module(package[:-1])
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            importlib.import_module(found.name)
    bases = (OperatorFactory, DefinedState, KeyedProcessFunction, KeyedCoProcessFunction)
    operators = {
        each
        for base in bases
        for each in _all_of(base)
        if each.__module__.startswith(packages) and not inspect.isabstract(each) and each.__name__[0] != "_"
    }
    assert {each.__name__: _parameters(each) for each in operators} == {
        name: set(parameters) for name, parameters in PARAMETERS.items()
    }


def refused(harness: Any, before: Any, after: Any, says: str, *steps: Callable[[Any], Any]) -> None:
    with harness(before) as made:
        for step in steps:
            step(made)
        snapshot = made.snapshot()
    with harness(before, snapshot=snapshot):
        pass
    with pytest.raises(IncompatibleState, match=says):
        harness(after, snapshot=snapshot)


def rolling(how: str, field: int) -> Any:
    return lambda stream: getattr(stream.key_by(lambda each: each[0]), how)(field).uid("op")


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (rolling("sum", 2), "the Sum of field 1 of each key, and the program's is the Sum of field 2"),
        (rolling("max", 1), "the Max of field 1"),
        (rolling("min_by", 1), "the MinBy of field 1"),
    ],
)
def a_rolling_aggregation_of_another_kind_is_refused(after: Any, says: str) -> None:
    refused(OneInputTestHarness, rolling("sum", 1), after, says, lambda made: made.process_element(("k", 1, 2)))


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda each: each[0])


def joined(made: Any) -> Any:
    return lambda left, right: keyed(left).connect(keyed(right)).process(made).uid("op")


def both(left: Any, right: Any) -> Any:
    return left, right


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (JoinTables(both, False, False), JoinTables(both, True, False), "'inner' of join, and the program's join is 'left'"),
        (JoinTables(both, True, True), JoinTables(both, False, True), "'outer' of join, and the program's join is 'right'"),
        (JoinForeignKey(both, True), JoinForeignKey(both, False), "'left' of join, and the program's join is 'inner'"),
        (JoinTables(both, False, False), JoinForeignKey(both, False), "of a join of tables, .* by a foreign key"),
    ],
)
def a_join_of_tables_of_another_kind_is_refused(before: Any, after: Any, says: str) -> None:
    refused(TwoInputTestHarness, joined(before), joined(after), says, lambda made: made.process_element2(("k", 1, None)))


def the_windows_of_one_stream_do_not_go_on_as_a_window_join() -> None:
    assigner = TumblingEventTimeWindows.of(Time.milliseconds(10))

    def one(left: Any, right: Any) -> Any:
        right.map(lambda each: each).uid("other")
        return keyed(left).window(assigner).process(Listed()).uid("op")

    def two(left: Any, right: Any) -> Any:
        pair = left.co_group(right).where(lambda each: each[0]).equal_to(lambda each: each[0])
        return pair.window(assigner).apply(lambda firsts, seconds: [(list(firsts), list(seconds))]).uid("op")

    says = "it has elements of windows of one stream, and the program a window join"
    refused(TwoInputTestHarness, one, two, says, lambda made: made.process_element1(("k", 1), 1))


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield context.window().start, [each[1] for each in elements]


def a_rank_in_another_field_is_refused() -> None:
    def best(field: str) -> Any:
        typed = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
        return lambda stream: keyed(stream.map(lambda each: each, typed)).top_n(2, col("n"), rank_field=field).uid("op")

    refused(OneInputTestHarness, best("rank"), best("place"), "rank field rank, .* has rank field place",
            lambda made: made.process_element(("k", 1)))  # fmt: skip


def the_elements_that_wait_for_their_time_join_as_the_program_says_then() -> None:
    def build(outer: bool) -> Any:
        def program(left: Any, right: Any) -> Any:
            join = keyed(left).temporal_join(keyed(right))
            return (join.left_outer() if outer else join).apply(lambda one, other: (one, other)).uid("op")

        return program

    for before, after, expected in ((False, True, [(("k", 5), None)]), (True, False, [])):
        with TwoInputTestHarness(build(before)) as harness:
            snapshot = harness.process_element1(("k", 5), 5).snapshot()
        with TwoInputTestHarness(build(after), snapshot=snapshot) as harness:
            assert harness.process_both_watermarks(9).extract_output_values() == expected


def a_watermark_does_not_go_back_when_elements_may_be_further_out_of_order() -> None:
    def program(bound: int) -> Any:
        times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(bound))
        timed = times.with_timestamp_assigner(lambda value, _: value[1])

        def build(stream: Any) -> Any:
            windows = keyed(stream.assign_timestamps_and_watermarks(timed).uid("times"))
            return windows.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).process(Listed()).uid("op")

        return build

    with OneInputTestHarness(program(0)) as harness:
        for at in (1, 12, 25):
            harness.process_element(("k", at))
        assert harness.extract_output_values() == [(0, [1]), (10, [12])]
        snapshot = harness.snapshot()
    with OneInputTestHarness(program(100), snapshot=snapshot) as harness:
        harness.process_element(("k", 13)).process_element(("k", 26))
        assert harness.process_watermark((1 << 63) - 1).extract_output_values() == [(20, [25, 26])]


@pytest.mark.parametrize("after", [10, 40, 50, 60])
def a_deleted_row_of_a_versioned_table_is_forgotten_after_a_shorter_retention(after: int) -> None:
    def program(retention: int) -> Any:
        def build(stream: Any) -> Any:
            pairs = KStream.of(stream, lambda each: each[0], lambda each: each[1])
            return pairs.to_table(history_retention=Time.milliseconds(retention)).to_stream().to_data_stream()

        return build

    with OneInputTestHarness(program(50)) as harness:
        harness.process_element(("k", "row"), 1).process_element(("k", None), 3)
        snapshot = harness.snapshot()
    if after > 50:
        with pytest.raises(IncompatibleState, match=r"of the last 50 ms, and the program's history_retention is 60 ms"):
            OneInputTestHarness(program(after), snapshot=snapshot).open()
        return
    with OneInputTestHarness(program(after), snapshot=snapshot) as harness:
        harness.process_watermark(60)
        assert harness.event_time_timers() == []
        rows = [
            row
            for _, state in harness._dataflow.operators()
            for space in (state.spaces.values() if state is not None else ())
            for table in space.tables.values()
            for row in table.rows.values()
        ]
        assert not [row for row in rows if any(slot is not None for slot in row[1:])]
