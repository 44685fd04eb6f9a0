"""Memory and disk have bounds that the amount of state does not move."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.heavy_jobs import BIG, COLD_KEYS, HOT_RECORDS
from engine.inprocess import LEDGERS, Lab, LedgerSink, SplitSource
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, ValueStateDescriptor
from holdfast.runtime.protocol.instructions import Delay


def heavy(name, directory):
    """The job's output, and by how many MB the process grew."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("heavy_jobs.py"), name, directory],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    return result["values"], result["megabytes"]


@pytest.mark.fault
def test_cold_keys_leave_memory_for_the_store(tmp_path):
    expected = [[n % COLD_KEYS, 1 + n // COLD_KEYS] for n in range(0, 2 * COLD_KEYS, 1000)]
    small, bounded = heavy("cold keys, small cache", tmp_path / "small")
    large, unbounded = heavy("cold keys, large cache", tmp_path / "large")
    assert sorted(small) == sorted(large) == sorted(expected)
    assert bounded < 0.7 * unbounded, f"{bounded} MB with a bound of 2 MB, {unbounded} MB without"


@pytest.mark.fault
def test_a_hot_key_with_a_large_map_does_not_fill_memory(tmp_path):
    values, megabytes = heavy("hot key", tmp_path)
    assert sorted(values) == [[n, n + 1, n // 2 + 1] for n in range(0, HOT_RECORDS, 1000)]
    assert megabytes < 160


@pytest.mark.fault
def test_a_value_of_100_mb_is_kept_restored_and_replaced(tmp_path):
    values, megabytes = heavy("big value", tmp_path)
    assert sorted(values) == [[n, BIG, n - n % 10, n - n % 10] for n in range(40)]
    assert megabytes < 12 * (BIG >> 20)


# ---- a full disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "holdfast-test", str(directory)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


class Keep(KeyedProcessFunction):
    """Writes how often the key was seen; keeps incompressible ballast, so that state takes disk space."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.ballast = runtime_context.get_state(ValueStateDescriptor("ballast"))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.ballast.update(os.urandom(2000))
        yield value % 20, count


@pytest.mark.fault
@pytest.mark.parametrize("full", ["checkpoints", "disk"])
def test_a_full_disk_is_reported_and_the_job_resumes_once_there_is_space(tmp_path, request, small_disk, full):
    numbers = list(range(400))
    name = f"disk-{full}"
    LEDGERS.pop(name, None)

    def build(env):
        source = env.from_source(SplitSource({"a": numbers}), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda n: n % 20).process(Keep()).sink_to(LedgerSink(name))

    directory = small_disk if full == "checkpoints" else tmp_path
    storage = {"state.backend.cache.size": "1kb", "state.backend.rocksdb.writebuffer.size": "64kb"}
    lab = Lab(build, directory, budget=20, config=storage, ledgers=(name,))
    if full == "disk":
        (tmp_path / "disk").mkdir(exist_ok=True)
    coordinator = lab.coordinator()
    runs = []
    make = coordinator._make_executor
    ballast = small_disk / "ballast"

    class Filling:
        """Fills the disk before the fifth epoch, and gives the space back after the second failure."""

        def __init__(self, executor):
            self._executor = executor

        def run(self, order):
            runs.append(order.epoch)
            if len(runs) == 5:
                with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(os.urandom(4096))
            return self._executor.run(order)

    coordinator._make_executor = lambda job, plan: Filling(make(job, plan))
    carry_out = coordinator._carry_out

    def carrying_out(instruction):
        if isinstance(instruction, Delay) and len(lab.metrics.snapshot().failures) >= 2:
            ballast.unlink(missing_ok=True)
        return carry_out(instruction)

    coordinator._carry_out = carrying_out
    coordinator.run()
    lab.close()
    failures = lab.metrics.snapshot().failures
    assert failures, "the full disk was not noticed"
    assert any("No space left on device" in failure.text or "StorageFull" in failure.text for failure in failures)
    expected = sorted((n % 20, 1 + n // 20) for n in numbers)
    assert sorted(LEDGERS[name].values) == expected


FILL = """
import os, sys
from holdfast.state.store.store import RocksDBStore, rocksdb_settings

store = RocksDBStore(sys.argv[1] + "/db", rocksdb_settings({"state.backend.rocksdb.writebuffer.size": "64kb"}))
with open(sys.argv[1] + "/ballast", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
try:
    for n in range(1000):
        store.write([(n.to_bytes(4, "big"), os.urandom(2000))])
except OSError as error:
    print(error)
os._exit(0)
"""


@pytest.mark.fault
def a_store_whose_writes_wait_for_a_flush_tells_that_the_disk_is_full(small_disk):
    """RocksDB itself would wait for ever, even when there is space again: so its writer must not wait within RocksDB."""
    told = subprocess.run(
        [sys.executable, "-c", FILL, str(small_disk)], capture_output=True, text=True, timeout=600, check=True
    )
    assert "No space left on device" in told.stdout, told.stderr
