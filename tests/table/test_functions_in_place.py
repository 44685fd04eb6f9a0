"""Functions of joins and tables that change what they are given have the results of those that do not.

Those of other joins, and of aggregates, are drawn (``tests/programs``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inprocess import LEDGERS, LedgerSink, SplitSource
from engine.test_same_results import backends, config, crashes, few, lab
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.table import KStream

Rows = tuple[Any, Any]


def in_place(left: Any, right: Any) -> Any:
    """Fills in the left row, and spoils the right one."""
    if left is None:
        return right
    left["with"] = None if right is None else right["n"]
    left["n"] += 1
    if right is not None:
        right["n"] = -1
    return left


def fresh(left: Any, right: Any) -> Any:
    return in_place(copy.deepcopy(left), copy.deepcopy(right))


def pairs(stream: Any) -> KStream:
    return KStream.of(stream, lambda record: record["key"])


def by_key(left: Any, right: Any) -> tuple[Any, Any]:
    return left.key_by(lambda record: record["key"]), right.key_by(lambda record: record["key"])


def windowed(left: Any, right: Any, joiner: Any) -> Any:
    keyed = left.join(right).where(lambda record: record["key"]).equal_to(lambda record: record["key"])
    return keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(4))).apply(joiner)


def by_foreign_key(left: Any, right: Any, joiner: Any) -> Any:
    joined = pairs(left).to_table().join(pairs(right).to_table(), joiner, foreign_key_extractor=lambda row: row["other"])
    # What is taken back must be what was added.
    counts = joined.group_by(lambda key, row: ((key, row["n"]), row["n"])).aggregate(
        lambda: {"rows": 0}, lambda g, v, held: {"rows": held["rows"] + 1}, lambda g, v, held: {"rows": held["rows"] - 1}
    )
    return joined.to_changes().union(counts.to_changes())


JOINS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "KTable.join by foreign key": by_foreign_key,
    "KStream.join": lambda left, right, joiner: pairs(left).join(pairs(right).to_table(), joiner).to_data_stream(),
    "KStream.join, versioned": lambda left, right, joiner: (
        pairs(left).left_join(pairs(right).to_table(history_retention=Time.seconds(1)), joiner).to_data_stream()
    ),
    "temporal_join": lambda left, right, joiner: (
        (lambda one, two: one.temporal_join(two))(*by_key(left, right)).left_outer().apply(joiner)
    ),
    "window join": windowed,
}

RECORDS = st.lists(
    st.builds(
        lambda side, key, other, n: (side, {"key": key, "other": other, "n": n}),
        *(st.integers(0, 1), st.sampled_from("ab"), st.sampled_from("ab"), st.integers(0, 5)),
    ),
    min_size=3,
    max_size=12,
)


@pytest.mark.parametrize("name", JOINS)
@few
@given(records=RECORDS, budget=st.integers(1, 12), backend=backends, crashes=crashes)
def a_function_may_change_what_it_is_given(name, records, budget, backend, crashes):
    timed = [(side, {**record, "at": at}) for at, (side, record) in enumerate(records)]

    def results(joiner: Any) -> list[str]:
        def build(env: Any) -> None:
            watermarks = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _: r[1]["at"])
            source = env.from_source(SplitSource({"all": timed}, 1), watermarks, "source")
            sides = [source.filter(lambda r, s=side: r[0] == s).map(lambda r: r[1]) for side in (0, 1)]
            JOINS[name](*sides, joiner).sink_to(LedgerSink("out"))

        with lab(build, parallelism=1, budget=budget, config=config(backend, "3")) as job:
            job.run(crashes)
            return sorted(map(repr, LEDGERS["out"].values))

    assert results(in_place) == results(fresh)
