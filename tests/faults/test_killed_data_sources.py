"""PySpark's data sources as source and sink lose and repeat nothing when the driver dies in any phase (``kill -9``).

The source forgets what is committed, and tells if that comes before the checkpoint with its output. A run of the suite tries
some phases by chance. All of them: ``make test EFFORT=4 ARGS=tests/faults/test_killed_data_sources.py``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from data_source_job import IN_DRIVER, ORDERS, PHASES
from orders_service import SHARDS, numbers
from seed_programs import new_seed

from effort import examples
from started_programs import output_of, surroundings

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


def run(directory: Path, phase: str, by: str) -> tuple[int, str]:
    here = Path(__file__).parent
    command = [sys.executable, str(here / "data_source_job.py"), str(directory), phase, by]
    found = {**os.environ, **surroundings(directory), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(here)}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=found)
    _, errors = output_of(job, directory)
    return job.returncode, errors


def check(directory: Path, among: Iterable[str], count: int, by: str) -> None:
    chosen = random.Random(new_seed()).sample(sorted(among), min(examples(count), len(list(among))))
    chosen.sort(key=lambda phase: phase == "before the end")  # behind it no order is left to be read
    for phase in chosen:
        print(phase)
        code, errors = run(directory, phase, by)
        assert not (directory / "too-early.json").exists(), "the source was told to commit before the checkpoint"
        assert code == -signal.SIGKILL, errors
    code, errors = run(directory, "", by)
    assert code == 0, errors
    stored = [number for path in (directory / "out").glob("[0-9]*.json") for number in json.loads(path.read_text())]
    assert Counter(stored) == Counter(numbers({str(shard): ORDERS[by] for shard in range(SHARDS)}))
    assert set(json.loads((directory / "committed.json").read_text()).values()) == {ORDERS[by]}


def test_a_driver_dies_in_each_phase_of_a_data_source_and_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    check(tmp_path, PHASES, 4, "here")


@pytest.mark.spark
def test_a_driver_on_spark_dies_and_data_sources_have_every_row_once(tmp_path: Path) -> None:
    check(tmp_path, IN_DRIVER, 1, "spark")
