"""Totals of payments per merchant and minute, from files of JSON lines, computed on whole columns."""

import os

import pyarrow.compute as pc

from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.formats.json import JsonRowDeserializationSchema
from holdfast.datastream.operations.batches import Avg, Count, Max, Sum, col
from holdfast.datastream.window import TumblingEventTimeWindows

PAYMENTS = os.environ.get("PAYMENTS", "payments")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))

payment = Types.ROW_NAMED(["merchant_id", "amount", "ts_ms"], [Types.STRING(), Types.LONG(), Types.LONG()])
schema = JsonRowDeserializationSchema.builder().type_info(payment).build()
source = FileSource.for_record_stream_format(StreamFormat.json_lines(schema), PAYMENTS).build()
in_time_order = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))


def is_payment(batch):
    """Refunds have negative amounts."""
    return pc.greater(batch.column("amount"), 0)


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(10_000)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

(
    env.from_source(source, in_time_order.with_timestamp_assigner(col("ts_ms")), "payments", payment)
    .filter_batch(is_payment)
    .key_by(col("merchant_id"))
    .window(TumblingEventTimeWindows.of(Time.minutes(1)))
    .agg(payments=Count(), total=Sum("amount"), mean=Avg("amount"), largest=Max("amount"))
    .map(lambda row: f"{row.merchant_id}, minute {row.window_start // 60_000}: {row.payments} payments, {row.total} in all")
    .print()
)

env.execute("totals-by-batches")
