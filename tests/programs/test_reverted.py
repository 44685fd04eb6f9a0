"""Faults that are put back are found by drawn programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

from .programs import named
from .reverted import FAULTS

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_a_change_of_one_place_that_operations_show(name: str) -> None:
    fault = FAULTS[name]
    source = Path(holdfast.__file__).parent.joinpath(*fault.module.split(".")).with_suffix(".py").read_text()
    assert source.count(fault.mended) == 1
    compile(source.replace(fault.mended, fault.before), fault.module, "exec")
    assert len(named(fault.operations)) == len(fault.operations.split(","))


@pytest.mark.parametrize("name", ["results of an outer join are late", "joins of tables give their rows to functions"])
def a_fault_that_is_put_back_is_found(name: str) -> None:
    """Two that show within seconds; ``make sensitivity`` tries all."""
    command = [sys.executable, "-m", "programs", "--first", "--no-shrink", "--minutes", "0.5", "--fault", name]
    command += ["--operations", FAULTS[name].operations]
    ran = subprocess.run(command, cwd=TESTS, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True)
    assert ran.stdout.startswith("#### seed 1, "), ran.stdout + ran.stderr
