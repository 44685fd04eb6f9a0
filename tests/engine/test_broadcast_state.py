"""Broadcast state: the same in every subtask, in one order, ahead of what it applies to, through crashes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Row, Types, WatermarkStrategy
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import JobFailed, UserCodeError

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
NONE = WatermarkStrategy.no_watermarks()


def stream(env: StreamExecutionEnvironment, splits: dict[str, list[Any]], name: str, **how: Any) -> Any:
    source = SplitSource({f"{name}-{split}": values for split, values in splits.items()}, **how)
    return env.from_source(source, NONE, name).uid(name)


def results(job: Lab, crashes: Any = ()) -> list[Any]:
    LEDGERS["out"].committed.clear()
    job.run(crashes)
    return LEDGERS["out"].values


# ---- one order, in every subtask ---------------------------------------------------------------------------------------


class History(BroadcastProcessFunction):
    """Keeps the latest change of each rule, and tells every change with its subtask and with what the state was."""

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield "payment", value, sorted(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        rules = ctx.get_broadcast_state(RULES)
        name, limit = value
        yield "rule", self.subtask, value, rules.get(name)
        if limit:
            rules.put(name, limit)
        else:
            rules.remove(name)


CHANGES = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 5)), max_size=15)
CRASHES = st.lists(
    st.tuples(st.sampled_from(["run", "before complete", "after complete", "before commit"]), st.integers(1, 3)), max_size=2
)


@settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    changes=st.dictionaries(st.sampled_from("abc"), CHANGES, min_size=1),
    parallelism=st.integers(1, 3),
    cut=st.integers(1, 9),
    crashes=CRASHES,
    seed=st.integers(0, 100),
)
def a_change_reaches_every_subtask_in_one_order_through_crashes(changes, parallelism, cut, crashes, seed):
    numbers = {"a": list(range(20))}

    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, changes, "rules", cut=cut, seed=seed).rebalance().map(lambda rule: rule).broadcast(RULES)
        payments = stream(env, numbers, "payments", cut=cut, seed=seed)
        payments.connect(rules).process(History()).uid("history").sink_to(LedgerSink("out"))

    directory = Path(mkdtemp())
    try:
        told = results(Lab(build, directory, parallelism), crashes)
    finally:
        shutil.rmtree(directory)
    orders = [[each[2:] for each in told if each[:2] == ("rule", n)] for n in range(parallelism)]
    assert all(order == orders[0] for order in orders)
    assert sorted(change for change, _ in orders[0]) == sorted(change for each in changes.values() for change in each)
    state: dict[str, int] = {}
    states = [{}]
    for (name, limit), before in orders[0]:
        assert before == state.get(name)
        state.pop(name, None)
        if limit:
            state[name] = limit
        states.append(dict(state))
    payments = [each[1:] for each in told if each[0] == "payment"]
    assert sorted(number for number, _ in payments) == numbers["a"]
    assert all(dict(rules) in states for _, rules in payments)


# ---- what is there before applies --------------------------------------------------------------------------------------

TOPIC: list[tuple[str, Any]] = []
"""What has arrived so far, of both kinds, in the order of its arrival."""
ARRIVALS = random.Random()


@dataclass(frozen=True)
class Arriving:
    """Reads one kind of what has arrived; more arrives whenever somebody looks."""

    kind: str
    end: int
    bounded = True

    def create_enumerator(self, job: JobInfo, uid: str) -> ArrivingEnumerator:
        return ArrivingEnumerator(self.kind, self.end)

    def create_reader(self, context: ReaderContext) -> ArrivingReader:
        return ArrivingReader(self.kind)


def arrived(kind: str) -> list[Any]:
    return [value for each, value in TOPIC if each == kind]


class ArrivingEnumerator:
    def __init__(self, kind: str, end: int) -> None:
        self._kind, self._end, self._next = kind, end, 0

    def start(self, state: Any | None) -> None:
        self._next = state or 0

    def plan(self, max_records: int) -> EpochInput:
        for _ in range(ARRIVALS.randint(0, 3)):
            if len(TOPIC) < 2 * self._end:
                number = len(TOPIC) // 2
                TOPIC.extend([("rule", number), ("payment", number)])
        there = len(arrived(self._kind))
        start, end = self._next, min(there, self._next + max_records)
        self._next = end
        finished = end == self._end
        ranges = (SplitRange(self._kind, start, end, end - start, last=finished),) if end > start or not start else ()
        return EpochInput(ranges, there - end, finished)

    def snapshot(self) -> Any:
        return self._next

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        pass

    def wait(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


class ArrivingReader:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        values = arrived(self._kind)[part.start : part.end]
        if values:
            yield Batch(values, None, lambda i: f"{self._kind} {part.start + i}")

    def prefetch(self, parts: Sequence[SplitRange]) -> None:
        pass

    def close(self) -> None:
        pass


class Newest(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.get_broadcast_state(RULES).get("newest")

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("newest", value)


@pytest.mark.parametrize("broadcast_first_in_program", [True, False])
@pytest.mark.parametrize("seed", range(5))
def a_rule_that_arrives_before_a_payment_applies_to_it(tmp_path, seed, broadcast_first_in_program):
    """More may arrive between the plans of the two sources, and epochs hold only some of the payments."""

    def build(env: StreamExecutionEnvironment) -> None:
        def rules() -> Any:
            return env.from_source(Arriving("rule", 40), NONE, "rules").map(lambda rule: rule).rebalance().broadcast(RULES)

        early = rules() if broadcast_first_in_program else None
        payments = env.from_source(Arriving("payment", 40), NONE, "payments")
        payments.connect(early or rules()).process(Newest()).sink_to(LedgerSink("out"))

    TOPIC.clear()
    ARRIVALS.seed(seed)
    told = results(Lab(build, tmp_path, budget=5))
    assert sorted(payment for payment, _ in told) == list(range(40))
    assert all(rule >= payment for payment, rule in told)


# ---- keyed state and timers beside it ----------------------------------------------------------------------------------

TOTAL = ValueStateDescriptor("total", Types.LONG())
SEEN = ListStateDescriptor("seen", Types.LONG())


class Limited(KeyedBroadcastProcessFunction):
    """Adds up a key's payments; a rule ``reset`` tells all totals and sets them back, a rule ``limit`` sets the limit."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)
        self.seen = runtime_context.get_list_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value)
        self.seen.add(value)
        limit = ctx.get_broadcast_state(RULES).get("limit")
        ctx.timer_service().register_event_time_timer(2**60)
        if limit is not None and self.total.value() > limit:
            yield "over", ctx.get_current_key(), self.total.value(), limit

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        name, limit = value
        if name == "limit":
            ctx.get_broadcast_state(RULES).put(name, limit)
            return
        totals = []

        def reset(key: Any, total: Any) -> None:
            totals.append(("reset", key, total.value(), limit))
            total.clear()

        ctx.apply_to_keyed_state(TOTAL, reset)
        yield from totals

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        limit = ctx.get_broadcast_state(RULES)["limit"]
        yield "end", ctx.get_current_key(), self.total.value(), len(list(self.seen.get())), limit


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("crashes", [[], [("after complete", 3), ("run", 2), ("before commit", 1)]], ids=["one", "four"])
def a_rule_changes_the_state_of_all_keys(tmp_path, backend, keep_disk, crashes):
    config = {"state.backend.type": backend}
    if backend == "rocksdb":
        config["state.backend.rocksdb.memory.managed"] = "false"

    def build(env: StreamExecutionEnvironment) -> None:
        changes = {"a": [("limit", 3), ("reset", 1), ("limit", 5), ("reset", 2)]}
        rules = stream(env, changes, "rules", cut=1, seed=3).broadcast(RULES)
        payments = stream(env, {"a": [1] * 200, "b": [1] * 200}, "payments", cut=20, seed=7)
        keyed = payments.map(lambda n: n).key_by(lambda n: n, Types.LONG())
        keyed.connect(rules).process(Limited()).uid("limited").sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, keep_disk=keep_disk, config=config), crashes)
    ends = [each for each in told if each[0] == "end"]
    assert [end[3:] for end in ends] == [(400, 5)]
    resets = [each for each in told if each[0] == "reset"]
    assert sum(total for _, _, total, _ in resets) + (ends[0][2] or 0) == 400


@pytest.mark.parametrize("restore", [True, False])
def a_rule_reaches_keys_that_left_memory_for_the_local_store(tmp_path, restore):
    """Far more keys than the cache holds: each is told once, and is changed for good."""
    keys = 20_000

    def build(env: StreamExecutionEnvironment) -> None:
        source = SplitSource({"rules": [("limit", 0)] * 3 + [("reset", 1)]}, cut=1, seed=1)
        rules = env.from_source(source, NONE, "rules").uid("rules").broadcast(RULES)
        payments = stream(env, {"a": list(range(1, keys + 1))}, "payments").rebalance()
        keyed = payments.key_by(lambda n: n, Types.LONG())
        keyed.connect(rules).process(Limited()).uid("limited").sink_to(LedgerSink("out"))

    config = {"state.backend.type": "rocksdb", "state.backend.cache.size": "1mb"}
    job = Lab(build, tmp_path, parallelism=1, budget=3000, config=config)
    told = results(job, [("after complete", 5)] if restore else [])
    resets = {each[1]: each[2] for each in told if each[0] == "reset"}
    ends = {each[1]: each[2] for each in told if each[0] == "end"}
    assert len(resets) == sum(each[0] == "reset" for each in told) > 5000
    assert len(ends) == keys
    assert all(resets.get(key, 0) + (total or 0) == key for key, total in ends.items())


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("size", [3, 2000], ids=["small", "large"])
def the_state_is_whole_in_every_subtask_of_another_parallelism(tmp_path, parallelism, size):
    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [(f"rule {n}", n + 1) for n in range(size)]}, "rules").broadcast(RULES)
        payments = stream(env, {name: list(range(40)) for name in "abcd"}, "payments", cut=5, seed=1).rebalance()
        payments.connect(rules).process(History()).uid("history").sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    job = Lab(build, tmp_path, parallelism=2, budget=50)
    assert not job._run_until("after complete", 4)
    job.parallelism = parallelism
    assert job._run_until("", 0)
    payments = [each for each in LEDGERS["out"].values if each[0] == "payment"]
    assert len(payments) == 160
    assert {len(each[2]) for each in payments} == {size}


LISTS = MapStateDescriptor("lists", Types.STRING(), Types.PICKLED_BYTE_ARRAY())


class ChangesLater(BroadcastProcessFunction):
    """Puts a list, and changes it behind that."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield list(ctx.get_broadcast_state(LISTS).get("rule"))

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(LISTS).put("rule", value)
        value.append(2)


@pytest.mark.parametrize("crashes", [[], [("after complete", 2)]], ids=["at once", "restored"])
def the_state_has_a_value_as_it_was_put_whatever_the_function_does_with_it_then(tmp_path, crashes):
    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [[1]]}, "rules").broadcast(LISTS)
        payments = stream(env, {"a": [0] * 6}, "payments", cut=1)
        payments.connect(rules).process(ChangesLater()).uid("changes").sink_to(LedgerSink("out"))

    assert results(Lab(build, tmp_path, parallelism=2, budget=1), crashes) == [[1]] * 6


class Asks(BroadcastProcessFunction):
    def __init__(self, ask: Any) -> None:
        self.ask = ask

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self.ask(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)


def asked(tmp_path: Path, ask: Any, rule: Any = ("a", 1)) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [rule]}, "rules").broadcast(RULES)
        stream(env, {"a": [0]}, "payments").connect(rules).process(Asks(ask)).uid("asks").sink_to(LedgerSink("out"))

    return results(Lab(build, tmp_path, parallelism=1))


def _set(state: Any) -> None:
    state["a"] = 1


@pytest.mark.parametrize(
    "change", [lambda s: s.put("a", 1), lambda s: s.remove("a"), lambda s: s.clear(), lambda s: s.put_all({}), _set]
)
def an_element_of_the_other_stream_cannot_change_the_state(tmp_path, change):
    with pytest.raises((JobFailed, UserCodeError), match=r"(?s)'rules' can be changed only in process_broadcast_element"):
        asked(tmp_path, change)


def the_state_reads_as_a_map(tmp_path):
    def ask(state: Any) -> Any:
        entries = [list(state.items()), list(state.keys()), list(state.values()), list(state)]
        return state.get("a"), state["b"], "a" in state, state.contains("b"), state.is_empty(), entries

    assert asked(tmp_path, ask) == [(1, None, True, False, False, [[("a", 1)], ["a"], [1], ["a"]])]


def a_value_that_does_not_fit_the_declared_type_is_refused_with_its_record(tmp_path):
    with pytest.raises((JobFailed, UserCodeError), match=r"(?s)does not fit.*uid 'asks'.*element: \('a', 'much'\)"):
        asked(tmp_path, lambda state: None, ("a", "much"))


def a_state_that_was_not_broadcast_is_refused(tmp_path):
    other = MapStateDescriptor("others", Types.STRING(), Types.LONG())

    class Wrong(Asks):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield ctx.get_broadcast_state(other).get("a")

    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [("a", 1)]}, "rules").broadcast(RULES)
        stream(env, {"a": [0]}, "payments").connect(rules).process(Wrong(None)).sink_to(LedgerSink("out"))

    with pytest.raises((JobFailed, UserCodeError), match="has no broadcast state 'others': pass its descriptor"):
        results(Lab(build, tmp_path, parallelism=1))


class KeyedMistake(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(1)


def a_rule_has_no_key(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [("a", 1)] * 10}, "rules", cut=1).broadcast(RULES)
        keyed = stream(env, {"a": [0] * 20}, "payments", cut=1).key_by(lambda n: n)
        keyed.connect(rules).process(KeyedMistake()).sink_to(LedgerSink("out"))

    with pytest.raises((JobFailed, UserCodeError), match="only while an element or a timer of a key is processed"):
        results(Lab(build, tmp_path, parallelism=1))


def a_typed_row_is_a_rule(tmp_path):
    named = MapStateDescriptor("named", Types.STRING(), Types.ROW_NAMED(["limit"], [Types.LONG()]))

    class Named(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield ctx.get_broadcast_state(named).get("a")

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(named).put("a", (value,))

    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [7]}, "rules").broadcast(named)
        stream(env, {"a": [0]}, "payments").connect(rules).process(Named()).sink_to(LedgerSink("out"))

    assert results(Lab(build, tmp_path, parallelism=1)) == [Row(limit=7)]


def an_epoch_without_changes_writes_nothing_of_the_state(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        rules = stream(env, {"a": [(f"rule {n}", n + 1) for n in range(1000)]}, "rules").broadcast(RULES)
        payments = stream(env, {"a": list(range(100))}, "payments", cut=10, seed=1)
        payments.connect(rules).process(History()).uid("history").map(lambda each: each[0]).sink_to(LedgerSink("out"))

    results(Lab(build, tmp_path, parallelism=1))
    lists = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file() and "list" in path.name]
    assert len(lists) == 1
