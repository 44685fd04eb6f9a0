"""Windows whose parameters have changed since the checkpoint finish as they were begun; new elements go by the new ones."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import load
from holdfast.checkpoint.paths import JobPaths
from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    ProcessWindowFunction,
    ValueStateDescriptor,
)
from holdfast.datastream.window import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.testing import OneInputTestHarness

from .inprocess import LEDGERS, LedgerSink
from .small_programs import timed

Spans = list[tuple[int, int]]
END = 10**6
ms = Time.milliseconds


class Spell(ProcessWindowFunction):
    """A window's span with its elements, in any order."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        window = context.window()
        yield key, window.start, window.end, sorted(each[1] for each in elements)


class WithClear(Spell):
    def clear(self, context: Any) -> None:
        pass


class Gather(AggregateFunction):
    """All elements, as a tuple of their numbers."""

    def create_accumulator(self) -> Any:
        return ()

    def add(self, value: Any, accumulator: Any) -> Any:
        return (*accumulator, value[1])

    def get_result(self, accumulator: Any) -> Any:
        return ((None, number) for number in accumulator)


class GatherAndMerge(Gather):
    def merge(self, a: Any, b: Any) -> Any:
        return a + b


class Told(Spell):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        (numbers,) = elements
        return super().process(key, context, list(numbers))


def joined(a: Any, b: Any) -> Any:
    return a[0], 0, (*(a[2] if len(a) > 2 else (a[1],)), *(b[2] if len(b) > 2 else (b[1],)))


class ToldOfReduced(Spell):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        (one,) = elements
        numbers = one[2] if len(one) > 2 else (one[1],)
        return super().process(key, context, [(key, number) for number in numbers])


CONTENTS: dict[str, Callable[[Any], Any]] = {
    "elements": lambda windows: windows.process(Spell()),
    "aggregate": lambda windows: windows.aggregate(GatherAndMerge(), Told()),
    "reduce": lambda windows: windows.reduce(joined, ToldOfReduced()),
}


@dataclass(frozen=True)
class Windows:
    """Windows with their model."""

    assigner: Any
    spans: Callable[[int], Spans]
    """The windows of a timestamp."""


def tumbling(size: int, offset: int = 0) -> Windows:
    def spans(at: int) -> Spans:
        start = at - (at - offset) % size
        return [(start, start + size)]

    return Windows(TumblingEventTimeWindows.of(ms(size), ms(offset)), spans)


def sliding(size: int, slide: int) -> Windows:
    def spans(at: int) -> Spans:
        return [(start, start + size) for start in range(at - size + 1, at + 1) if start % slide == 0]

    return Windows(SlidingEventTimeWindows.of(ms(size), ms(slide)), spans)


def cumulative(size: int, step: int) -> Windows:
    def spans(at: int) -> Spans:
        start = at - at % size
        return [(start, start + length) for length in range(step, size + 1, step) if start + length > at]

    return Windows(CumulativeEventTimeWindows.of(ms(size), ms(step)), spans)


def by_key(how: Callable[[Any], Any], uid: str = "op") -> Callable[[Any], Any]:
    return lambda stream: how(stream.key_by(lambda each: each[0])).uid(uid)


def lives(programs: list[Any], elements: list[Any], cuts: list[int], parallelism: list[int], backend: str) -> list[Any]:
    """What programs that follow each other give, for elements with timestamps in order."""
    found: list[Any] = []
    snapshot = None
    bounds = [0, *cuts, len(elements)]
    for program, first, end, count in zip(programs, bounds, bounds[1:], parallelism):
        configuration = {"state.backend.type": backend, "state.backend.cache.size": "1kb"}
        with OneInputTestHarness(program, parallelism=count, configuration=configuration, snapshot=snapshot) as harness:
            for key, at in elements[first:end]:
                harness.process_element((key, at), at).process_watermark(at - 1)
            if end == len(elements):
                harness.process_watermark(END)
            found += harness.extract_output_values()
            snapshot = harness.snapshot()
    return found


KINDS = [tumbling(20), tumbling(10), tumbling(10, 3), sliding(20, 10), sliding(30, 10), sliding(15, 6), sliding(5, 10),
         cumulative(20, 5), cumulative(20, 10), cumulative(30, 10)]  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("seed", range(12))
def test_windows_finish_as_they_were_begun_when_the_program_has_others(content: str, seed: int) -> None:
    chance = random.Random(f"{seed} {content}")
    chosen = [chance.choice(KINDS) for _ in range(3)]
    times = sorted(chance.randrange(90) for _ in range(30))
    elements = [(chance.choice("abc"), at) for at in times]
    cuts = sorted(chance.sample(range(1, 30), 2))
    model: dict[Any, list[int]] = defaultdict(list)
    for number, (key, at) in enumerate(elements):
        for span in chosen[sum(number >= cut for cut in cuts)].spans(at):
            model[(key, *span)].append(at)
    programs = [by_key(lambda keyed, kind=kind: CONTENTS[content](keyed.window(kind.assigner))) for kind in chosen]
    counts = [chance.randint(1, 3) for _ in chosen]
    found = lives(programs, elements, cuts, counts, chance.choice(["hashmap", "rocksdb"]))
    assert sorted(found) == sorted((*owner, sorted(numbers)) for owner, numbers in model.items())


class Doubtful(EventTimeTrigger):
    """A trigger of the program that decides as the default one."""


HARMLESS: dict[str, Callable[[Any], Any]] = {
    "default trigger named": lambda windows: windows.trigger(EventTimeTrigger()).process(Spell()),
    "own trigger": lambda windows: windows.trigger(Doubtful()).process(Spell()),
    "allowed lateness": lambda windows: windows.allowed_lateness(1).process(Spell()),
    "clear()": lambda windows: windows.process(WithClear()),
    "several at once": lambda windows: windows.trigger(Doubtful()).allowed_lateness(7).process(WithClear()),
}
ELEMENTS = [("ab"[at % 4 // 2], at) for at in range(0, 60, 2)]
COMMON: dict[str, Any] = {
    "tumbling": tumbling(20).assigner,
    "sliding": sliding(20, 10).assigner,
    "cumulative": cumulative(20, 10).assigner,
    "session": EventTimeSessionWindows.with_gap(ms(5)),
}


@pytest.mark.parametrize("removed", [False, True], ids=["added", "removed"])
@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("kind", COMMON)
def test_a_change_that_alters_no_window_keeps_their_contents(kind: str, change: str, removed: bool) -> None:
    plain = by_key(lambda keyed: keyed.window(COMMON[kind]).process(Spell()))
    changed = by_key(lambda keyed: HARMLESS[change](keyed.window(COMMON[kind])))
    expected = lives([plain], ELEMENTS, [], [1], "hashmap")
    programs = [changed, plain] if removed else [plain, changed]
    assert sorted(lives(programs, ELEMENTS, [8], [2, 1], "hashmap")) == sorted(expected)
    assert sorted(lives([*programs, programs[0]], ELEMENTS, [8, 17], [1, 2, 1], "rocksdb")) == sorted(expected)


@pytest.mark.parametrize("kind", COMMON)
def test_windows_go_on_without_the_evictor_that_their_elements_were_kept_for(kind: str) -> None:
    plain = by_key(lambda keyed: keyed.window(COMMON[kind]).process(Spell()))
    evicting = by_key(lambda keyed: keyed.window(COMMON[kind]).evictor(CountEvictor.of(1000)).process(Spell()))
    expected = sorted(lives([plain], ELEMENTS, [], [1], "hashmap"))
    assert sorted(lives([evicting, plain], ELEMENTS, [8], [2, 2], "hashmap")) == expected
    assert sorted(lives([evicting, plain, evicting], ELEMENTS, [8, 17], [2, 3, 2], "hashmap")) == expected
    if kind != "session":
        gathered = by_key(lambda keyed: keyed.window(COMMON[kind]).aggregate(GatherAndMerge(), Told()))
        assert sorted(lives([evicting, gathered, plain], ELEMENTS, [8, 17], [2, 2, 2], "hashmap")) == expected


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "cumulative"])
def a_merge_may_come_to_an_aggregate_function(kind: str) -> None:
    without = by_key(lambda keyed: keyed.window(COMMON[kind]).aggregate(Gather(), Told()))
    merging = by_key(lambda keyed: keyed.window(COMMON[kind]).aggregate(GatherAndMerge(), Told()))
    expected = sorted(lives([merging], ELEMENTS, [], [1], "hashmap"))
    assert sorted(lives([without, merging, without], ELEMENTS, [8, 17], [2, 2, 2], "hashmap")) == expected


def the_gap_of_sessions_may_change() -> None:
    def sessions(gap: int) -> Any:
        return by_key(lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(ms(gap))).process(Spell()))

    elements = [("k", at) for at in (0, 4, 8, 20, 23, 40)]
    assert lives([sessions(5), sessions(10)], elements, [2], [2, 3], "hashmap") == [
        ("k", 0, 18, [0, 4, 8]), ("k", 20, 33, [20, 23]), ("k", 40, 50, [40]),
    ]  # fmt: skip


class Fires(Trigger):
    """Fires with each element and at the end."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        pass

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


@pytest.mark.parametrize("trigger", [Fires(), CountTrigger.of(3), ContinuousEventTimeTrigger.of(ms(5))])
def a_window_fires_at_its_end_with_what_another_trigger_left_in_it(trigger: Any) -> None:
    with_it = by_key(lambda keyed: keyed.window(COMMON["tumbling"]).trigger(trigger).process(Spell()))
    plain = by_key(lambda keyed: keyed.window(COMMON["tumbling"]).process(Spell()))
    found = lives([with_it, plain], ELEMENTS, [8], [2, 2], "hashmap")
    for last in lives([plain], ELEMENTS, [], [1], "hashmap"):
        assert last in found


@pytest.mark.parametrize("kind", COMMON)
def test_nothing_is_left_of_windows_whose_allowed_lateness_changes(kind: str) -> None:
    def program(lateness: int) -> Any:
        return by_key(
            lambda keyed: keyed.window(COMMON[kind]).trigger(Doubtful()).allowed_lateness(lateness).process(Spell())
        )

    for before, after in ((0, 30), (30, 0), (30, 10)):
        with OneInputTestHarness(program(before)) as harness:
            for key, at in ELEMENTS[:8]:
                harness.process_element((key, at), at).process_watermark(at)
            snapshot = harness.snapshot()
        with OneInputTestHarness(program(after), snapshot=snapshot) as harness:
            harness.process_watermark(END)
            assert harness.event_time_timers() == []
            for _, state in harness._dataflow.operators():
                for space in state.spaces.values() if state is not None else ():
                    for table in space.tables.values():
                        assert not [row for row in table.rows.values() if any(slot is not None for slot in row[1:])]


class Numbered(ProcessWindowFunction):
    """Counts its calls for a window in the window's state."""

    def process(self, key: str, context: Any, elements: Any) -> Any:
        calls = context.window_state().get_state(ValueStateDescriptor("calls", Types.LONG()))
        calls.update((calls.value() or 0) + 1)
        yield context.window().start, calls.value(), sorted(each[1] for each in elements)

    def clear(self, context: Any) -> None:
        pass


def a_windows_own_state_stays_with_it_when_its_form_changes() -> None:
    def program(change: Callable[[Any], Any]) -> Any:
        return by_key(lambda keyed: change(keyed.window(COMMON["tumbling"]).allowed_lateness(100)).process(Numbered()))

    with OneInputTestHarness(program(lambda windows: windows)) as harness:
        harness.process_element(("k", 5), 5).process_element(("k", 25), 25).process_watermark(20)
        harness.process_element(("k", 6), 6)
        assert harness.extract_output_values() == [(0, 1, [5]), (0, 2, [5, 6])]
        snapshot = harness.snapshot()
    with OneInputTestHarness(program(lambda windows: windows.trigger(Doubtful())), snapshot=snapshot) as harness:
        harness.process_element(("k", 7), 7).process_watermark(END)
        assert harness.extract_output_values() == [(0, 3, [5, 6, 7]), (20, 1, [25])]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TumblingProcessingTimeWindows.of(ms(20)), TumblingProcessingTimeWindows.of(ms(10))),
        (TumblingProcessingTimeWindows.of(ms(10)), SlidingProcessingTimeWindows.of(ms(20), ms(10))),
        (SlidingProcessingTimeWindows.of(ms(20), ms(10)), TumblingProcessingTimeWindows.of(ms(20))),
    ],
)
def test_windows_of_processing_time_finish_as_they_were_begun(before: Any, after: Any) -> None:
    def program(assigner: Any) -> Any:
        return by_key(lambda keyed: keyed.window(assigner).process(Spell()))

    model: dict[Any, list[int]] = defaultdict(list)
    found = []
    snapshot = None
    for assigner, times in ((before, (1, 12, 33)), (after, (34, 47, 60))):
        with OneInputTestHarness(program(assigner), snapshot=snapshot) as harness:
            for at in times:
                harness.set_processing_time(at).process_element(("k", at))
                for start, end in assigner.windows(assigner.pane_of(at)):
                    model[start, end].append(at)
            if assigner is after:
                harness.set_processing_time(END)
            found += harness.extract_output_values()
            snapshot = harness.snapshot()
    assert sorted(found) == sorted(("k", *span, numbers) for span, numbers in model.items())


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("point", ["before complete", "after complete", "within commit"])
def a_crash_while_windows_are_converted_neither_loses_nor_repeats_any(
    job: Any, backend: str, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    elements = [("ab"[at % 2], at) for at in range(60)]

    def build(windows: Windows) -> Any:
        program = by_key(lambda keyed: keyed.window(windows.assigner).process(Spell()))
        return lambda env: program(timed(env, elements)).sink_to(LedgerSink("out")).uid("out")

    first, second = sliding(20, 10), tumbling(10, 3)
    config = {"state.backend.type": backend, "state.backend.cache.size": "1kb"}
    lab = job(build(first), budget=15, config=config, keep_disk=False)
    assert not lab._run_until("after commit", 2)
    newest = CheckpointLog(lab.storage, JobPaths.of("job"), 3).read_retained()[0]
    cut = load(lab.storage, newest).checkpoint.sources["source"].enumerator["only"]
    lab.build = build(second)
    lab.run([(point, 1), (point, 2)])
    assert "have changed since the checkpoint" in caplog.text
    model: dict[Any, list[int]] = defaultdict(list)
    for key, at in elements:
        for span in (first if at < cut else second).spans(at):
            model[(key, *span)].append(at)
    assert sorted(LEDGERS["out"].values) == sorted((*owner, numbers) for owner, numbers in model.items())
