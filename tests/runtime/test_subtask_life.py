"""The life of a subtask: it continues only with the very state that the next epoch follows, and restores otherwise."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.plan.lifecycle import IllegalTransition
from holdfast.runtime.task.subtask_life import SubtaskLife, SubtaskStage

Outcome = Literal["prepared", "fails in restore", "fails in the epoch", "slot closes it"]


class Host:
    """Runs epochs as `Subtask` does; the opened operators are the number of their restore."""

    def __init__(self) -> None:
        self.life: SubtaskLife[int] = SubtaskLife("0 of vertex 1")
        self.restores = 0
        self.open: set[int] = set()
        self.functions_used = False

    def close(self) -> None:
        opened = self.life.close()
        if opened is not None:
            self.open.remove(opened)

    def run(self, token: str, attempt: str, outcome: Outcome) -> str:
        """Run an epoch on the state of ``token``; returns the token in memory afterwards."""
        opened = self.life.resume(token)
        if opened is None:
            self.close()
            assert self.life.restore() == self.functions_used, "used functions must be loaded anew"
            self.functions_used = True
            if outcome == "fails in restore":
                self.close()
                return ""
            self.restores += 1
            opened = self.restores
            self.open.add(opened)
            self.life.restored(opened)
        assert self.life.state is SubtaskStage.RUNNING
        assert self.open == {opened}
        if outcome == "prepared":
            self.life.prepared(attempt)
            return attempt
        self.close()
        return ""


outcomes = st.sampled_from(["prepared", "prepared", "fails in restore", "fails in the epoch", "slot closes it"])


@given(st.lists(st.tuples(st.integers(0, 3), outcomes), max_size=20))
def a_subtask_continues_exactly_if_its_state_is_the_one_asked_for(epochs: list[tuple[int, Outcome]]) -> None:
    host, in_memory, attempts = Host(), "", [""]
    for back, outcome in epochs:
        token = attempts[max(-1 - back, -len(attempts))]
        restores = host.restores
        continues = bool(in_memory) and token == in_memory
        attempt = f"attempt {len(attempts)}"
        if outcome == "slot closes it":
            host.close()
            continues, outcome = False, "prepared"
        if continues and outcome == "fails in restore":
            outcome = "fails in the epoch"
        in_memory = host.run(token, attempt, outcome)
        assert host.restores == restores + (not continues and outcome != "fails in restore")
        if in_memory:
            attempts.append(attempt)
        assert host.life.state is (SubtaskStage.PREPARED if in_memory else SubtaskStage.CLOSED)
        assert len(host.open) == bool(in_memory)


def an_epoch_without_a_base_never_continues() -> None:
    life: SubtaskLife[int] = SubtaskLife("0")
    assert life.resume("") is None
    life.restore()
    life.restored(1)
    life.prepared("a")
    assert life.resume("") is None
    assert life.resume("b") is None
    assert life.resume("a") == 1


def running() -> SubtaskLife[int]:
    life: SubtaskLife[int] = SubtaskLife("3 of vertex 1")
    life.restore()
    life.restored(1)
    return life


def prepared() -> SubtaskLife[int]:
    life = running()
    life.prepared("a")
    return life


@pytest.mark.parametrize(
    ("life", "step"),
    [
        (SubtaskLife("3 of vertex 1"), lambda life: life.restored(1)),
        (SubtaskLife("3 of vertex 1"), lambda life: life.prepared("a")),
        (running(), lambda life: life.restore()),
        (prepared(), lambda life: life.restore()),
        (prepared(), lambda life: life.prepared("b")),
    ],
    ids=[
        "restored from created",
        "prepared from created",
        "restore from running",
        "restore from prepared",
        "prepared twice",
    ],
)
def a_step_that_does_not_follow_tells_the_subtask_and_its_state(life: SubtaskLife[int], step: Any) -> None:
    with pytest.raises(IllegalTransition, match=f"subtask 3 of vertex 1 cannot go from {life.state.name} to"):
        step(life)


def the_close_gives_the_operators_up_once() -> None:
    life: SubtaskLife[int] = SubtaskLife("0")
    assert life.close() is None
    assert life.state is SubtaskStage.CREATED, "its functions are still unused"
    life.restore()
    life.restored(1)
    assert life.close() == 1
    assert life.close() is None
