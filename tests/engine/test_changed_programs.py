"""Programs that do not fit their checkpoints: refused before any input is read."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import (
    StreamExecutionEnvironment,
)
from holdfast.errors import IncompatibleState

from .inprocess import LEDGERS, LedgerSink
from .small_programs import Remember, program, timed


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


def test_another_type_of_a_state_is_refused(job):
    values = [("a", n, n) for n in range(6)]
    lab = job(program(Remember(Types.LONG()), values))
    assert not lab._run_until("after complete", 2)
    lab.build = program(Remember(Types.STRING()), values)
    with pytest.raises(IncompatibleState, match="'kept'"):
        lab.run()
