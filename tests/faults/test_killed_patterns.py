"""Patterns of events lose no partial match, and find no match twice, when drivers and slots are killed."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from seed_programs import KEPT, MINUTE, Feed, Program, Reader, judge, new_seed, scattered_payments

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark]

WITHIN = 10 * MINUTE
SMALL, MIDDLE, LARGE = 2, 50, 900


class AmountFeed(Feed):
    """Gives each payment an amount; a card has one payment at a time."""

    def __init__(self, servers: str, topic: str, payments: Iterator[tuple[int, str, int]], draw: random.Random) -> None:
        super().__init__(servers, topic, payments)
        self._draw = draw
        self.amounts: dict[tuple[str, int], int] = {}

    def _write(self, partition: int, merchant: str, at: int) -> None:
        if (merchant, at) in self.amounts:
            return
        rare = merchant in ("m0", "m1", "m2")  # their probes are often too old when a large payment comes
        large = 0.004 if rare else 0.05
        amount = self._draw.choices([SMALL, MIDDLE, LARGE], [0.5, 0.5 - large, large])[0]
        self.amounts[merchant, at] = amount
        payment = json.dumps({"card": merchant, "ts_ms": at, "amount": amount})
        self._producer.produce(self._topic, payment, partition=partition)
        self.sent.append((merchant, at))

    def alerts(self, payments: list[tuple[str, int]]) -> dict[str, list[Any]]:
        """What `probing_fraud.py` must write for these payments."""
        found: dict[str, list[Any]] = defaultdict(list)
        probes: dict[str, list[int]] = defaultdict(list)
        for at, card in sorted((at, card) for card, at in payments):
            amount = self.amounts[card, at]
            if amount == SMALL:
                probes[card].append(at)
            elif amount == LARGE:
                recent = [probe for probe in probes[card] if at - probe < WITHIN]
                if len(recent) >= 3:
                    found[card].append({"card": card, "amount": amount, "probed_at": recent[:3], "at": at})
                    recent = []
                probes[card] = recent
        return dict(found)


def test_probing_payments_before_a_large_one_are_reported_once_although_drivers_and_slots_are_killed(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    draw = random.Random(seed := new_seed())
    payments, alerts = new_topic(2), new_topic(2, **KEPT)
    feed = AmountFeed(kafka.bootstrap_servers, payments, scattered_payments(seed, 2), random.Random(seed + 1))
    reader = Reader(kafka.bootstrap_servers, alerts)
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "CARD_PAYMENTS_TOPIC": payments,
        "CARD_ALERTS_TOPIC": alerts,
    }
    kills = []
    with Program("probing_fraud.py", "probing-fraud", environment, feed) as program:
        program.start()
        program.wait(lambda: reader.look() >= 3, "three alerts visible", program.driver)
        program.driver.kill(draw.choice(program.members("slot")))
        kills.append(len(feed.sent))
        program.wait_for_checkpoints(3)
        program.let_pass(draw.uniform(0, 0.5))
        program.kill()
        kills.append(len(feed.sent))
        program.start()
        program.wait_for_checkpoints(3)
        judge(program, feed, 2, reader, feed.alerts)
    reader.close()
    expected = [alert for found in feed.alerts(feed.sent).values() for alert in found]
    order = {payment: number for number, payment in enumerate(feed.sent)}
    for kill in kills:  # each met partial matches that were completed after it
        assert any(order[a["card"], a["probed_at"][0]] < kill <= order[a["card"], a["at"]] for a in expected)
