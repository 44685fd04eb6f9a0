"""The program of ``test_killed_versions.py``, in several versions: accounts of merchants with timers, from Kafka to Kafka.

``VERSIONS`` names those that this process runs, one after the other. All but the last must be refused.
"""

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from kafka_ends import kafka_source, results_sink

from holdfast.common import Configuration, Row, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.errors import IncompatibleState

FIRST = Types.ROW_NAMED(["count", "token"], [Types.INT(), Types.STRING()])
SECOND = Types.ROW_NAMED(["count", "token", "unit"], [Types.LONG(), Types.STRING(), Types.STRING()])
ACCOUNTS = {"1": FIRST, "2": SECOND.with_defaults({"unit": "EUR"}), "other type": Types.LONG(), "without audit": FIRST}
"""The type of an account, by version."""
HOURS = (3, 1, 2)
"""When the timers of an account are due."""
SECONDS = 0.003
REFUSED = "refused, version "


class Account(KeyedProcessFunction):
    """Numbers a merchant's payments, and gives each a token by chance; names the token before.

    Takes its time while a file is there, and leaves another one when it gets a record.
    """

    def __init__(self, version: str, slow: str) -> None:
        self.version, self.slow = version, Path(slow)

    def open(self, runtime_context: Any) -> None:
        self.account = runtime_context.get_state(ValueStateDescriptor("account", ACCOUNTS[self.version]))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.slow.with_name(f"read by {self.version}").touch()
        if self.slow.exists():
            time.sleep(SECONDS)
        before, token, due = self.account.value(), uuid.uuid4().hex, []
        count, previous, *unit = before or (0, None)
        self.account.update(Row(count + 1, token, *(["USD"] if self.version == "2" else [])))
        if before is None:
            now = ctx.timer_service().current_processing_time()
            for hours in HOURS:
                due.append(now + hours * 3_600_000)
                ctx.timer_service().register_processing_time_timer(due[-1])
        told = {"merchant_id": value["merchant_id"], "version": self.version, "nth": count + 1, "due": due}
        yield {**told, "token": token, "previous": previous, "unit": unit}

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield {"merchant_id": ctx.get_current_key(), "version": self.version, "timer": timestamp}


class Counted(KeyedProcessFunction):
    """Adds how many elements of the key it has seen."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield {**value, self.name: self.count.value()}


def run(version: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(10)  # an epoch with backpressure takes longer
    unclaimed = Configuration()
    unclaimed.set_string("execution.state-recovery.ignore-unclaimed-state", str(version == "2").lower())
    env.configure(unclaimed)
    payments = env.from_source(kafka_source("PAYMENTS_TOPIC"), WatermarkStrategy.no_watermarks(), "payments").uid("payments")
    by_merchant = payments.map(json.loads).key_by(lambda payment: payment["merchant_id"])
    results = by_merchant.process(Account(version, os.environ["SLOW"])).uid("accounts")
    if version != "without audit":
        name = "added" if version == "2" else "audit"
        results = results.key_by(lambda result: result["merchant_id"]).process(Counted(name)).uid(name)
    results.sink_to(results_sink(lambda result: result["merchant_id"])).uid("results")
    env.execute("accounts")


def main() -> None:
    *refused, last = os.environ["VERSIONS"].split(",")
    for version in refused:
        try:
            run(version)
        except IncompatibleState as error:
            print(f"{REFUSED}{version}: {error}", flush=True)
    run(last)


if __name__ == "__main__":
    main()
