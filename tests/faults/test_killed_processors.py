"""A StatefulProcessor of PySpark's loses and repeats no row and no timer when drivers and slots are killed.

Its values, lists, maps and timers are in RocksDB; each driver has another parallelism.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from seed_programs import KEPT, Feed, Program, Reader, new_seed, scattered_payments

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("call_mode", ["epoch", "record"])
def test_rows_and_timers_of_a_processor_count_once_although_drivers_and_slots_are_killed(
    kafka: Any, new_topic: Callable[..., str], call_mode: str
) -> None:
    draw = random.Random(seed := new_seed())
    payments, results = new_topic(2), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, scattered_payments(seed, 2))
    reader = Reader(kafka.bootstrap_servers, results)
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "PAYMENTS_TOPIC": payments,
        "RESULTS_TOPIC": results,
        "CALL_MODE": call_mode,
    }
    rocksdb = {"state.backend.type": "rocksdb"}

    def numbered() -> dict[str, list[dict[str, Any]]]:
        reader.look()
        return {key: [each for each in told if each["nth"]] for key, told in reader.by_key().items()}

    with Program(str(Path(__file__).with_name("processors_job.py")), "processors", environment, feed, **rocksdb) as program:
        program.start()
        program.wait_for_checkpoints(3)
        program.driver.kill(draw.choice(program.members("slot")))
        program.wait_for_checkpoints(2)
        program.let_pass(draw.uniform(0, 0.5))
        program.kill()
        program.rescale(draw.choice([1, 3]))
        program.start()
        program.wait_for_checkpoints(2)
        program._feed = None
        assert feed._producer.flush(600) == 0
        everything = len(feed.sent)
        program.wait(
            lambda: sum(map(len, numbered().values())) >= everything, f"all {everything} results visible", program.driver
        )
        program.kill()
        told, rows = reader.by_key(), numbered()
    reader.close()
    assert {merchant: len(each) for merchant, each in rows.items()} == dict(Counter(merchant for merchant, _ in feed.sent))
    for merchant, of_merchant in rows.items():
        for name in ("nth", "listed", "mapped"):
            assert [each[name] for each in of_merchant] == list(range(1, len(of_merchant) + 1)), (merchant, name)
        fired = [each["timer"] for each in told[merchant] if not each["nth"]]
        assert fired == list(range(1, len(fired) + 1)), "a timer fired twice, or its result is lost"
        assert len(fired) <= max(each["timer"] for each in of_merchant)
    assert any(not each["nth"] for of_merchant in told.values() for each in of_merchant), "no timer has fired"
