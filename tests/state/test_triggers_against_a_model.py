"""Assigners, triggers, evictors and functions in all combinations against plain Python, with checkpoints and restarts."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from effort import examples
from holdfast.common import Time
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CumulativeEventTimeWindows,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
)
from holdfast.state.cells import entries

from .window_harness import Operated

END = 2**63 - 1
ms = Time.milliseconds


class Tell(ProcessWindowFunction):
    """Key, window, and the values that the window holds."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        values = [each[1] for each in elements]
        yield key, span(window), sorted(values if isinstance(values[0], int) else sum(values, ()))


def span(window: Any) -> Any:
    return (window.start, window.end) if hasattr(window, "start") else getattr(window, "id", None)


class Gather(AggregateFunction):
    def create_accumulator(self) -> Any:
        return ()

    def add(self, value: Any, accumulator: Any) -> Any:
        return (*accumulator, value[1])

    def get_result(self, accumulator: Any) -> Any:
        return "", accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


# ---- what the program says, and what the model does instead -----------------------------------------------------------


def tumbling(ts: int, now: int) -> list[tuple[int, int]]:
    start = (ts - 3) // 20 * 20 + 3
    return [(start, start + 20)]


def sliding(ts: int, now: int) -> list[tuple[int, int]]:
    return [(start, start + 30) for start in range(-300, 2000, 10) if start <= ts < start + 30]


def sliding_now(ts: int, now: int) -> list[tuple[int, int]]:
    return sliding(now, now)


def cumulative(ts: int, now: int) -> list[tuple[int, int]]:
    start = ts // 30 * 30
    return [(start, start + size) for size in (10, 20, 30) if ts < start + size]


def session(ts: int, now: int) -> list[tuple[int, int]]:
    return [(ts, ts + 8)]


def session_now(ts: int, now: int) -> list[tuple[int, int]]:
    return [(now, now + 8)]


def everything(ts: int, now: int) -> list[None]:
    return [None]


ASSIGNERS: dict[str, tuple[Any, Any, bool]] = {
    "tumbling": (TumblingEventTimeWindows.of(ms(20), ms(3)), tumbling, True),
    "sliding": (SlidingEventTimeWindows.of(ms(30), ms(10)), sliding, True),
    "sliding now": (SlidingProcessingTimeWindows.of(ms(30), ms(10)), sliding_now, False),
    "cumulative": (CumulativeEventTimeWindows.of(ms(30), ms(10)), cumulative, True),
    "session": (EventTimeSessionWindows.with_gap(ms(8)), session, True),
    "dynamic": (EventTimeSessionWindows.with_dynamic_gap(lambda element: 8), session, True),
    "session now": (ProcessingTimeSessionWindows.with_gap(ms(8)), session_now, False),
    "global": (GlobalWindows.create(), everything, False),
    "count": (CountTumblingWindowAssigner.of(3), None, False),
    "count sliding": (CountSlidingWindowAssigner.of(4, 2), None, False),
}
MERGING = ("session", "dynamic", "session now")
TRIGGERS: dict[str, Any] = {
    "default": None,
    "count": CountTrigger.of(2),
    "purging": PurgingTrigger.of(CountTrigger.of(2)),
    "continuous": ContinuousEventTimeTrigger.of(ms(7)),
    "continuous now": ContinuousProcessingTimeTrigger.of(ms(7)),
    "delta": DeltaTrigger.of(2, lambda old, new: new[1] - old[1]),
    "purged end": PurgingTrigger.of(EventTimeTrigger()),
}
EVICTORS: dict[str, Any] = {"none": None, "count": CountEvictor.of(2), "time": TimeEvictor.of(ms(5), True)}


class Held:
    """One window of a key."""

    def __init__(self) -> None:
        self.elements: list[tuple[int, int]] = []
        self.count = 0
        self.last: int | None = None
        self.next: int | None = None
        self.timers: set[tuple[str, int]] = set()


class Model:
    """Flink's window operator, element by element."""

    def __init__(self, assigner: str, trigger: str, evictor: str, lateness: int) -> None:
        _, self.assign, self.event = ASSIGNERS[assigner]
        self.assigner, self.kind, self.evictor, self.lateness = assigner, trigger, evictor, lateness
        self.windows: dict[Any, dict[Any, Held]] = {}
        self.counts: dict[Any, int] = {}
        self.watermark, self.now = MIN_TIMESTAMP, 0
        self.results: list[Any] = []
        self.late: list[Any] = []

    def cleanup(self, window: Any) -> int:
        if not isinstance(window, tuple):
            return END
        return window[1] - 1 + (self.lateness if self.event else 0)

    def element(self, key: Any, value: int, ts: int) -> None:
        taken = False
        for window in self.windows_of(key, ts):
            if self.assigner in MERGING:
                window = self.merged(key, window)
            if self.event and self.cleanup(window) <= self.watermark:
                continue
            taken = True
            held = self.windows.setdefault(key, {}).setdefault(window, Held())
            held.elements.append((value, ts))
            self.act(key, window, held, self.on_element(held, window, value, ts), ts)
            if self.cleanup(window) < END:
                held.timers.add(("event" if self.event else "now", self.cleanup(window)))
        if not taken and self.event and ts + self.lateness <= self.watermark:
            self.late.append((key, value, ts))

    def windows_of(self, key: Any, ts: int) -> list[Any]:
        if self.assign is not None:
            return list(self.assign(ts, self.now))
        size, slide = (3, 3) if self.assigner == "count" else (4, 2)
        number = self.counts.get(key, 0)
        self.counts[key] = number + 1
        return [n for n in range(100) if n * slide <= number < n * slide + size]

    def merged(self, key: Any, window: Any) -> Any:
        known = self.windows.get(key, {})
        touched = sorted(each for each in known if each[0] <= window[1] and each[1] >= window[0])
        cover = min([window[0], *(each[0] for each in touched)]), max([window[1], *(each[1] for each in touched)])
        if touched and touched != [cover]:
            held = Held()
            for each in touched:
                other = known.pop(each)
                held.elements += other.elements
                held.count += other.count
                held.next = min((n for n in (held.next, other.next) if n is not None), default=None)
            if self.kind in ("continuous", "continuous now") and held.next is not None:
                held.timers.add(("event" if self.kind == "continuous" else "now", held.next))
            if self.ends() == "event" and cover[1] - 1 > self.watermark:
                held.timers.add(("event", cover[1] - 1))
            if self.ends() == "now" and cover[1] - 1 > self.now:
                held.timers.add(("now", cover[1] - 1))
            known[cover] = held
        return cover

    def ends(self) -> str:
        """The time whose passing of a window's end fires it."""
        if self.kind in ("purged end", "continuous"):
            return "event"
        if self.kind == "default":
            return {"count": "", "count sliding": "", "global": ""}.get(self.assigner, "event" if self.event else "now")
        return ""

    def on_element(self, held: Held, window: Any, value: int, ts: int) -> str:
        kind, last = self.kind, window[1] - 1 if isinstance(window, tuple) else END
        if self.ends() == "event":
            if last <= self.watermark:
                return "fire and purge" if kind == "purged end" else "fire"
            held.timers.add(("event", last))
        if self.ends() == "now":
            held.timers.add(("now", last))
        if kind in ("count", "purging") or (self.assign is None and kind == "default"):
            held.count += 1
            size = {"count": 3, "count sliding": 4}[self.assigner] if kind == "default" else 2
            if held.count >= size:
                held.count = 0
                return "fire" if kind == "count" else "fire and purge"
        if kind == "delta":
            if held.last is None:
                held.last = value
            elif value - held.last > 2:
                held.last = value
                return "fire"
        if kind in ("continuous", "continuous now") and held.next is None:
            base = ts if kind == "continuous" else self.now
            held.next = min(base - base % 7 + 7, last)
            held.timers.add(("event" if kind == "continuous" else "now", held.next))
        return ""

    def on_timer(self, held: Held, window: Any, domain: str, time: int) -> str:
        last = window[1] - 1 if isinstance(window, tuple) else END
        if self.ends() == domain and time == last:
            return "fire and purge" if self.kind == "purged end" else "fire"
        if self.kind == ("continuous" if domain == "event" else "continuous now") and held.next == time:
            held.next = min(time + 7, last) if time < last else None
            if held.next is not None:
                held.timers.add((domain, held.next))
            return "fire"
        return ""

    def act(self, key: Any, window: Any, held: Held, what: str, at: int) -> None:
        if "fire" in what and held.elements:
            if self.evictor == "count":
                held.elements = held.elements[-2:]
            stamp = window[1] - 1 if isinstance(window, tuple) else at
            self.results.append(((key, window, sorted(value for value, _ in held.elements)), stamp))
            if self.evictor == "time":
                latest = max(ts for _, ts in held.elements)
                held.elements = [(value, ts) for value, ts in held.elements if ts > latest - 5]
        if "purge" in what:
            held.elements = []

    def fire(self, domain: str, until: int) -> None:
        while True:
            due = [
                (time, repr(key), key, window)
                for key, windows in self.windows.items()
                for window, held in windows.items()
                for where, time in held.timers
                if where == domain and time <= until
            ]
            if not due:
                return
            time, _, key, window = min(due, key=lambda each: each[:2])
            held = self.windows[key][window]
            held.timers.discard((domain, time))
            self.act(key, window, held, self.on_timer(held, window, domain, time), time)
            if (domain == "event") == self.event and time == self.cleanup(window):
                del self.windows[key][window]

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        self.fire("event", watermark)

    def tick(self, now: int) -> None:
        self.now = now
        self.fire("now", now - 1)


class TriggerMachine(RuleBasedStateMachine):
    kind = "hashmap"

    def __init__(self) -> None:
        super().__init__()
        self.windows: Operated | None = None

    @initialize(
        assigner=st.sampled_from(sorted(ASSIGNERS)),
        trigger=st.sampled_from(sorted(TRIGGERS)),
        evictor=st.sampled_from(["none", "none", "count", "time"]),
        lateness=st.sampled_from([0, 0, 9, 200]),
        content=st.sampled_from(["reduce", "aggregate", "process"]),
        cache=st.sampled_from(["1kb", "256mb"]),
        in_row=st.sampled_from([0, 2, 256]),
    )
    def begin(self, assigner: str, trigger: str, evictor: str, lateness: int, content: str, cache: str, in_row: int) -> None:
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(entries, "MOST_IN_ROW", in_row)
        self.limits.setattr(entries, "_CHUNK", 2)
        windows, _, event = ASSIGNERS[assigner]
        if trigger == "delta" and assigner in MERGING:
            trigger = "count"
        if trigger == "default" and assigner == "global":
            trigger = "purging"
        lateness = lateness if event else 0

        def build(keyed: Any) -> Any:
            stream = keyed.window(windows).allowed_lateness(lateness).side_output_late_data(OutputTag("late"))
            if TRIGGERS[trigger] is not None:
                stream.trigger(TRIGGERS[trigger])
            if EVICTORS[evictor] is not None:
                stream.evictor(EVICTORS[evictor])
            if content == "reduce":
                return stream.reduce(lambda a, b: (a[0], values_of(a) + values_of(b), a[2]), Tell())
            return stream.aggregate(Gather(), Tell()) if content == "aggregate" else stream.process(Tell())

        self.windows = Operated(build, self.kind, **{"state.backend.cache.size": cache})
        self.model = Model(assigner, trigger, evictor, lateness)
        self.committed = [copy.deepcopy(self.model)]

    def teardown(self) -> None:
        if self.windows is not None:
            self.limits.undo()
            self.windows.close()
            shutil.rmtree(self.windows.root)

    def compare(self, found: list[Any]) -> None:
        assert self.windows is not None
        results, self.model.results = self.model.results, []
        assert Counter(map(repr, found)) == Counter(map(repr, results))
        late, self.model.late = self.model.late, []
        assert Counter(each for each, _ in self.windows.late) == Counter(late)
        self.windows.late.clear()

    @rule(frame=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(-45, 45)), min_size=1, max_size=6))
    def process_a_frame(self, frame: list[tuple[str, int, int]]) -> None:
        assert self.windows is not None
        base = max(self.model.watermark, 0)
        elements = [(key, value, base + distance) for key, value, distance in frame]
        for element in elements:
            self.model.element(*element)
        self.compare(self.windows.frame(elements))

    @rule(by=st.sampled_from([1, 4, 20, 60]))
    def advance_event_time(self, by: int) -> None:
        assert self.windows is not None
        time = max(self.model.watermark, 0) + by
        self.model.advance(time)
        self.compare(self.windows.watermark(time))

    @rule(by=st.sampled_from([1, 4, 20]))
    def advance_processing_time(self, by: int) -> None:
        assert self.windows is not None
        self.model.tick(self.model.now + by)
        self.compare(self.windows.processing_time(self.model.now))

    @rule()
    def free_memory(self) -> None:
        assert self.windows is not None
        self.windows.backend.bound()

    @rule()
    def complete_a_checkpoint(self) -> None:
        assert self.windows is not None
        self.windows.checkpoint()
        self.committed.append(copy.deepcopy(self.model))

    @rule(back=st.sampled_from([0, 0, 1]), elsewhere=st.booleans())
    def fail_and_restart(self, back: int, elsewhere: bool) -> None:
        assert self.windows is not None
        number = max(0, len(self.committed) - 1 - back)
        del self.committed[number + 1 :]
        self.model = copy.deepcopy(self.committed[-1])
        clock = self.windows.clock
        clock.watermark, clock.processing_time = self.model.watermark, self.model.now
        self.windows.restart(number, elsewhere=elsewhere)


def values_of(element: Any) -> Any:
    return (element[1],) if isinstance(element[1], int) else element[1]


class RocksDBMachine(TriggerMachine):
    kind = "rocksdb"


LIMITS = settings(
    deadline=None,
    max_examples=examples(60),
    stateful_step_count=25,
    phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than to look at it
    print_blob=True,
)
TriggerMachine.TestCase.settings = LIMITS
RocksDBMachine.TestCase.settings = settings(LIMITS, max_examples=examples(5))


class TestHeap(TriggerMachine.TestCase):
    pass


class TestRocksDB(RocksDBMachine.TestCase):
    pass


def test_all_rows_and_timers_go_with_the_windows() -> None:
    for name, (windows, _, event) in ASSIGNERS.items():
        if event:
            harness = Operated(lambda keyed, windows=windows: keyed.window(windows).process(Tell()))
            harness.frame([("a", 1, 5), ("b", 2, 9), ("a", 3, 7), ("a", 3, 22)])
            harness.checkpoint()
            harness.frame([("a", 1, 40)])
            harness.watermark(1000)
            harness.checkpoint()
            assert (harness.rows(), harness.timers()) == (0, 0), name
            harness.close()
            shutil.rmtree(harness.root)


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("name", ["sliding", "session", "cumulative", "global"])
def test_a_window_of_many_elements_keeps_them_all_through_restarts(name: str, kind: str) -> None:
    windows, windows_of, _ = ASSIGNERS[name]

    def build(keyed: Any) -> Any:
        stream = keyed.window(windows)
        return (stream.trigger(CountTrigger.of(1500)) if name == "global" else stream).process(Tell())

    harness = Operated(build, kind)
    found = []
    expected: Counter[Any] = Counter()
    for part in range(5):
        elements = [("a", part * 300 + n, n * 5 // 300) for n in range(300)]
        for _, _, ts in elements:
            expected.update(windows_of(ts, 0))
        found += harness.frame(elements)
        harness.checkpoint()
        harness.restart(elsewhere=part % 2 == 0)
    found += harness.watermark(1000)
    sizes = {window: len(values) for (_, window, values), _ in found}
    assert sizes == ({(0, 12): 1500} if name == "session" else dict(expected))
    harness.close()
    shutil.rmtree(harness.root)
