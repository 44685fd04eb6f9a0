"""A stream of pairs made of what the elements do not have."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.datastream import DataStream
from holdfast.table import KStream


@dataclass(frozen=True)
class Order:
    shop: str
    amount: float


def of_orders(orders: DataStream[Order]) -> None:
    KStream.of(orders, lambda order: order.merchant)  # "Order" has no attribute "merchant"
    KStream.of(orders, len)  # has incompatible type "Callable[[Sized], int]"
    by_shop = KStream.of(orders, lambda order: order.shop)
    totals = by_shop.group_by_key().count()
    by_shop.join(totals, lambda order, count: order.amount + len(count))  # Argument 1 to "len" has incompatible type "int"
    by_amount = KStream.of(orders, lambda order: order.amount)
    by_amount.join(totals, lambda order, count: count)  # has incompatible type "KTable[str, int]"
