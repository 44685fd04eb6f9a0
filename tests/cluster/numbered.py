"""The job of the cluster's tests: numbered records, counted by key with state and timers, and the model that judges it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink, JsonLinesEncoder
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor

KEYS = 7
SPAN = 500


class Counting(KeyedProcessFunction):
    """Numbers each key's records, and tells at the end of each span of event time how many there were in it."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.spans = runtime_context.get_map_state(MapStateDescriptor("spans", Types.LONG(), Types.LONG()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        span = value // SPAN
        self.spans.put(span, (self.spans.get(span) or 0) + 1)
        ctx.timer_service().register_event_time_timer((span + 1) * SPAN)
        yield ["record", ctx.get_current_key(), value, count]

    def on_timer(self, timestamp, ctx):
        span = timestamp // SPAN - 1
        yield ["span", ctx.get_current_key(), span, self.spans.get(span)]
        self.spans.remove(span)


def build(
    env: StreamExecutionEnvironment,
    records: int,
    output: str,
    before: Callable[[int], int] = lambda value: value,
    after: Callable[[list[Any]], list[Any]] = lambda entry: entry,
) -> None:
    """Add the job: ``before`` sees every record in the source's task, ``after`` every result in the sink's."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
    numbers = env.from_source(NumberSequenceSource(0, records - 1), strategy, "numbers").uid("numbers")
    counted = numbers.map(before).key_by(lambda value: value % KEYS).process(Counting()).uid("counting")
    flat = BucketAssigner.base_path_bucket_assigner()
    counted.map(after).sink_to(FileSink(output, JsonLinesEncoder(), bucket_assigner=flat)).uid("output")


def judge(records: int, output: str | os.PathLike[str]) -> None:
    """Compare the job's files with what a plain loop says."""
    found = Counter(
        json.dumps(entry) for path in Path(output).glob("part-*") for entry in map(json.loads, path.read_text().splitlines())
    )
    entries = [json.loads(entry) for entry in found.elements()]
    twice = [entry for entry, times in found.items() if times > 1]
    assert not twice, f"{len(twice)} results more than once, as {twice[:5]}"
    values = sorted(value for kind, _, value, _ in entries if kind == "record")
    assert values == list(range(records)), f"{records - len(values)} records are missing"
    for key in range(KEYS):
        # Which of two records that were read by different subtasks came first is open; that each was counted is not.
        counts = sorted(count for kind, k, _, count in entries if kind == "record" and k == key)
        assert counts == list(range(1, len(range(key, records, KEYS)) + 1)), f"key {key} was not counted one by one"
    spans: Counter[tuple[int, int]] = Counter((value % KEYS, value // SPAN) for value in range(records))
    assert {(k, span): count for kind, k, span, count in entries if kind == "span"} == dict(spans)


def environment(settings: dict[str, str], spark: Any = None) -> StreamExecutionEnvironment:
    """An environment with these settings, two subtasks to an operator."""
    from holdfast.common import Configuration

    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings), spark)
    return env.set_parallelism(2)
