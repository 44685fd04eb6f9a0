"""Event time and processing time: late records, idle splits, watermark generators, windows, timers, TTL, shifted clocks."""

from __future__ import annotations

import math
from time import sleep
from typing import Any, ClassVar

import orjson

from holdfast.testing.chaos.faults import brokers, drivers
from holdfast.testing.chaos.programs.clocked import (
    EVENTS_PARTITIONS,
    LULLS_PARTITIONS,
    Events,
    Lulls,
    problems,
    sent,
)
from holdfast.testing.chaos.scenario import Scenario
from holdfast.testing.chaos.stage import Stage
from holdfast.testing.chaos.topics import Feed, Watcher, read_messages, read_topic

__all__ = ["TimeScenario"]

_SHIFT_MS = 3_000
"""The clocks of two drivers differ by at most twice this."""
_PATIENCE_S = 30.0
_DRAIN_S = 480.0


def machine_sleeps(stage: Stage) -> str:
    """Pause the driver's machine; timers are overdue when it resumes."""
    driver = stage.driver
    driver.pause(driver.process.pid)
    sleep(stage.random.uniform(0.5, 4.0))  # lets time pass
    driver.resume()
    return f"driver {driver.number} stood still"


class TimeScenario(Scenario):
    """The clocked job. Every driver has a different clock and splits its input differently."""

    name = "time"
    about = "late records, idle splits, a generator in mid-chain, windows and timers of processing time, TTL, clocks"
    faults: ClassVar = {
        "driver killed, the next one's clock differs": drivers.kill_driver,
        "driver killed several times, their clocks differ": drivers.kill_driver_repeatedly,
        "driver dies at steps of its recovery": drivers.die_at_steps,
        "driver overtaken by a rival": drivers.overtake,
        "machine asleep": machine_sleeps,
        "broker paused": brokers.pause_broker,
        "broker killed": brokers.kill_broker,
    }
    kills = (drivers.kill_driver,)

    def prepare(self) -> None:
        """Start broker, feeds and the first driver."""
        stage = self.stage
        stage.start_kafka()
        servers = stage.kafka.bootstrap_servers
        for topic, partitions in (("events", EVENTS_PARTITIONS), ("lulls", LULLS_PARTITIONS), ("out", 4)):
            stage.kafka.create_topic(topic, partitions)
        stage.program = "holdfast.testing.chaos.programs.clocked"
        clients = {"bootstrap.servers": servers}
        stage.settings = {
            "events": "events",
            "lulls": "lulls",
            "out": "out",
            "source": clients,
            "sink": clients,
            "without_spark": True,
        }
        stage.vary = self._another_clock
        rate = self.rate / 2
        self.feeds = [
            Feed(servers, "events", Events(stage.seed), rate),
            Feed(servers, "lulls", Lulls(stage.seed), rate / 4),
        ]
        stage.watcher = Watcher(servers, ["out"], sent, ("tick", "lull"))
        stage.at_the_end(stage.watcher.close)
        stage.start_driver()
        for feed in self.feeds:
            stage.at_the_end(feed.abandon)
            feed.start()

    def judge(self) -> None:
        """Compare the visible output with the model, once no new output arrives."""
        stage, servers = self.stage, self.stage.kafka.bootstrap_servers
        for feed in self.feeds:
            feed.pause()
        # All earlier records must be read before the last ones move event time past them.
        stage.until(lambda: stage.watcher.kinds["ttl"] >= self.feeds[0].written, _DRAIN_S)
        for feed in self.feeds:
            feed.stop()
        events, lulls = (
            [[tuple(record) for record in part] for part in read_topic(servers, t)] for t in ("events", "lulls")
        )
        stage.report.events = sum(map(len, [*events, *lulls]))
        stage.say(f"the input ends after {stage.report.events} records; the job drains")
        found = ["nothing was read"]
        before = -1
        while found and stage.watcher.counts["out"] > before:
            before = stage.watcher.counts["out"]
            written = [m for part in read_messages(servers, "out") for m in part]
            found = problems(events, lulls, ((_parsed(m), m.timestamp()[1]) for m in written))
            stage.report.outputs = len(written)
            if found:
                stage.until(lambda: stage.watcher.counts["out"] > before, _PATIENCE_S)  # noqa: B023
        stage.stop_driver()
        for problem in found:
            stage.violation(problem)

    def _another_clock(self) -> dict[str, Any]:
        draw = self.stage.random

        def size(most: int) -> str:
            return str(math.ceil(math.exp(draw.uniform(0, math.log(most)))))

        return {
            "clock_shift_ms": draw.randint(-_SHIFT_MS, _SHIFT_MS),
            "configuration": {
                "holdfast.epoch.max-records": str(100 + int(size(5000))),
                "holdfast.batch.records": size(500),
                "holdfast.frame.records": size(500),
            },
        }


def _parsed(message: Any) -> Any:
    return orjson.loads(message.value())
