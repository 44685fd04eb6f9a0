"""Functions of batches, in chains with functions of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.common import Row, Time, Types, WatermarkStrategy
from holdfast.datastream import OutputTag
from holdfast.datastream.operations.batches import Avg, Count, CountDistinct, Max, Min, Sum, col
from holdfast.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, UserCodeError

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

PAYMENT = Types.ROW_NAMED(["user", "amount", "at"], [Types.STRING(), Types.LONG(), Types.LONG()])
PAYMENTS = [("Asha", 3, 1_000), ("Ben", 20, 2_000), ("Asha", 4, 3_000), ("Asha", 5, 61_000), ("Ben", None, 62_000)]
BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(col("at"))


def results(tmp_path: Path, build: Any, **how: Any) -> list[Any]:
    LEDGERS["out"].committed.clear()
    job = Lab(lambda env: build(env).sink_to(LedgerSink("out")), tmp_path, **how)
    try:
        job.run([])
    finally:
        job.close()
    return list(LEDGERS["out"].values)


def payments(env: Any, values: Any = PAYMENTS) -> Any:
    return env.from_collection(values, PAYMENT)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    amounts = pc.multiply(batch.column("amount"), 2)
    return pa.RecordBatch.from_arrays([batch.column("user"), amounts, batch.column("at")], ["user", "amount", "at"])


def added(a: Row, b: Row) -> Row:
    return Row(user=a.user, amount=(a.amount or 0) + (b.amount or 0), at=0)


def large(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater(batch.column("amount"), 7)


@pytest.mark.parametrize("declared", [PAYMENT, None])
def test_functions_of_batches_and_of_records_follow_each_other(tmp_path: Path, declared: Any) -> None:
    def build(env: Any) -> Any:
        stream = payments(env).filter(lambda row: row.user != "Carl").map_batch(doubled, declared)
        return stream.filter_batch(large).map(lambda row: (row.user, row["amount"], row))

    expected = [
        ("Ben", 40, Row(user="Ben", amount=40, at=2_000)),
        ("Asha", 8, Row(user="Asha", amount=8, at=3_000)),
        ("Asha", 10, Row(user="Asha", amount=10, at=61_000)),
    ]
    assert sorted(results(tmp_path, build)) == sorted(expected, key=lambda each: each[:2])


def test_each_reader_of_a_batch_gets_rows_of_its_own(tmp_path: Path) -> None:
    def mark(row: Row) -> Row:
        row["user"] = f"{row['user']}!"
        return row

    def build(env: Any) -> Any:
        both = payments(env).map_batch(doubled, PAYMENT)
        return both.map(mark).union(both.map(mark)).map(lambda row: row.user)

    assert sorted(results(tmp_path, build, parallelism=1)) == sorted([f"{user}!" for user, _, _ in PAYMENTS] * 2)


def test_batches_pass_shuffles_by_key_and_in_turn(tmp_path: Path) -> None:
    def build(env: Any) -> Any:
        shuffled = payments(env).map_batch(doubled, PAYMENT).rebalance().map_batch(doubled, PAYMENT)
        return shuffled.key_by(col("user")).reduce(added)

    totals: dict[str, int] = {}
    for row in results(tmp_path, build):
        totals[row.user] = max(row.amount or 0, totals.get(row.user, 0))
    assert totals == {"Asha": 48, "Ben": 80}


def test_the_error_of_a_function_of_batches_names_the_record(tmp_path: Path) -> None:
    def strict(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("amount"), 4)).as_py():
            raise ValueError("no fours")
        return batch

    with pytest.raises(UserCodeError) as caught:
        results(tmp_path, lambda env: payments(env).map_batch(strict))
    assert "no fours" in str(caught.value)
    assert "element: Row(user='Asha', amount=4, at=3000)" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch.slice(1), "map_batch() returned"),
        (lambda batch: 3, "it must return a pyarrow.RecordBatch"),
        (lambda batch: batch.rename_columns(["a", "b", "a"]), "map_batch() returned two columns named 'a'"),
    ],
)
def test_a_result_that_is_no_batch_of_as_many_rows_is_refused(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        results(tmp_path, lambda env: payments(env).map_batch(function))
    assert message in str(caught.value)


def test_elements_without_columns_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        results(tmp_path, lambda env: env.from_collection([1, 2]).map_batch(lambda batch: batch))
    assert "declare their type as Types.ROW_NAMED" in str(caught.value)


def test_built_in_aggregates_give_a_row_for_each_window(tmp_path: Path) -> None:
    def build(env: Any) -> Any:
        windows = payments(env).assign_timestamps_and_watermarks(BY_TIME).key_by(col("user"))
        return windows.window(TumblingEventTimeWindows.of(Time.minutes(1))).agg(
            total=Sum("amount"),
            payments=Count(),
            known=Count("amount"),
            least=Min("amount"),
            most=Max("amount"),
            mean=Avg("amount"),
            different=CountDistinct("amount"),
        )

    def row(user: str, start: int, *fields: Any) -> Row:
        names = ["user", "window_start", "window_end", "total", "payments", "known", "least", "most", "mean", "different"]
        return Row.of_values([user, start, start + 60_000, *fields], names)

    assert sorted(results(tmp_path, build), key=list) == [
        row("Asha", 0, 7, 2, 2, 3, 4, 3.5, 2),
        row("Asha", 60_000, 5, 1, 1, 5, 5, 5.0, 1),
        row("Ben", 0, 20, 1, 1, 20, 20, 20.0, 1),
        row("Ben", 60_000, None, 1, 0, None, None, None, 0),
    ]


def test_sums_beyond_64_bits_fail_where_the_type_is_declared_and_are_exact_elsewhere(tmp_path: Path) -> None:
    huge = [("Asha", 2**62, 1_000), ("Asha", 2**62, 2_000), ("Asha", 2**62, 3_000)]

    def build(env: Any, declared: Any) -> Any:
        stream = payments(env, huge).assign_timestamps_and_watermarks(BY_TIME)
        stream = stream if declared else stream.map_batch(lambda batch: batch)
        windows = stream.key_by(col("user")).window(TumblingEventTimeWindows.of(Time.minutes(1)))
        return windows.agg(total=Sum("amount"))

    (row,) = results(tmp_path / "exact", lambda env: build(env, False))
    assert row.total == 3 * 2**62
    with pytest.raises(UserCodeError) as caught:
        results(tmp_path / "declared", lambda env: build(env, True))
    assert "LONG" in str(caught.value)


def test_late_rows_keep_all_their_fields_in_the_side_output(tmp_path: Path) -> None:
    late = OutputTag("late", PAYMENT)
    given = [("Asha", 3, 1_000), ("Asha", 4, 500_000), ("Ben", 5, 2_000)]

    def build(env: Any) -> Any:
        windows = payments(env, given).assign_timestamps_and_watermarks(BY_TIME).key_by(col("user"))
        summed = windows.window(TumblingEventTimeWindows.of(Time.minutes(1))).side_output_late_data(late).agg(n=Count())
        return summed.get_side_output(late)

    assert results(tmp_path, build, parallelism=1) == [Row(user="Ben", amount=5, at=2_000)]


def test_aggregates_work_on_all_windows_with_a_start_and_an_end(tmp_path: Path) -> None:
    def build(env: Any) -> Any:
        keyed = payments(env).assign_timestamps_and_watermarks(BY_TIME).key_by(lambda row: row.user)
        return keyed.window(SlidingEventTimeWindows.of(Time.minutes(2), Time.minutes(1))).agg(n=Count())

    rows = [(row.key, row.window_start, row.n) for row in results(tmp_path, build)]
    assert sorted(rows) == [
        ("Asha", -60_000, 2),
        ("Asha", 0, 3),
        ("Asha", 60_000, 1),
        ("Ben", -60_000, 1),
        ("Ben", 0, 2),
        ("Ben", 60_000, 1),
    ]


class InTwoForms:
    """The totals per user and minute, from elements as columns or as rows."""

    def __init__(self, rows: bool = False, slides: bool = False) -> None:
        self.values = [(f"u{n % 7}", n % 11 - 3 if n % 5 else None, 700 * n) for n in range(400)]
        self.rows = rows
        minute = Time.minutes(1)
        self.starts = (-60_000, 0) if slides else (0,)
        self.size = 60_000 * len(self.starts)
        self.windows: Any = (
            SlidingEventTimeWindows.of(Time.minutes(2), minute) if slides else TumblingEventTimeWindows.of(minute)
        )

    def __call__(self, env: Any) -> None:
        rows = [PAYMENT.conform(value) for value in self.values]
        stream = env.from_source(SplitSource({"s": rows[::2], "t": rows[1::2]}), BY_TIME, "s", PAYMENT)
        keyed = stream.key_by((lambda row: row.user) if self.rows else col("user"))
        totals = keyed.window(self.windows).agg(n=Count(), total=Sum("amount"), most=Max("amount"))
        totals.uid("totals").sink_to(LedgerSink("out")).uid("out")

    def expected(self) -> list[Any]:
        windows: dict[Any, list[Any]] = {}
        for user, amount, at in self.values:
            for first in self.starts:
                windows.setdefault((user, at // 60_000 * 60_000 + first), []).append(amount)
        rows = []
        for (user, start), amounts in windows.items():
            known = [amount for amount in amounts if amount is not None]
            rows.append(
                [user, start, start + self.size, len(amounts), sum(known) if known else None, max(known, default=None)]
            )
        return sorted(rows)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [0, 40])
def test_windows_of_columns_are_exact_under_crashes_and_deadlines(tmp_path: Path, seed: int, most: int) -> None:
    program = InTwoForms()
    config = {"execution.checkpointing.unaligned.enabled": "true"} if most else {}
    LEDGERS["out"].committed.clear()
    job = Lab(program, tmp_path, budget=60, config=config, failures=0.03, repeats=0.1, seed=seed)
    job.records_before_deadline = most
    try:
        job.run([("run", 2), ("after complete", 2), ("before commit", 1)])
    finally:
        job.close()
    assert sorted(map(list, LEDGERS["out"].values)) == program.expected()


@pytest.mark.parametrize("slides", [False, True])
@pytest.mark.parametrize("rows_first", [False, True])
def test_a_job_on_rows_continues_that_on_columns_and_the_other_way_round(
    tmp_path: Path, rows_first: bool, slides: bool
) -> None:
    LEDGERS["out"].committed.clear()
    program = InTwoForms(slides=slides)
    for crashes, rows in (([("after complete", 3)], rows_first), ([], not rows_first)):
        job = Lab(InTwoForms(rows, slides), tmp_path, budget=60)
        try:
            for point, count in crashes:
                assert not job._run_until(point, count)
            if not crashes:
                job.run()
        finally:
            job.close()
    assert sorted(map(list, LEDGERS["out"].values)) == program.expected()


def test_aggregates_that_cannot_be_are_refused_when_the_program_is_built(tmp_path: Path) -> None:
    def windows(env: Any) -> Any:
        return payments(env).key_by(col("user")).window(TumblingEventTimeWindows.of(Time.minutes(1)))

    for wrong, message in (
        ({"total": Sum("price")}, "reads the field 'price'"),
        ({"total": Sum("user")}, "has no Sum"),
        ({"user": Count()}, "two fields 'user'"),
        ({}, "takes aggregates by name"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Lab(lambda env, wrong=wrong: windows(env).agg(**wrong).sink_to(LedgerSink("out")), tmp_path).plan()
