"""A watermark strategy for other elements."""

from __future__ import annotations

from holdfast.common import WatermarkStrategy
from holdfast.common.watermark_strategy import TimestampAssigner
from holdfast.datastream import DataStream


class Order:
    at_ms: int


class OrderTime(TimestampAssigner[Order]):
    def extract_timestamp(self, value: Order, record_timestamp: int) -> int:
        return value.at_ms


def of(orders: DataStream[Order], numbers: DataStream[int]) -> None:
    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    of_orders = monotonous.with_timestamp_assigner(OrderTime())
    orders.assign_timestamps_and_watermarks(of_orders)
    numbers.assign_timestamps_and_watermarks(of_orders)  # expected "WatermarkStrategy[int]"
    at = monotonous.with_timestamp_assigner
    orders.assign_timestamps_and_watermarks(at(lambda order, stamp: order.at))  # "Order" has no attribute "at"
