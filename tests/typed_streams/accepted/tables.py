"""A stream of pairs knows its keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import reveal_type

from holdfast.datastream import DataStream
from holdfast.table import KStream


@dataclass(frozen=True)
class Order:
    shop: str
    amount: float


def of_orders(orders: DataStream[Order]) -> None:
    by_shop = KStream.of(orders, lambda order: order.shop)
    reveal_type(by_shop)  # KStream[str, Order]
    reveal_type(by_shop.to_data_stream())  # DataStream[tuple[str, Order]]
    amounts = KStream.of(orders, lambda order: order.shop, lambda order: order.amount)
    reveal_type(amounts)  # KStream[str, float]
    reveal_type(amounts.group_by_key().count())  # KTable[str, int]
    totals = amounts.group_by_key().reduce(lambda a, b: a + b)
    reveal_type(by_shop.join(totals, lambda order, total: order.amount / total))  # KStream[str, float]
