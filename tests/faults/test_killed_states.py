"""Keyed, operator and broadcast state, and two inputs, lose and repeat nothing when drivers and slots are killed.

Each driver has another parallelism: lists are split anew, union lists and broadcast state are whole in each subtask. The
keyed state is in changelogs, too, whose transactions the kills interrupt. A run of the suite kills a slot and a driver at
parallelism 3, with ``EFFORT=2`` also at 2.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from seed_programs import KEPT, Feed, Program, Reader, new_seed, scattered_payments

from effort import examples
from holdfast.connectors.kafka.changelogs.changelog import changelog_topic
from kafka_fixtures import read_all

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


class RuledFeed(Feed):
    """A new rule after every 50 payments; each payment says which rule was there before it."""

    version = 0

    def __init__(self, rules: str, *args: Any) -> None:
        super().__init__(*args)
        self._rules = rules

    def _write(self, partition: int, merchant: str, at: int) -> None:
        if len(self.sent) % 50 == 0:
            assert self._producer.flush(600) == 0
            self.version += 1
            self._producer.produce(self._rules, json.dumps({"version": self.version}))
            assert self._producer.flush(600) == 0
        payment = json.dumps({"merchant_id": merchant, "known": self.version})
        self._producer.produce(self._topic, payment, partition=partition)
        self.sent.append((merchant, at))


def judge_lists(restored: list[dict[str, Any]]) -> None:
    """What subtasks saw of their series when they began: each time, all of a checkpoint, and their own among them."""
    whole = [dict(each["all"]) for each in restored]
    assert all(len(seen) == len(each["all"]) for seen, each in zip(whole, restored)), "a series of two subtasks"
    assert all(each["own"].items() <= seen.items() for seen, each in zip(whole, restored))
    whole.sort(key=lambda seen: sum(seen.values()))
    for earlier, later in itertools.pairwise(whole):
        assert all(number <= later.get(name, -1) for name, number in earlier.items()), "a series was lost or went back"
    assert len(whole[-1]) >= 3, "a series for each subtask"


def test_three_kinds_of_state_and_two_inputs_survive_kills_of_drivers_and_slots(
    kafka: Any, new_topic: Callable[..., str]
) -> None:
    draw = random.Random(seed := new_seed())
    payments, rules, results = new_topic(2), new_topic(1), new_topic(2, **KEPT)
    feed = RuledFeed(rules, kafka.bootstrap_servers, payments, scattered_payments(seed, 2))
    reader = Reader(kafka.bootstrap_servers, results)
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "PAYMENTS_TOPIC": payments,
        "RULES_TOPIC": rules,
        "RESULTS_TOPIC": results,
    }
    changelog = {
        "state.changelog.enabled": "true",
        "state.changelog.storage": "kafka",
        "state.changelog.partitions": "3",
        "state.changelog.kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    program = Program(str(Path(__file__).with_name("three_states.py")), "three-states", environment, feed, **changelog)
    with program:
        for parallelism in draw.sample((3, 2), 2) if examples(1) > 1 else (3,):
            program.rescale(parallelism)
            program.start()
            program.wait_for_checkpoints(2)
            program.let_pass(draw.uniform(0, 0.5))
            program.driver.kill(draw.choice(program.members("slot")))
            program.wait_for_checkpoints(2)
            program.let_pass(draw.uniform(0, 0.5))
            program.kill()
        program.rescale(draw.choice([1, 2, 4]))
        program.start()
        program.wait_for_checkpoints(2)
        program._feed = None
        assert feed._producer.flush(600) == 0
        program.wait(lambda: reader.look() >= len(feed.sent), f"all {len(feed.sent)} results visible", program.driver)
        program.kill()
        found = reader.by_key()
    reader.close()
    sent: dict[str, int] = defaultdict(int)
    for merchant, _ in feed.sent:
        sent[merchant] += 1
    assert {merchant: len(told) for merchant, told in found.items()} == dict(sent)
    numbers: dict[str, list[int]] = defaultdict(list)
    restored: list[dict[str, Any]] = []
    for told in found.values():
        assert sorted(each["nth"] for each in told) == list(range(1, len(told) + 1))  # keyed
        assert [each["both"] for each in told] == list(range(1, len(told) + 1))  # keyed, of two inputs
        for each in told:
            assert each["rule"] >= each["known"]  # broadcast
            numbers[each["series"]].append(each["number"])
            restored += [each["restored"]] if each["restored"] else []
    assert all(sorted(each) == list(range(1, len(each) + 1)) for each in numbers.values())  # of the operator
    judge_lists(restored)
    assert feed.version > 5
    for uid in ("ruled", "both"):
        rows = read_all(kafka.bootstrap_servers, changelog_topic("three-states", uid))
        assert len(rows) > len(sent)  # a row for each merchant, and markers
