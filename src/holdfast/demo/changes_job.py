"""The demo's job on change data: from a table of payments to balances and alerts in tables, by its own driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.common import Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag, StreamExecutionEnvironment, ValueState
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink

__all__ = ["SLOT", "TABLES", "build"]

SLOT = "demo"
TABLES = (
    "CREATE TABLE payments (id int8 PRIMARY KEY, account int8 NOT NULL, amount int8 NOT NULL)",
    "ALTER TABLE payments REPLICA IDENTITY FULL",
    "CREATE TABLE balances (account int8 PRIMARY KEY, payments int8 NOT NULL, balance int8 NOT NULL)",
    "CREATE TABLE alerts (account int8 PRIMARY KEY, balance int8 NOT NULL)",
)
"""The statements that make the tables."""
_PAYMENTS = Types.ROW_NAMED(["id", "account", "amount"], [Types.LONG()] * 3)
_BALANCES = Types.ROW_NAMED(["account", "payments", "balance"], [Types.LONG()] * 3)
_ALERTS = Types.ROW_NAMED(["account", "balance"], [Types.LONG()] * 2)
_OVERDRAWN = OutputTag("overdrawn", _ALERTS)


class Balances(KeyedProcessFunction):
    """Keeps the number of an account's payments and their sum; an account below zero is an alert until it is not."""

    payments = ValueState("payments", int)
    balance = ValueState("balance", int)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Add an inserted payment, take away a deleted one; an update is one of each."""
        sign = 1 if value.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER) else -1
        before = self.balance.value() or 0
        payments, balance = (self.payments.value() or 0) + sign, before + sign * value.amount
        self.payments.update(payments)
        self.balance.update(balance)
        account = value.account
        yield _row(_BALANCES, RowKind.UPDATE_AFTER if payments else RowKind.DELETE, account, payments, balance)
        if balance < 0 or before < 0:
            yield _OVERDRAWN, _row(_ALERTS, RowKind.UPDATE_AFTER if balance < 0 else RowKind.DELETE, account, balance)


def _row(type_info: Any, kind: RowKind, *values: int) -> Row:
    return Row.of_values(list(values), type_info.get_field_names(), kind)


def build(env: StreamExecutionEnvironment, settings: dict[str, Any]) -> None:
    """Add the job to an environment. Setting: ``url``, the database."""
    url = settings["url"]
    source: Any = PostgresCdcSource(url, {"public.payments": _PAYMENTS}, SLOT)
    payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments").uid("payments")
    balances = payments.key_by(lambda row: row.account).process(Balances(), _BALANCES).name("balances").uid("balances")
    for stream, table, type_info in (
        (balances, "balances", _BALANCES),
        (balances.get_side_output(_OVERDRAWN), "alerts", _ALERTS),
    ):
        sink: Any = PostgresSink(url, f"public.{table}", type_info, primary_key=["account"])
        stream.sink_to(sink).name(f"{table}-table").uid(f"{table}-table")
