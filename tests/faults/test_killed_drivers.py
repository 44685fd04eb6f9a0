"""The examples lose nothing and repeat nothing when their drivers are killed with ``kill -9``, wherever that hits them.

At the steps of commit and recovery, drivers run their tasks themselves, which takes a second. ``make test EFFORT=10
ARGS=tests/faults/test_killed_drivers.py`` kills drivers on Spark at each of these steps, and twenty at random moments.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from driver_with_faults import AT
from seed_programs import (
    KEPT,
    Feed,
    Program,
    Reader,
    bursts_of_payments,
    judge,
    minute_counts,
    new_seed,
    rate_limit_trips,
    scattered_payments,
)

from effort import examples

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark]


def wake_all(program: Program) -> None:
    """A slot of a dead driver wakes up."""
    for driver in program.drivers:
        driver.resume()


def test_payments_per_minute_are_counted_once_over_kills_at_random_moments_and_at_other_parallelisms(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    draw = random.Random(seed := new_seed())
    payments, counts = new_topic(3), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, scattered_payments(seed, 3))
    reader = Reader(kafka.bootstrap_servers, counts)
    environment = {"KAFKA": kafka.bootstrap_servers, "PAYMENTS_TOPIC": payments, "COUNTS_TOPIC": counts}
    with Program("upi_per_minute.py", "upi-per-minute", environment, feed) as program:
        took = 0.0
        asleep = draw.randrange(2)
        for kill in range(examples(2)):
            program.rescale(draw.choice([each for each in (1, 2, 3, 4) if str(each) != program.parallelism]))
            began = time.monotonic()
            program.start()
            if kill % 2 == 0:  # while it runs
                program.wait_for_checkpoints(2)
                took = max(took, time.monotonic() - began)
                program.let_pass(draw.uniform(0, 1))
                wake_all(program)
                if kill // 2 % 2 == asleep:
                    program.driver.pause(draw.choice(program.members("slot")))
            else:  # at any moment since its start
                program.let_pass(draw.uniform(0, took))
            program.kill()
        program.rescale(2)
        program.start()  # in peace
        program.wait_for_checkpoints(1)
        wake_all(program)
        judge(program, feed, 3, reader, minute_counts)
    reader.close()


def test_alerts_are_written_once_when_the_driver_is_killed_at_every_step_of_commit_and_recovery(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    draw = random.Random(seed := new_seed())
    payments, alerts = new_topic(1), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, bursts_of_payments(seed))
    reader = Reader(kafka.bootstrap_servers, alerts)
    environment = {"KAFKA": kafka.bootstrap_servers, "PAYMENTS_TOPIC": payments, "ALERTS_TOPIC": alerts}
    steps = [
        "before the metadata",
        "right after the commit",
        "between two subtasks' commits",
        "between metadata and sink commit",
    ]
    in_recovery = [
        "after the take-over",
        "before the commit is repeated",
        "between two subtasks' commits",
        "before old transactions are fenced",
        "after the commit was repeated",
    ]
    with Program("fraud_counter.py", "fraud-counter", environment, feed) as program:
        points = [*((p, draw.randint(2, 5)) for p in steps), *((p, 1) for p in in_recovery)]
        on_spark = draw.sample(points, min(examples(1) - 1, len(points)))
        for point, nth in points:
            driver = program.start(point, nth, without_spark=(point, nth) not in on_spark)  # the steps are the driver's
            assert program.wait_for_end(driver) == -signal.SIGKILL
            assert AT + point in driver.log()
        program.start()
        judge(program, feed, 1, reader, rate_limit_trips)
    reader.close()
