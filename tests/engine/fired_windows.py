"""A program whose windows have fired when its driver dies, and what they have given: also of jobs of an older release.

``python -m tests.engine.fired_windows`` stores the checkpoints of such jobs; what is in ``golden`` is never stored again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

GOLDEN = Path(__file__).parent / "golden"
KEYS = ("a", "b", "c", "d", "e")
STAMPS = [(key, at + number) for at in range(1_000, 40_000, 1_000) for number, key in enumerate(KEYS)]
FORMS = {
    f"fired_windows_{where}_{parallelism}": (where, parallelism)
    for where in ("generator", "source")
    for parallelism in (1, 2)
}
"""By name: where watermarks come from, and at which parallelism the job was stored."""


class Told(ProcessWindowFunction):
    """The elements of a window, and how many of its key have fired by then."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        fired = context.global_state().get_state(ValueStateDescriptor("fired", Types.LONG()))
        fired.update((fired.value() or 0) + 1)
        yield key, context.window().start, context.window().end, len(list(elements)), fired.value()


def build(where: str) -> Any:
    """Sliding windows, and tumbling ones that stay for late elements."""
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])

    def program(env: StreamExecutionEnvironment) -> None:
        source = SplitSource({"s": STAMPS}, 10)
        if where == "source":
            stream = env.from_source(source, times, "s").uid("s")
        else:
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "s").uid("s")
            stream = stream.assign_timestamps_and_watermarks(times).uid("times")
        keyed = stream.key_by(lambda value: value[0], Types.STRING())
        sliding = keyed.window(SlidingEventTimeWindows.of(Time.seconds(8), Time.seconds(2))).process(Told()).uid("sliding")
        late = keyed.window(TumblingEventTimeWindows.of(Time.seconds(4))).allowed_lateness(10_000)
        sliding.union(late.process(Told()).uid("late")).sink_to(LedgerSink("out")).uid("out")

    return program


class StoredJob(msgspec.Struct):
    """The checkpoint storage of a job whose driver has died, and what the job has given by then."""

    files: dict[str, bytes]
    results: list[tuple[str, int, int, int, int]]


def store(name: str, directory: Path) -> None:
    """Store a job of today's form."""
    where, parallelism = FORMS[name]
    LEDGERS["out"].committed.clear()
    job = Lab(build(where), directory, parallelism=parallelism, budget=10)
    assert not job._run_until("after commit", 10)
    files = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in (directory / "checkpoints").rglob("*")
        if path.is_file()
    }
    stored = msgspec.msgpack.encode(StoredJob(files, LEDGERS["out"].values))
    (GOLDEN / f"{name}.zst").write_bytes(zstandard.compress(stored, 19))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        store(name, Path(sys.argv[1]) / name)
