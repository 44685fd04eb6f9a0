"""Brokers that die, stand still and come back."""

from __future__ import annotations

from holdfast.testing.chaos.faults.drivers import kill_driver
from holdfast.testing.chaos.stage import Stage

__all__ = ["kill_broker", "kill_broker_and_driver", "pause_broker"]


def kill_broker(stage: Stage) -> str:
    """``kill -9``; it is back after some seconds, and the driver's process lives on."""
    broker = stage.random.choice(stage.kafka.brokers)
    driver = stage.driver
    stage.kill_broker(broker)
    stage.pause(*stage.random.choice(((0.0, 2.0), (7.0, 15.0))))
    broker.start()
    return f"broker {broker.node_id} killed and started again, beside driver {driver.number}"


def pause_broker(stage: Stage) -> str:
    """SIGSTOP: connections stay open, nothing answers."""
    broker = stage.random.choice(stage.kafka.brokers)
    with broker.paused():
        stage.pause(1.0, 12.0)
    return f"broker {broker.node_id} paused"


def kill_broker_and_driver(stage: Stage) -> str:
    """The driver that recovers finds no broker for a while: it may say so and end."""
    stage.expected_stop = "no answer from Kafka"
    broker = stage.random.choice(stage.kafka.brokers)
    stage.kill_broker(broker)
    kill_driver(stage)
    stage.pause(0.0, 15.0)
    broker.start()
    return f"broker {broker.node_id} and the driver killed, both started again"
