"""The payments generator."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from connector_harness import SourceRun, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.datagen import CITIES, PaymentsEnumerator, PaymentsSource
from holdfast.errors import ConfigurationError, IncompatibleState


def payments(source: PaymentsSource, per_epoch: int = 5000) -> list[dict[str, Any]]:
    read = flat(SourceRun(source, max_batch=1000).start().run(per_epoch))
    return sorted(read, key=lambda p: p["payment_id"])


def km(a: dict[str, Any], b: dict[str, Any]) -> float:
    lat = math.radians((a["lat"] + b["lat"]) / 2)
    return 111 * math.hypot(a["lat"] - b["lat"], (a["lon"] - b["lon"]) * math.cos(lat))


@given(count=st.integers(0, 9000), per_epoch=st.integers(100, 5000), crash=st.integers(0, 5))
@settings(max_examples=6, deadline=None)
def the_same_seed_gives_the_same_payments_however_they_fall_into_epochs(count: int, per_epoch: int, crash: int) -> None:
    source = PaymentsSource(seed=3, count=count)
    run = SourceRun(source, max_batch=333).start()
    read: list[dict[str, Any]] = []
    epochs = 0
    while not run.finished:
        if epochs == crash:
            run.plan(per_epoch)
            run.crash()
        read += flat(run.epoch(per_epoch))
        epochs += 1
    assert len(read) == count
    assert sorted(read, key=lambda p: p["payment_id"]) == payments(source)
    assert [p["payment_id"] for p in payments(source)] == [f"p{i:010d}" for i in range(count)]


def test_another_seed_gives_other_payments() -> None:
    assert payments(PaymentsSource(seed=1, count=100)) != payments(PaymentsSource(seed=2, count=100))


def a_payment_is_what_it_is_documented_to_be() -> None:
    cities = CITIES
    for payment in payments(PaymentsSource(count=5000, merchants=20, customers=50)):
        assert set(payment) == {
            "payment_id", "customer_id", "merchant_id", "amount", "ts_ms", "place", "is_fraud", "fraud_kind",
        }  # fmt: skip
        assert payment["amount"] * 2 == int(payment["amount"] * 2) > 0
        assert payment["merchant_id"] < "m00020"
        assert payment["customer_id"] < "c0000050"
        lat, lon = cities[payment["place"]["city"]]
        assert km(payment["place"], {"lat": lat, "lon": lon}) < 8
        assert payment["is_fraud"] == (payment["fraud_kind"] is not None)


def the_customers_are_divided_among_the_splits_and_time_rises_in_each() -> None:
    run = SourceRun(PaymentsSource(count=20_000, customers=101), max_batch=1000).start()
    customers: list[set[str]] = []
    for values in run.run(7000).values():
        assert [v["ts_ms"] for v in values] == sorted(v["ts_ms"] for v in values)
        customers.append({v["customer_id"] for v in values})
    assert sum(map(len, customers)) == len(set().union(*customers)) == 101


def the_records_carry_their_times() -> None:
    run = SourceRun(PaymentsSource(count=10)).start()
    batch = run.read(run.enumerator.plan(10).ranges[0])[0]
    assert batch.timestamps == [v["ts_ms"] for v in batch.values]
    assert batch.locate(1) == f"payment {batch.values[1]['payment_id']}"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1])
def the_share_of_fraud_is_about_the_one_asked_for(share: float) -> None:
    kinds = Counter(p["fraud_kind"] for p in payments(PaymentsSource(count=40_000, fraud_share=share)))
    found = 1 - kinds[None] / 40_000
    assert found == pytest.approx(share, rel=0.25)
    if share:
        assert set(kinds) == {None, "travel", "velocity", "spending"}


def the_planted_fraud_can_be_found_by_its_signs() -> None:
    run = SourceRun(PaymentsSource(count=40_000, fraud_share=0.03), max_batch=1000).start()
    seen: Counter[str] = Counter()
    for values in run.run(10_000).values():
        last: dict[str, dict[str, Any]] = {}
        for i, payment in enumerate(values):
            kind = payment["fraud_kind"]
            seen[kind] += 1
            before = last.get(payment["customer_id"])
            if kind == "travel":
                assert before is not None
                assert before["ts_ms"] > payment["ts_ms"] - 100
                assert km(before["place"], payment["place"]) > 450
            elif kind == "velocity":
                burst = [v for v in values[max(0, i - 7) : i + 8] if v["customer_id"] == payment["customer_id"]]
                assert len(burst) >= 8
            assert (payment["amount"] >= 40_000) == (kind == "spending")
            last[payment["customer_id"]] = payment
    assert min(seen.values()) > 10


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def paced(state: Any, clock: Clock, count: int | None = None) -> PaymentsEnumerator:
    enumerator = PaymentsEnumerator(PaymentsSource(rate_per_second=1000, count=count), clock)
    enumerator.start(state)
    return enumerator


def the_rate_follows_the_wall_clock() -> None:
    clock = Clock()
    enumerator = paced(None, clock)
    assert enumerator.plan(100_000).ranges == ()
    clock.now += 2
    planned = enumerator.plan(500)
    assert sum(part.weight for part in planned.ranges) == 500
    assert planned.backlog == 1500
    assert sum(part.weight for part in enumerator.plan(100_000).ranges) == 1500
    assert enumerator.plan(100_000).ranges == ()


def a_clock_that_jumps_back_repeats_nothing() -> None:
    clock = Clock()
    enumerator = paced(None, clock)
    clock.now += 1
    enumerator.plan(100_000)
    clock.now -= 3600
    assert enumerator.plan(100_000).ranges == ()


def the_time_for_which_a_job_was_down_is_left_out() -> None:
    clock = Clock()
    enumerator = paced(None, clock)
    clock.now += 1
    enumerator.plan(100_000)
    state = enumerator.snapshot()
    clock.now += 3600
    enumerator = paced(state, clock)
    clock.now += 1
    planned = enumerator.plan(100_000)
    assert sum(part.weight for part in planned.ranges) == 1000
    source = PaymentsSource(rate_per_second=1000)
    times = [
        ts
        for part in planned.ranges
        for batch in source.create_reader(None).read(part, 1000)  # type: ignore[arg-type]
        for ts in batch.timestamps or []
    ]
    assert sorted(times) == list(range(int(clock.now * 1000) - 1000, int(clock.now * 1000)))


def a_paced_source_with_a_count_ends() -> None:
    clock = Clock()
    enumerator = paced(None, clock, count=1500)
    clock.now += 1
    assert not enumerator.plan(100_000).finished
    clock.now += 1
    planned = enumerator.plan(100_000)
    assert planned.finished
    assert sum(part.weight for part in planned.ranges) == 500


def test_another_seed_does_not_resume_from_the_checkpoint() -> None:
    run = SourceRun(PaymentsSource(seed=1, count=100)).start()
    run.epoch()
    PaymentsSource(seed=1, count=200).check_position(run.state)
    with pytest.raises(IncompatibleState, match="seed 1"):
        PaymentsSource(seed=2, count=100).check_position(run.state)


@pytest.mark.parametrize(
    "arguments",
    [{"rate_per_second": 0}, {"count": -1}, {"customers": 3}, {"merchants": 0}, {"fraud_share": 0.5}],
)
def an_argument_out_of_range_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="PaymentsSource"):
        PaymentsSource(**arguments)
