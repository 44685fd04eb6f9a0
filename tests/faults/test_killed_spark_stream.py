"""A streaming DataFrame loses and repeats nothing when the driver, and with it the query, dies in any phase (``kill -9``).

A run of the suite tries some phases by chance with a model of Spark's query, which keeps a checkpoint location as Spark
does, and one with Spark itself. All of them: ``make test EFFORT=12 ARGS=tests/faults/test_killed_spark_stream.py``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from seed_programs import new_seed
from stream_job import BATCHES, PHASES, SIZE

from effort import examples
from started_programs import output_of, surroundings

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


def some_phases(count: int) -> list[str]:
    chosen = random.Random(new_seed()).sample(sorted(PHASES), min(examples(count), len(PHASES)))
    return [phase for phase in PHASES if phase in chosen]


def run(directory: Path, phase: str, by: str) -> tuple[int, str]:
    command = [sys.executable, str(Path(__file__).with_name("stream_job.py")), directory.as_uri(), phase, by]
    environment = {**os.environ, **surroundings(directory), "PYSPARK_PYTHON": sys.executable}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    _, errors = output_of(job, directory)
    return job.returncode, errors


def check(directory: Path, phases: Sequence[str], by: str) -> None:
    for phase in phases:
        print(phase)
        code, errors = run(directory, phase, by)
        assert code == -signal.SIGKILL, errors
    code, errors = run(directory, "", by)
    assert code == 0, errors
    lines = [line for part in (directory / "out").glob("part-*") for line in part.read_text().split()]
    assert Counter(map(int, lines)) == Counter(range(BATCHES[by] * SIZE))
    rows = [path for path in (directory / "checkpoints").glob("*/sources/*/rows/**/*") if path.is_file()]
    assert rows == []


def test_a_driver_dies_in_each_phase_of_a_batch_and_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    check(tmp_path, some_phases(4), "model")


@pytest.mark.spark
def test_a_driver_dies_with_spark_itself_and_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    (directory := tmp_path / "in").mkdir()
    for number in range(BATCHES["spark"]):
        rows = [{"shop": f"shop {n % 7}", "n": n} for n in range(number * SIZE, (number + 1) * SIZE)]
        (directory / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    check(tmp_path, some_phases(1), "spark")
