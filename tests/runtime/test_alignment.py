"""Watermark alignment: which splits of a group get no input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.metadata import SourceState
from holdfast.common import Duration, WatermarkStrategy
from holdfast.connectors.base import EpochInput, SplitRange
from holdfast.runtime.plan.event_time import GeneratorState, SplitTime
from holdfast.runtime.plan.plan import SourceSpec, Vertex
from holdfast.runtime.plan.task_messages import TaskReport
from holdfast.runtime.protocol.alignment import held_back
from holdfast.runtime.protocol.events import PlannedInput
from holdfast.runtime.protocol.sources import SourceProgress

DRIFT = 100


def source(
    uid: str, splits: dict[str, int], group: str = "g", idle_ms: int | None = None, drift: int = DRIFT
) -> SourceProgress:
    """A source whose splits have these watermarks."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if group:
        strategy = strategy.with_watermark_alignment(group, Duration.of_millis(drift))
    if idle_ms:
        strategy = strategy.with_idleness(Duration.of_millis(idle_ms))
    restored = SourceState(None, {name: {"max_timestamp": each + 1, "owner": 0} for name, each in splits.items()})
    vertex = Vertex(0, uid, 1, 128, 0, ())
    return SourceProgress(vertex, SourceSpec(uid, True, uid, None, strategy), restored)  # type: ignore[arg-type]


def a_split_more_than_the_drift_ahead_of_its_group_is_held_back():
    held = held_back([source("fast", {"f0": 301, "f1": 300}), source("slow", {"s0": 200, "s1": 5000})])
    assert held == {"fast": (frozenset({"f0"}), False), "slow": (frozenset({"s1"}), False)}


def a_source_whose_splits_are_all_ahead_is_held_back_as_a_whole():
    assert held_back([source("fast", {"f0": 301, "f1": 400}), source("slow", {"s0": 200})])["fast"].whole


def test_groups_do_not_wait_for_each_other():
    sources = [source("a", {"a0": 9000}, "g"), source("b", {"b0": 0}, "h"), source("c", {"c0": 0}, "")]
    assert held_back(sources) == {}


def a_split_without_a_watermark_holds_its_group_back():
    fast, slow = source("fast", {"f0": 301}), source("slow", {})
    assert held_back([fast, slow]) == {}, "a source without splits does not count"
    planned = PlannedInput(EpochInput((SplitRange("s0", 0, 0),)), None)
    slow.assignments(planned)
    assert held_back([fast, slow])["fast"].whole


def test_idle_splits_and_finished_sources_do_not_count():
    fast = source("fast", {"f0": 301})
    slow = source("slow", {"s0": 0}, idle_ms=50)
    nothing = PlannedInput(EpochInput(), None)
    slow.asked(nothing, 0)
    slow.asked(nothing, 49)
    assert held_back([fast, slow])["fast"].whole
    slow.asked(nothing, 50)
    assert held_back([fast, slow]) == {}
    ended = source("ended", {"s0": 0})
    ended.finished = True
    assert held_back([fast, ended]) == {}


def the_watermark_of_an_own_generator_counts():
    fast, slow = source("fast", {"f0": 301}), source("slow", {"s0": 0})
    splits = {"s0": SplitTime(0, generated=GeneratorState(b"", 250, idle=False))}
    slow.read([TaskReport((slow.vertex.id, 0), "attempt", splits=splits, watermark=250)])
    assert held_back([fast, slow]) == {}


def a_split_that_is_held_back_is_not_idle_meanwhile():
    fast = source("fast", {"f0": 301}, idle_ms=50)
    planned = PlannedInput(EpochInput(), None, frozenset({"f0"}))
    for now in (0, 40, 90):
        fast.asked(planned, now)
    assert not fast.assignments(planned)[0, 0].splits["f0"].idle
    fast.asked(PlannedInput(EpochInput(), None), 139)
    assert fast.active_watermarks() == {"f0": 301}


watermarks = st.dictionaries(st.sampled_from(["p", "q", "r"]), st.integers(0, 500), max_size=3)


@given(st.lists(st.tuples(watermarks, st.sampled_from(["g", "h"]), st.integers(1, 300)), max_size=4))
def test_exactly_the_splits_beyond_the_drift_are_held_back_and_never_a_whole_group(sources):
    made = [source(str(n), splits, group, drift=drift) for n, (splits, group, drift) in enumerate(sources)]
    held = held_back(made)
    for group in "gh":
        every = [(str(n), drift, name, w) for n, (s, g, drift) in enumerate(sources) if g == group for name, w in s.items()]
        lowest = min((w for *_, w in every), default=0)
        ahead = {(uid, name) for uid, drift, name, w in every if w - lowest > drift}
        assert ahead == {(uid, name) for uid, _, name, _ in every if uid in held and name in held[uid].splits}
        assert not every or len(ahead) < len(every)
