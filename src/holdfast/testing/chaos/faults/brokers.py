"""Faults of brokers: kills, pauses and outages."""

from __future__ import annotations

import time

from holdfast.testing.chaos.faults.drivers import kill_driver
from holdfast.testing.chaos.stage import Stage

__all__ = ["brokers_away", "kill_broker", "kill_broker_again_and_again", "kill_broker_and_driver", "pause_broker"]

_MINUTES_S = (120.0, 180.0)


def kill_broker(stage: Stage) -> str:
    """``kill -9``; the broker returns after some seconds, and the driver's process survives."""
    broker = stage.random.choice(stage.kafka.brokers)
    driver = stage.driver
    stage.kill_broker(broker)
    stage.pause(*stage.random.choice(((0.0, 2.0), (7.0, 15.0))))
    broker.start()
    return f"broker {broker.node_id} killed and started again, beside driver {driver.number}"


def kill_broker_again_and_again(stage: Stage) -> str:
    """Repeated kills, also of a broker that has just returned; the driver's process survives all of them."""
    driver, times = stage.driver, stage.random.randint(3, 6)
    for _ in range(times):
        broker = stage.random.choice(stage.kafka.brokers)
        stage.kill_broker(broker)
        stage.pause(*stage.random.choice(((0.0, 1.0), (3.0, 9.0))))
        broker.start()
        stage.pause(*stage.random.choice(((0.0, 0.5), (1.0, 4.0))))
    return f"brokers killed and started again {times} times, beside driver {driver.number}"


def brokers_away(stage: Stage) -> str:
    """Kill all brokers for minutes; the driver's process waits and continues."""
    driver = stage.driver
    for broker in stage.kafka.brokers:
        stage.kill_broker(broker)
    low, high = (min(bound, stage.longest_fault_s) for bound in _MINUTES_S)
    began = time.monotonic()
    stage.pause(low, high)
    stage.kafka.start()
    return f"all brokers were away for {time.monotonic() - began:.0f} s, beside driver {driver.number}"


def pause_broker(stage: Stage) -> str:
    """SIGSTOP: connections stay open, requests get no answer."""
    broker = stage.random.choice(stage.kafka.brokers)
    with broker.paused():
        stage.pause(1.0, 12.0)
    return f"broker {broker.node_id} paused"


def kill_broker_and_driver(stage: Stage) -> str:
    """The recovering driver finds no broker for a while: it may report that and end."""
    stage.expected_stop = "no answer from Kafka"
    broker = stage.random.choice(stage.kafka.brokers)
    stage.kill_broker(broker)
    kill_driver(stage)
    stage.pause(0.0, 15.0)
    broker.start()
    return f"broker {broker.node_id} and the driver killed, both started again"
