"""The workloads on Bytewax with two worker processes; settings come from the environment (see `benchmarks.peers.run`).

Bytewax has no event-time timers: a user's period ends with the next event after its deadline, or with the input, so this
job does less work than the others.
"""

import os
from datetime import datetime, timedelta, timezone

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulLogic, windowing
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from tally import Tally

WORKLOAD = os.environ["BENCH_WORKLOAD"]
DATA = os.environ["BENCH_DATA"]
tally = Tally(os.environ["BENCH_TALLIES"])


class Lines(StatefulSourcePartition):
    """One file, a thousand lines at a time."""

    def __init__(self, path, position):
        self.file = open(path)  # noqa: SIM115  (as long as the partition)
        self.file.seek(position or 0)

    def next_batch(self):
        batch = []
        for _ in range(1000):
            line = self.file.readline()
            if not line:
                break
            user, amount, timestamp = line.split(",")
            batch.append((user, (float(amount), int(timestamp))))
        if not batch:
            raise StopIteration
        return batch

    def snapshot(self):
        return self.file.tell()


class Csv(FixedPartitionedSource):
    """Both files."""

    def list_parts(self):
        return ["part-0", "part-1"]

    def build_part(self, step_id, for_part, resume_state):
        return Lines(f"{DATA}/{for_part}.csv", resume_state)


class Period(StatefulLogic):
    """A user's count, deadline and last amounts."""

    def __init__(self, resumed):
        self.count: int
        self.deadline: int
        self.amounts: list[float]
        self.count, self.deadline, self.amounts = resumed or (0, 0, [])

    def on_item(self, value):
        tally.event()
        amount, timestamp = value
        if timestamp >= self.deadline:
            self.count, self.deadline, self.amounts = 0, timestamp + 600_000, []
            tally.add("periods")
        self.count += 1
        self.amounts.append(amount)
        if len(self.amounts) > 10:
            del self.amounts[0]
        if self.count < 8:
            return (), StatefulLogic.RETAIN
        total = sum(self.amounts)
        tally.add("alerts")
        tally.add("alert_sum", total)
        return [(self.count, total)], StatefulLogic.RETAIN

    def on_eof(self):
        return (), StatefulLogic.DISCARD

    def snapshot(self):
        return self.count, self.deadline, list(self.amounts)


class CountOut(StatelessSinkPartition):
    """Counts the windows' results, and discards them."""

    def write_batch(self, items):
        if WORKLOAD != "window":
            return
        for _, (_, (total, count)) in items:
            tally.now()
            tally.add("windows")
            tally.add("total", total)
            tally.add("n", count)

    def close(self):
        tally.write()


class Out(DynamicSink):
    """A counting sink in every worker."""

    def build(self, step_id, worker_index, worker_count):
        return CountOut()


def event_time(value):
    if tally.first is None:
        tally.now()
    return datetime.fromtimestamp(value[1] / 1000, timezone.utc)


def nothing(item):
    tally.event()
    return ()


flow = Dataflow("bench")
events = op.input("csv", flow, Csv())
if WORKLOAD == "fraud":
    results = op.stateful("fraud", events, Period)
elif WORKLOAD == "window":
    results = windowing.fold_window(
        "window",
        events,
        windowing.EventClock(event_time, wait_for_system_duration=timedelta(seconds=5)),
        windowing.TumblingWindower(align_to=datetime(2023, 11, 14, tzinfo=timezone.utc), length=timedelta(minutes=1)),
        builder=lambda: (0.0, 0),
        folder=lambda folded, value: (folded[0] + value[0], folded[1] + 1),
        merger=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    ).down
else:
    results = op.flat_map("nothing", op.redistribute("exchange", events), nothing)
op.output("out", results, Out())
