"""Programs that do not fit their checkpoints: refused before any input is read."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, make_dataclass
from types import ModuleType
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.errors import IncompatibleState

from .inprocess import LEDGERS, LedgerSink
from .small_programs import Last, Remember, program, timed


def a_changed_graph_is_refused_before_input_is_read(job):
    values = [("a", n, "v") for n in range(6)]

    def without_uids(function: Any) -> Any:
        def build(env: StreamExecutionEnvironment) -> None:
            keyed = timed(env, values).key_by(lambda r: r[0]).process(function)
            keyed.sink_to(LedgerSink("out"))

        return build

    class Renamed(Remember):
        def process_element(self, value, ctx):
            raise AssertionError("input was read")

    lab = job(without_uids(Remember()))
    assert not lab._run_until("after complete", 2)
    lab.build = without_uids(Renamed())
    with pytest.raises(IncompatibleState, match="uid"):
        lab.run()


@pytest.mark.parametrize("parallelism", [2, 3])
def test_operators_come_and_go_and_those_that_stay_keep_their_state_by_uid(job, parallelism):
    def counted(*uids: str) -> Any:
        """Numbers a key's records in a chain of operators, each with the numbers of those before it."""

        class Counting(KeyedProcessFunction):
            def open(self, ctx):
                self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))

            def process_element(self, value, ctx):
                self.count.update((self.count.value() or 0) + 1)
                yield *value, self.count.value()

        def build(env: StreamExecutionEnvironment) -> None:
            stream = timed(env, [(f"k{n % 5}", n) for n in range(60)], cut=6)
            for uid in uids:
                stream = stream.key_by(lambda value: value[0]).process(Counting()).uid(uid)
            stream.sink_to(LedgerSink("out")).uid("out")

        return build

    lab = job(counted("stays", "goes"))
    assert not lab._run_until("after commit", 4)
    before = len(LEDGERS["out"].values)
    assert 0 < before < 60
    lab.build, lab.parallelism = counted("comes", "stays"), parallelism
    with pytest.raises(IncompatibleState, match="goes") as refused:
        lab.run()
    assert "ignore-unclaimed-state" in str(refused.value)
    assert len(LEDGERS["out"].values) == before, "input was read"
    lab.config["execution.state-recovery.ignore-unclaimed-state"] = "true"
    lab.run()
    ends: dict[str, list[tuple[int, int]]] = {}
    for key, _, first, second in LEDGERS["out"].values[before:]:
        ends.setdefault(key, []).append((first, second))
    for key, told in ends.items():
        had = sum(value[0] == key for value in LEDGERS["out"].values[:before])
        assert told == [(n, had + n) for n in range(1, 12 - had + 1)]


def a_sink_that_went_with_output_prepared_is_refused(job):
    values = [("a", n, "v") for n in range(6)]

    def build(sink_uid: str) -> Any:
        def program(env: StreamExecutionEnvironment) -> None:
            timed(env, values).key_by(lambda r: r[0]).process(Remember()).uid("keyed").sink_to(LedgerSink("out")).uid(
                sink_uid
            )

        return program

    lab = job(build("one"))
    assert not lab._run_until("after complete", 2)
    lab.build = build("two")
    with pytest.raises(IncompatibleState, match="one"):
        lab.run()
    lab.build = build("one")
    lab.run()
    assert len(LEDGERS["out"].values) == 6


def test_another_max_parallelism_is_refused(job):
    lab = job(program(Remember(), [("a", n, "v") for n in range(6)]))
    assert not lab._run_until("after complete", 2)
    lab.config = {"pipeline.max-parallelism": "64"}
    with pytest.raises(IncompatibleState, match="max parallelism 128"):
        lab.run()


def the_key_groups_of_a_checkpoint_go_on_where_the_program_sets_none(job):
    values = [(key, n, "v") for n in range(6) for key in "abcdef"]
    lab = job(program(Remember(), values, cut=1))
    lab.config = {"pipeline.max-parallelism": "3"}
    assert not lab._run_until("after complete", 2)
    lab.config, lab.parallelism = {}, 4
    with pytest.raises(IncompatibleState, match="parallelism 4, but only 3 key groups"):
        lab.run()
    lab.parallelism = 2
    lab.run()
    assert len(LEDGERS["out"].values) == len(values)


def the_key_groups_of_a_checkpoint_go_on_in_an_operator_that_is_not_parallel(job):
    values = [(key, n, "v") for n in range(6) for key in "abcdef"]

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = timed(env, values, 1).key_by(lambda r: r[0]).process(Last()).uid("keyed")
        (keyed.force_non_parallel() if alone else keyed).sink_to(LedgerSink("out")).uid("out")

    lab, alone = job(build), False
    assert not lab._run_until("after complete", 3)
    alone = True
    lab.run()
    assert sorted(LEDGERS["out"].values) == [(key, n) for key in "abcdef" for n in range(1, 7)]


def test_another_type_of_a_state_is_refused(job):
    values = [("a", n, n) for n in range(6)]
    lab = job(program(Remember(Types.LONG()), values))
    assert not lab._run_until("after complete", 2)
    lab.build = program(Remember(Types.STRING()), values)
    with pytest.raises(IncompatibleState, match="'kept'"):
        lab.run()


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_state_whose_type_was_widened_goes_on_with_its_values(job, backend):
    before = Types.ROW_NAMED(["n"], [Types.INT()])
    after = Types.ROW_NAMED(["n", "unit"], [Types.LONG(), Types.STRING()]).with_defaults({"unit": "EUR"})
    values = [("a", n, (n,)) for n in range(6)]
    lab = job(program(Remember(before), values, cut=1))
    lab.config = {"state.backend.type": backend}
    assert not lab._run_until("after complete", 3)
    lab.build = program(Remember(after), [(k, n, (n, "USD")) for k, n, _ in values], cut=1)
    lab.parallelism = 2
    lab.run()
    kept = [value[1] for value in LEDGERS["out"].values]
    assert [row if row is None else row[0] for row in kept] == [None, *range(5)]
    assert {row[1] for row in kept if row is not None and len(row) == 2} == {"EUR", "USD"}


def a_state_that_does_not_fit_is_refused_before_input_is_read_with_both_declarations(job, tmp_path):
    values = [("a", n, n) for n in range(6)]
    lab = job(program(Remember(Types.LONG()), values, cut=1))
    assert not lab._run_until("after complete", 2)
    trace = tmp_path / "input was read"

    def changed(env: StreamExecutionEnvironment) -> None:
        read = timed(env, values).map(lambda value: (trace.touch(), value)[1])
        keyed = read.key_by(lambda r: r[0]).process(Remember(Types.STRING())).uid("keyed")
        keyed.sink_to(LedgerSink("out")).uid("out")

    lab.build, lab.parallelism = changed, 2
    with pytest.raises(IncompatibleState) as refused:
        lab.run()
    assert "state 'kept' of operator" in str(refused.value)
    assert "(uid 'keyed'" in str(refused.value)
    assert "    stored:   a value state of LONG\n    declared: a value state of STRING\n" in str(refused.value)
    assert not trace.exists()


@dataclass
class Present:
    """A class that was `a_former_module.Former`, and has gained a field."""

    n: int
    tags: list[str] = field(default_factory=list)


class Shown(Remember):
    def process_element(self, value, ctx):
        for key, kept in super().process_element(value, ctx):
            yield key, None if kept is None else vars(kept)


def a_pickled_class_that_moved_is_found_by_its_alias(job, monkeypatch):
    former = make_dataclass("Former", [("n", int)])
    former.__module__ = "a_former_module"
    module = ModuleType("a_former_module")
    module.Former = former  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_former_module", module)
    lab = job(program(Shown(), [("a", n, former(n)) for n in range(6)], cut=1))
    assert not lab._run_until("after complete", 3)
    monkeypatch.delitem(sys.modules, "a_former_module")
    build = program(Shown(), [("a", n, Present(n, ["new"])) for n in range(6)], cut=1)

    def aliased(env: StreamExecutionEnvironment) -> None:
        env.add_class_alias("a_former_module.Former", Present)
        build(env)

    lab.build = aliased
    lab.run()
    shown = [value[1] for value in LEDGERS["out"].values]
    assert [each and each["n"] for each in shown] == [None, *range(5)]
    with_tags = [each["tags"] for each in shown if each and "tags" in each]
    assert with_tags == [[], *[["new"]] * (len(with_tags) - 1)]
