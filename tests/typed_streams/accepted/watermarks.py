"""A watermark strategy knows the elements whose time it takes."""

from __future__ import annotations

from typing_extensions import reveal_type

from holdfast.common import Duration, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from holdfast.common.watermark_strategy import TimestampAssigner
from holdfast.datastream import DataStream


class Order:
    at_ms: int


class Large(Order):
    pass


class OrderTime(TimestampAssigner[Order]):
    def extract_timestamp(self, value: Order, record_timestamp: int) -> int:
        return value.at_ms


class AtEnds(WatermarkGenerator[Order]):
    def on_event(self, event: Order, timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event.at_ms)


def of_orders(orders: DataStream[Order], large: DataStream[Large]) -> None:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    reveal_type(bounded.with_timestamp_assigner(OrderTime()))  # WatermarkStrategy[Order]
    reveal_type(WatermarkStrategy.for_generator(AtEnds))  # WatermarkStrategy[Order]
    reveal_type(WatermarkStrategy.for_generator(AtEnds).with_timestamp_assigner(OrderTime()))  # WatermarkStrategy[Order]
    orders.assign_timestamps_and_watermarks(bounded)
    large.assign_timestamps_and_watermarks(
        bounded.with_timestamp_assigner(OrderTime()).with_idleness(Duration.of_seconds(1))
    )
    stamped = orders.assign_timestamps_and_watermarks(bounded.with_timestamp_assigner(lambda order, stamp: order.at_ms))
    reveal_type(stamped)  # DataStream[Order]
    alone = bounded.with_timestamp_assigner(lambda order, stamp: order.at_ms)
    orders.assign_timestamps_and_watermarks(alone)
