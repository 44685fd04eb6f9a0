"""Cases of Flink's and Beam's own tests, as data, on both backends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .beam_window_cases import BEAM_CASES
from .flink_window_cases import CASES, RESTORE, Case, P, W, applied, reduced
from .window_harness import operated


def play(case: Case, build: Any, kind: str, restores: bool) -> None:
    """Go through the steps; ``restores``: with a checkpoint and a restart after each."""
    with operated(build, kind) as windows:
        found: list[Any] = []
        for number, step in enumerate(case.steps):
            if isinstance(step, W):
                found += windows.watermark(step.time)
            elif isinstance(step, P):
                found += windows.processing_time(step.time)
            elif isinstance(step, tuple):
                found += windows.frame([step])
            elif step == RESTORE:
                windows.checkpoint()
                windows.restart()
            else:
                found += [(*late, "late") for late in windows.late]
                windows.late.clear()
                assert Counter(found) == Counter(step), f"step {number}"
                found = []
            if restores and number % 4 == 0:
                windows.checkpoint()
                windows.restart(elsewhere=number % 8 == 0)


@pytest.mark.parametrize(
    ("kind", "restores", "result"),
    [("hashmap", False, reduced), ("hashmap", False, applied), ("hashmap", True, reduced), ("rocksdb", True, applied)],
)
@pytest.mark.parametrize("case", [*CASES, *BEAM_CASES], ids=lambda case: case.name)
def a_case_of_flink_or_beam_gives_what_it_gives_there(case, kind, restores, result):
    play(case, lambda keyed: result(case.windows(keyed)), kind, restores)
