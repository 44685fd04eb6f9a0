"""Two drivers of one job: the later one owns it; the earlier one, however long it slept, ends fenced and without effect."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from driver_with_faults import AT, FENCED
from seed_programs import KEPT, Feed, Program, Reader, judge, minute_counts, new_seed, scattered_payments

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark]


def test_the_earlier_of_two_drivers_stops_fenced_and_also_one_that_sleeps_between_metadata_and_commit(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    seed = new_seed()
    payments, counts = new_topic(2), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, scattered_payments(seed, 2))
    reader = Reader(kafka.bootstrap_servers, counts)
    environment = {"KAFKA": kafka.bootstrap_servers, "PAYMENTS_TOPIC": payments, "COUNTS_TOPIC": counts}
    with Program("upi_per_minute.py", "upi-per-minute", environment, feed) as program:
        first = program.start()
        program.wait_for_checkpoints(3)

        # Both run: the later one takes over.
        sleeper = program.start("between metadata and sink commit", 4, "SIGSTOP")
        assert program.wait_for_end(first) == FENCED
        assert "Fenced" in first.log()

        # It stops itself, with output prepared and complete, but not visible. Its successor makes that visible, and goes on.
        program.wait(lambda: AT in sleeper.log(), "at the point", sleeper)
        visible = reader.look()
        last = program.start()
        program.wait_for_checkpoints(4)
        program.wait(lambda: reader.look() > visible, "more output visible", last)

        # It wakes up in the midst of its commit.
        sleeper.process.send_signal(signal.SIGCONT)
        assert program.wait_for_end(sleeper) == FENCED
        program.wait_for_checkpoints(3)
        assert last.exit_code is None
        judge(program, feed, 2, reader, minute_counts)
    reader.close()
