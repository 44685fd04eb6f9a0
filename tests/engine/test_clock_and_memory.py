"""A wall clock that jumps, and epochs that do not fit into memory."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.runtime.driver import coordinator
from holdfast.runtime.records.spill import FrameStore
from holdfast.runtime.task import task_input

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource
from .programs import records, windows, windows_model

SECOND = 1000
START = 1_700_000_000_000


class Alarm(KeyedProcessFunction):
    """Each element sets a timer ten seconds ahead; tells when it was set, when it was due and when it fired."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        timers.register_processing_time_timer(now + 10 * SECOND)
        yield "set", now, now + 10 * SECOND, now

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "fired", None, timestamp, ctx.timer_service().current_processing_time()


@pytest.mark.parametrize("jumps", [[1], [-3600, 2, 3600, 1], [20, -20], [0, -1, 5]], ids=str)
@pytest.mark.parametrize("crashes", [[], [("after complete", 9)]], ids=["one driver", "two drivers"])
def test_timers_fire_once_and_never_early_however_the_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jumps: list[int], crashes: list[Any]
) -> None:
    now = itertools.accumulate(itertools.cycle(jumps), initial=START // SECOND)
    monkeypatch.setattr(coordinator.time, "time_ns", lambda: next(now) * 10**9)

    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource({"a": list(range(40))}), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda _: "k").process(Alarm()).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    lab = Lab(build, tmp_path, budget=1)
    lab.run(crashes)
    lab.close()
    told = LEDGERS["out"].values
    fired = [(due, at) for what, _, due, at in told if what == "fired"]
    due_when_set = Counter({due: 1 for what, _, due, _ in told if what == "set"})
    assert all(at >= due for due, at in fired), "a timer fired before it was due"
    assert not Counter(due for due, _ in fired) - due_when_set, "a timer fired twice, or one that nobody set"
    if not crashes:
        times = [at for _, _, _, at in told]
        assert times == sorted(times), "processing time went back within a driver"
        missed = set(due_when_set) - {due for due, _ in fired}
        assert all(due > max(times) for due in missed), "a timer that was due did not fire"


def test_an_epoch_whose_frames_do_not_fit_into_memory_waits_on_disk_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_input, "_FRAME_MEMORY", 500)
    data = records(7, 400)
    LEDGERS["out"].committed.clear()
    lab = Lab(windows(data), tmp_path, budget=400, config={"holdfast.frame.records": "16"})
    on_disk = []
    close = FrameStore.close

    def closing(store: FrameStore) -> None:
        on_disk.append(store._end)
        close(store)

    monkeypatch.setattr(FrameStore, "close", closing)
    lab.run([])
    lab.close()
    assert max(on_disk) > 1000
    assert Counter(map(repr, LEDGERS["out"].values)) == windows_model(data)
