"""Drawn programs give the same results however they are run."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import compactions
import holdfast.state.backends.upkeep
from effort import EFFORT, examples

from .changes import changed
from .drawing import Program
from .judging import Element, Stream, again, check
from .programs import programs
from .running import PLAIN, Way, ways


@pytest.fixture(autouse=True)
def early_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases and merged deltas after a few epochs, so that both are restored."""
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(1))


@pytest.mark.parametrize("part", range(12))  # for the processes of the tests to share
def a_program_has_the_results_of_its_model_however_it_is_run(part: int) -> None:
    """The same programs in every run; by command, with an effort, others each time."""

    @seed(part if EFFORT == 1 else random.getrandbits(64))
    @settings(
        max_examples=examples(12),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(programs(), ways())
    def drawn(program: Program, way: Way) -> None:
        check(program, way)

    drawn()


def a_changed_program_is_another_form_of_the_same_windows():
    window = "s1.window(EventTimeSessionWindows.with_gap(ms(10))).side_output_late_data(LATE).aggregate(Sum(False))"
    forms = {changed(Program(window, {}, {}), number) for number in range(1, 30)}
    assert any("with_gap(ms(10))).evictor(CountEvictor.of(10**6))" in form for form in forms)
    assert any(".trigger(PurgingTrigger.of(EventTimeTrigger.create())).side_output" in form for form in forms)
    assert any(form.endswith(".aggregate(MergingSum(False))") for form in forms)


def a_changed_program_works_by_columns_batches_or_records():
    call = "s1.map(as_row('text'), FIELDS['text']).map_batch(times_two, FIELDS['text']).filter_batch(above_two)"
    forms = {changed(Program(call, {}, {}), number) for number in range(1, 30)}
    records = "s1.map(as_row('text'), FIELDS['text']).map(row_times_two, FIELDS['text']).filter(row_above_two)"
    assert forms == {call, records, records.replace(", FIELDS['text']", "")}
    rows = "s1.map(as_row('text')).key_by(x)"
    assert {changed(Program(rows, {}, {}), n) for n in range(1, 30)} == {rows, rows.replace("'))", "'), FIELDS['text'])")}


def a_wrong_result_is_shown_as_a_program_that_can_be_run():
    text = """
s1 = env.from_source(SplitSource(S1, cut, seed), WatermarkStrategy.no_watermarks(), "s1").uid("s1")
s1.process(Told("s1")).uid("told s1").sink_to(LedgerSink("out")).uid("sink")
"""
    sources = {"s1": {"s1-0": [("a", 0, 1)]}}
    wrong = {"s1": Stream((Element(("a", 0, 2), 0),))}
    with pytest.raises(AssertionError, match="1 times too seldom") as failure:
        again(text, sources, wrong, PLAIN)
    with pytest.raises(AssertionError, match="1 times too seldom"):
        exec(str(failure.value), {})
