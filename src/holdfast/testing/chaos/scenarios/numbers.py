"""The numbered job from Kafka to Kafka: the common part of its scenarios."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.faults import drivers
from holdfast.testing.chaos.programs.numbered import PARTITIONS, Expected, Numbers, compare, sent
from holdfast.testing.chaos.scenario import Fault, Scenario
from holdfast.testing.chaos.topics import Feed, Watcher, read_topic

__all__ = ["DRIVER_FAULTS", "NumberedScenario"]

DRIVER_FAULTS: Mapping[str, Fault] = {
    "driver killed": drivers.kill_driver,
    "driver killed several times": drivers.kill_driver_repeatedly,
    "driver dies at steps of its recovery": drivers.die_at_steps,
    "driver and local stores gone": drivers.lose_machine,
    "driver paused, successor takes over": drivers.pause_driver,
    "rescaled while it runs": drivers.rescale,
    "killed while it is rescaled": drivers.rescale_and_die,
}
"""What may happen to a driver with Spark."""

DRAIN_S = 480.0
_LOOK_S = 15.0
_ABORTED_S = 150.0
"""Seconds in which the brokers abort the transaction of an overtaken attempt at the last epoch: its timeout, and more."""
_SLOW_MS = 20
"""How long the job takes for each record of one key, if there are unaligned checkpoints."""


class NumberedScenario(Scenario):
    """Runs the numbered job, in one or several lives."""

    without_spark: ClassVar[bool] = True
    brokers: ClassVar[int] = 1
    broker_properties: ClassVar[dict[str, str]] = {}
    """``_`` stands for ``.``."""
    proxied: ClassVar[bool] = False
    keys: ClassVar[int] = 97
    every: ClassVar[int] = 1
    """Other than 1: elements are sparse, and one in this many of a key is written."""
    sink_properties: ClassVar[dict[str, Any]] = {}
    driver_settings: ClassVar[dict[str, Any]] = {}
    """Settings of every driver."""
    lives: int = 0

    def prepare(self) -> None:
        """Start brokers, feed and the first driver."""
        stage = self.stage
        stage.start_kafka(self.brokers, proxied=self.proxied, **self.broker_properties)
        stage.program = "holdfast.testing.chaos.programs.numbered"
        self.begin_life()

    def begin_life(self) -> None:
        """Create topics, feed and job under new names."""
        stage = self.stage
        self.lives += 1
        suffix = f"-{self.lives}"
        stage.job_name = f"chaos{suffix}"
        servers = stage.kafka.bootstrap_servers
        self.topics = {name: f"{name}{suffix}" for name in ("input", "elements", "totals")}
        self.create_topics()
        stage.settings = {
            **self.topics,
            "source": {"bootstrap.servers": stage.servers},
            "sink": {"bootstrap.servers": stage.servers, **self.sink_properties},
            "every": self.every,
            "slow_ms": _SLOW_MS if stage.unaligned else 0,
            "without_spark": self.without_spark,
            **self.driver_settings,
        }
        self.feed = Feed(servers, self.topics["input"], Numbers(self.keys, stage.seed + self.lives), self.rate)
        stage.at_the_end(self.feed.abandon)
        stage.watcher = Watcher(servers, [self.topics["elements"], self.topics["totals"]], sent, ("seen",))
        stage.at_the_end(stage.watcher.close)
        stage.start_driver()
        self.feed.start()

    def create_topics(self) -> None:
        """Create the topics of this life."""
        for topic in self.topics.values():
            self.stage.kafka.create_topic(topic, PARTITIONS)

    def judge(self) -> None:
        """Compare the visible output with the model."""
        self.feed.stop()
        self.stage.say(f"the input ends after {self.feed.written} records; the job drains")
        expected = self.expected()
        if self.drain(expected):
            self.stage.pause(2.0, 2.0)  # give surplus output time to appear
        self.end_job()
        self.compare(expected)

    def end_job(self) -> None:
        """End the job in order."""
        self.stage.stop_driver()

    def expected(self) -> Expected:
        """The expected output by now, if the input has ended."""
        numbers = read_topic(self.stage.kafka.bootstrap_servers, self.topics["input"])
        found = sum(map(len, numbers))
        self.stage.report.events += found
        if found > self.feed.written:
            self.stage.say(f"Kafka has {found - self.feed.written} records of the input twice: the job counts them twice")
        elif found < self.feed.written:
            self.stage.violation(f"Kafka acknowledged {self.feed.written} records of the input, and has {found} of them")
        return Expected.of([[(r[0], r[1], r[2], r[3]) for r in part] for part in numbers], self.every)

    def drain(self, expected: Expected) -> bool:
        """Wait for all expected records to become visible; report it if they do not."""
        stage, servers = self.stage, self.stage.kafka.bootstrap_servers
        wanted = {self.topics["elements"]: expected.elements.total(), self.topics["totals"]: expected.totals.total()}

        def seen() -> bool:
            return all(stage.watcher.counts[topic] >= number for topic, number in wanted.items())

        before, waited = -1, 0.0
        while not stage.until(seen, _LOOK_S):
            # The watcher's client may lag when brokers come and go; a fresh one is accurate.
            visible = {topic: _visible(servers, topic) for topic in wanted}
            if all(visible[topic] >= number for topic, number in wanted.items()):
                break
            waited = waited + _LOOK_S if sum(visible.values()) == before else 0.0
            before = sum(visible.values())
            if waited >= DRAIN_S:
                stage.violation(f"the job does not drain: {visible} of {wanted} records are visible")
                return False
        return True

    def compare(self, expected: Expected) -> None:
        """Report the differences between the outputs and the expected ones."""
        for name, content in (("elements", expected.elements), ("totals", expected.totals)):
            written = read_topic(self.stage.kafka.bootstrap_servers, self.topics[name], _ABORTED_S)
            self.stage.report.outputs += sum(map(len, written))
            for problem in compare(name, content, itertools.chain.from_iterable(written)):
                self.stage.violation(problem)


def _visible(servers: str, topic: str) -> int:
    """The number of visible records; 0 if a transaction is open, as it may be while the job runs."""
    try:
        return sum(map(len, read_topic(servers, topic)))
    except HoldfastError:
        return 0
