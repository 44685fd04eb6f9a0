"""Python workers and task slots that die, or stand still, cost a repetition of the epoch and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from seed_programs import KEPT, Feed, Program, Reader, bursts_of_payments, judge, new_seed, rate_limit_trips

from holdfast.runtime.host.process_end import await_end

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark]


def test_alerts_are_written_once_when_workers_and_slots_are_killed_or_paused(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    draw = random.Random(seed := new_seed())
    payments, alerts = new_topic(1), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, bursts_of_payments(seed))
    reader = Reader(kafka.bootstrap_servers, alerts)
    environment = {"KAFKA": kafka.bootstrap_servers, "PAYMENTS_TOPIC": payments, "ALERTS_TOPIC": alerts}
    impatient = {"spark.python.daemon.module": "impatient_pyspark.daemon"}
    with Program("fraud_counter.py", "fraud-counter", environment, feed, **impatient) as program:
        driver = program.start()
        program.wait_for_checkpoints(2)

        for kind in ("worker", "slot") * 3:
            program.let_pass(draw.uniform(0, 0.5))
            driver.kill(draw.choice(program.members(kind)))
            program.wait_for_checkpoints(1)
        driver.kill(*driver.members("slot"), *driver.members("worker"))
        program.wait_for_checkpoints(2)

        # A slot stands still, maybe in the midst of a task, which Spark then gives to another worker.
        paused = draw.choice(program.members("slot"))
        driver.pause(paused)
        driver.kill(*driver.members("worker"))
        program.wait(lambda: await_end(paused, 0), f"slot {paused} replaced", driver)
        driver.resume()
        program.wait_for_checkpoints(2)
        judge(program, feed, 1, reader, rate_limit_trips)
    reader.close()
