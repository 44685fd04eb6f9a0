"""The workloads on PyFlink's DataStream API: WORKLOAD BACKEND DATA TALLIES CHECKPOINTS [thread|process].

Java (a SQL table) reads the CSV and creates the watermarks: PyFlink's fastest source.
"""

import os
import sys

from pyflink.common import Configuration, Time, Types
from pyflink.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors import Sink
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

WORKLOAD, BACKEND, DATA, TALLIES, CHECKPOINTS = sys.argv[1:6]
MODE = sys.argv[6] if len(sys.argv) > 6 else "thread"
ROW = Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()])


def new_tally(directory):
    from tally import Tally

    return Tally(directory)


class Fraud(KeyedProcessFunction):
    def __init__(self, tallies):
        self.tallies = tallies

    def open(self, runtime_context):
        self.period = runtime_context.get_state(ValueStateDescriptor("period", Types.TUPLE([Types.LONG(), Types.LONG()])))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))
        self.tally = new_tally(self.tallies)

    def process_element(self, value, ctx):
        self.tally.event()
        user, amount, timestamp = value[0], value[1], value[2]
        period = self.period.value()
        if period is None or timestamp >= period[1]:
            count, deadline, amounts = 0, timestamp + 600_000, []
            ctx.timer_service().register_event_time_timer(deadline)
            self.tally.add("periods")
        else:
            count, deadline = period
            amounts = list(self.last.get())
        count += 1
        amounts.append(amount)
        if len(amounts) > 10:
            del amounts[0]
        self.period.update((count, deadline))
        self.last.update(amounts)
        if count >= 8:
            total = sum(amounts)
            self.tally.add("alerts")
            self.tally.add("alert_sum", total)
            yield user, count, total

    def on_timer(self, timestamp, ctx):
        self.tally.now()
        period = self.period.value()
        if period is not None and period[1] == timestamp:
            self.period.clear()
            self.last.clear()
        yield from ()

    def close(self):
        self.tally.write()


class Pass(KeyedProcessFunction):
    def __init__(self, tallies):
        self.tallies = tallies

    def open(self, runtime_context):
        self.tally = new_tally(self.tallies)

    def process_element(self, value, ctx):
        self.tally.event()
        yield from ()

    def close(self):
        self.tally.write()


class SumAndCount(AggregateFunction):
    fresh = True

    def create_accumulator(self):
        return 0.0, 0

    def add(self, value, accumulator):
        if self.fresh:
            self.fresh = False
            import tally

            tally.begin()
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Emit(ProcessWindowFunction):
    def __init__(self, tallies):
        self.tallies = tallies

    def open(self, runtime_context):
        self.tally = new_tally(self.tallies)

    def process(self, key, context, elements):
        total, count = next(iter(elements))
        self.tally.now()
        self.tally.add("windows")
        self.tally.add("total", total)
        self.tally.add("n", count)
        yield key, context.window().start, total, count

    def clear(self, context):
        pass

    def close(self):
        self.tally.write()


settings = Configuration()
for key, value in {
    "python.executable": sys.executable,
    "python.client.executable": sys.executable,
    "python.execution-mode": MODE,
    "state.backend.type": BACKEND,
    "execution.checkpointing.interval": "10s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.dir": "file://" + CHECKPOINTS,
    "execution.checkpointing.incremental": "true",
    "taskmanager.memory.managed.size": "2g",
    "restart-strategy.type": "none",
}.items():
    settings.set_string(key, value)
env = StreamExecutionEnvironment.get_execution_environment(settings)
env.set_parallelism(2)
env.add_python_file(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tally.py"))
tables = StreamTableEnvironment.create(env)
tables.execute_sql(
    f"""
    CREATE TABLE events (
        user_id BIGINT, amount DOUBLE, at_ms BIGINT,
        event_time AS TO_TIMESTAMP_LTZ(at_ms, 3), WATERMARK FOR event_time AS event_time - INTERVAL '5' SECOND
    ) WITH (
        'connector' = 'filesystem', 'path' = 'file://{DATA}', 'source.path.regex-pattern' = '.*[.]csv', 'format' = 'csv'
    )"""
)
by_user = tables.to_data_stream(tables.from_path("events")).key_by(lambda event: event[0], Types.LONG())
if WORKLOAD == "fraud":
    results = by_user.process(Fraud(TALLIES), ROW)
elif WORKLOAD == "window":
    results = by_user.window(TumblingEventTimeWindows.of(Time.minutes(1))).aggregate(
        SumAndCount(),
        Emit(TALLIES),
        accumulator_type=Types.TUPLE([Types.DOUBLE(), Types.LONG()]),
        output_type=Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.LONG()]),
    )
else:
    results = by_user.process(Pass(TALLIES), Types.LONG())
# The Python API has no discarding sink; this is Java's.
results.sink_to(Sink(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
env.execute(WORKLOAD)
