"""Drawn programs give the same results however they are run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import compactions
import holdfast.state.keyed_backend
from effort import examples

from .drawing import Program
from .judging import Element, Stream, again, check
from .programs import programs
from .running import PLAIN, Way, ways


@pytest.fixture(autouse=True)
def early_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases and merged deltas after a few epochs, so that both are restored."""
    monkeypatch.setattr(holdfast.state.keyed_backend, "due", compactions.anything(1))


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
)
@given(programs(), ways())
def a_program_has_the_results_of_its_model_however_it_is_run(program: Program, way: Way):
    check(program, way)


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
