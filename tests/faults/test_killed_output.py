"""A function of each checkpoint's output gets every row under one id when the driver dies in any phase (``kill -9``).

A run of the suite tries some phases by chance. All of them: ``make test EFFORT=4 ARGS=tests/faults/test_killed_output.py``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from output_job import PHASES, ROWS
from seed_programs import new_seed

from effort import examples
from started_programs import output_of, surroundings

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


def run(directory: Path, phase: str) -> tuple[int, str]:
    command = [sys.executable, str(Path(__file__).with_name("output_job.py")), str(directory), phase]
    environment = {**os.environ, **surroundings(directory)}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    _, errors = output_of(job, directory)
    return job.returncode, errors


def test_a_driver_dies_in_each_phase_of_a_delivery_and_every_row_is_under_one_id(tmp_path: Path) -> None:
    chosen = random.Random(new_seed()).sample(sorted(PHASES), min(examples(3), len(PHASES)))
    for phase in chosen:
        print(phase)
        code, errors = run(tmp_path, phase)
        assert code == -signal.SIGKILL, errors
    code, errors = run(tmp_path, "")
    assert code == 0, errors
    delivered = [n for file in (tmp_path / "out").glob("*.json") for n in json.loads(file.read_text())]
    assert Counter(delivered) == Counter(range(ROWS))
    left = [path.name for path in (tmp_path / "checkpoints").glob("*/sinks/**/*") if path.is_file()]
    assert len(left) == 1
    assert left[0].startswith("done-")
