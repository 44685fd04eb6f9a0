"""Async I/O loses and repeats no result when drivers and slots are killed with requests in flight, at any parallelism.

A run of the suite kills a slot and a driver at one parallelism by chance, with ``EFFORT=2`` at two.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from seed_programs import KEPT, Feed, Program, Reader, new_seed, scattered_payments

from effort import examples

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


class NumberedFeed(Feed):
    """Numbers the payments of each partition."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.numbers = [0, 0]

    def _write(self, partition: int, merchant: str, at: int) -> None:
        payment = {"partition": partition, "number": self.numbers[partition]}
        self.numbers[partition] += 1
        self._producer.produce(self._topic, json.dumps(payment), partition=partition)
        self.sent.append((merchant, at))


def test_requests_in_flight_survive_kills_of_drivers_and_slots_and_another_parallelism(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    draw = random.Random(seed := new_seed())
    payments, results = new_topic(2), new_topic(2, **KEPT)
    feed = NumberedFeed(kafka.bootstrap_servers, payments, scattered_payments(seed, 2), rate=150.0)
    reader = Reader(kafka.bootstrap_servers, results)
    environment = {"KAFKA": kafka.bootstrap_servers, "PAYMENTS_TOPIC": payments, "RESULTS_TOPIC": results}
    program = Program(str(Path(__file__).with_name("async_requests.py")), "async-requests", environment, feed)
    with program:
        for parallelism in draw.sample((2, 1), min(examples(1), 2)):
            program.rescale(parallelism)
            program.start()
            program.wait_for_checkpoints(3)
            program.let_pass(draw.uniform(0, 0.5))
            program.driver.kill(draw.choice(program.members("slot")))
            program.wait_for_checkpoints(3)
            program.let_pass(draw.uniform(0, 0.5))
            program.kill()
        program.rescale(3)
        program.start()
        program.wait_for_checkpoints(3)
        program._feed = None
        assert feed._producer.flush(600) == 0
        # The job is idle now: it wakes up by itself for the answers that come.
        program.wait(lambda: reader.look() >= 2 * len(feed.sent), f"{2 * len(feed.sent)} results visible", program.driver)
        program.kill()
        found = reader.by_key()
    reader.close()
    for partition, count in enumerate(feed.numbers):
        for kind in ("ordered", "unordered"):
            numbers = [each["number"] for each in found[f"{kind} {partition}"]]
            assert sorted(numbers) == list(range(count)), kind
    told = [each["number"] for each in found["unordered 0"]]
    assert told != sorted(told)  # requests did overtake each other


def test_the_example_with_a_lookup_join_enriches_each_payment_once_although_it_is_killed(
    kafka: Any, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    payments, results = new_topic(2), new_topic(2, **KEPT)
    with closing(sqlite3.connect(tmp_path / "merchants.db")) as database, database:
        database.execute("create table merchants (merchant_id text primary key, category text)")
        database.executemany("insert into merchants values (?, ?)", [(f"m{n}", f"category {n % 3}") for n in range(8)])
    feed = Feed(kafka.bootstrap_servers, payments, scattered_payments(new_seed(), 2))
    reader = Reader(kafka.bootstrap_servers, results)
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "PAYMENTS_TOPIC": payments,
        "ENRICHED_TOPIC": results,
        "DATABASE": str(tmp_path / "merchants.db"),
    }
    program = Program("enrich_payments.py", "enrich-payments", environment, feed)
    with program:
        program.start(without_spark=True)
        program.wait_for_checkpoints(3)
        program.kill()
        program.start()
        program.wait_for_checkpoints(3)
        program._feed = None
        assert feed._producer.flush(600) == 0
        program.wait(lambda: reader.look() >= len(feed.sent), f"{len(feed.sent)} results visible", program.driver)
        program.kill()
        found = reader.by_key()
    reader.close()
    categories = {f"m{n}": f"category {n % 3}" if n < 8 else "unknown" for n in range(12)}
    expected = Counter((merchant, at, categories[merchant]) for merchant, at in feed.sent)
    told = [each for values in found.values() for each in values]
    assert Counter((each["merchant_id"], each["ts_ms"], each["category"]) for each in told) == expected
