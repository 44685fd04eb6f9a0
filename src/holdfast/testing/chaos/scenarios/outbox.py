"""Output rewritten from the outbox, by drivers that die and are overtaken meanwhile."""

from __future__ import annotations

from signal import SIGKILL
from time import sleep
from typing import ClassVar

from holdfast.testing.chaos.faults import brokers, drivers
from holdfast.testing.chaos.scenarios.numbers import NumberedScenario
from holdfast.testing.chaos.stage import Stage

__all__ = ["Outbox"]

_TIMEOUT_S = 2.0
"""The transactions' timeout."""
_COMMIT = "TransactionClient.end"
_LAG_S = 20.0
"""The lag of the storage's listings."""


def let_transactions_time_out(stage: Stage) -> str:
    """A driver dies with prepared output; the next one starts after its transactions have timed out."""
    _let_time_out(stage)
    stage.start_driver()
    return "a driver died before it committed, the next one came when the transactions had timed out"


def die_while_writing_again(stage: Stage) -> str:
    """As before; in addition, the drivers that rewrite the lost output die at steps of the rewrite."""
    _let_time_out(stage)
    return drivers.die_at_steps(stage, _COMMIT)


def sleep_while_writing_again(stage: Stage) -> str:
    """As before; in addition, the driver that rewrites the lost output pauses, is overtaken, and continues."""
    _let_time_out(stage)
    return drivers.sleep_at_a_step(stage, _COMMIT)


def _let_time_out(stage: Stage) -> None:
    stage.kill_driver()
    number = stage.random.randint(3, 12)  # the first commits are those of its recovery
    driver = stage.start_driver(step={"number": number, "what": SIGKILL.value, "only": f"before {_COMMIT}"})
    drivers.await_step(stage, driver)
    sleep(stage.random.uniform(_TIMEOUT_S, _TIMEOUT_S + 1.5))  # waits for the broker's timeout


class Outbox(NumberedScenario):
    """The numbered job with transactions of two seconds and sparse output."""

    name = "outbox"
    about = "transactions time out; drivers and rivals die and sleep while they write output again; listings lag"
    keys = 23
    every = 5
    broker_properties: ClassVar = {"transaction_max_timeout_ms": "10000"}
    sink_properties: ClassVar = {"transaction.timeout.ms": str(int(_TIMEOUT_S * 1000))}
    faults: ClassVar = {
        "transactions time out": let_transactions_time_out,
        "drivers die while output is written again": die_while_writing_again,
        "drivers sleep while output is written again, and are overtaken": sleep_while_writing_again,
        "driver dies at steps of its recovery": drivers.die_at_steps,
        "driver sleeps at a step of its recovery": drivers.sleep_at_a_step,
        "driver overtaken by a rival": drivers.overtake,
        "driver killed several times": drivers.kill_driver_repeatedly,
        "broker paused": brokers.pause_broker,
        "broker killed": brokers.kill_broker,
    }
    kills = (drivers.kill_driver,)
    share = 1.3
    driver_settings: ClassVar = {"listing_lag_s": _LAG_S}
