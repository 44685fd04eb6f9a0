"""Channel state loses and repeats nothing: drivers and slots are killed, and the job moves to other parallelisms with it.

A run of the suite kills a slot and a driver at one parallelism by chance, with ``EFFORT=2`` at two.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from seed_programs import KEPT, Feed, Program, Reader, new_seed
from slow_key import HOT

from effort import examples
from holdfast.checkpoint.log_reader import LogReader
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.savepoint import read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import HoldfastError

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

JOB = "slow-key"


class NumberedFeed(Feed):
    """Records numbered by key; every other one has the hot key."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts = Counter[str]()

    def _write(self, partition: int, key: str, at: int) -> None:
        self.counts[key] += 1
        record = json.dumps({"key": key, "number": self.counts[key]})
        self._producer.produce(self._topic, record, partition=partition)
        self.sent.append((key, at))


def keys(seed: int, partitions: int) -> Any:
    """Partition, key, and no time; a key is in one partition."""
    draw, number = random.Random(seed), 0
    while True:
        number += 1
        other = draw.randrange(12)
        yield (0, HOT, 0) if number % 2 else (other % partitions, f"k{other}", 0)


def has_channel_state(checkpoint: CheckpointMetadata) -> bool:
    return any(state.has_channel_state for operator in checkpoint.operators.values() for state in operator.subtasks)


def waits_for_a_key(program: Program) -> bool:
    """Whether the newest checkpoint has channel state."""
    paths, storage = JobPaths.of(JOB), Storage.open(str(program.checkpoints.parent))
    try:
        newest = LogReader(storage, paths).read_retained()[:1]
        return any(has_channel_state(read_checkpoint(storage, paths, each.checkpoint_id)) for each in newest)
    except HoldfastError:
        return False  # it was deleted meanwhile: a newer one is there


def test_channel_state_survives_kills_of_drivers_and_slots_and_moves_to_other_parallelisms(
    kafka: Any, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    draw = random.Random(seed := new_seed())
    topic, results = new_topic(2), new_topic(2, **KEPT)
    feed = NumberedFeed(kafka.bootstrap_servers, topic, keys(seed, 2))
    reader = Reader(kafka.bootstrap_servers, results)
    slow = tmp_path / "slow"
    slow.touch()
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "RECORDS_TOPIC": topic,
        "RESULTS_TOPIC": results,
        "SLOW": str(slow),
    }
    with Program(str(Path(__file__).with_name("slow_key.py")), JOB, environment, feed) as program:

        def until_it_waits() -> None:
            program.wait_for_checkpoints(2)
            program.wait(lambda: waits_for_a_key(program), "with channel state in the checkpoint", program.driver)
            program.let_pass(draw.uniform(0, 0.3))

        widths = sorted(draw.sample((2, 3), min(examples(1), 2)))  # the next driver restores channel state at another one
        for parallelism in widths:
            program.rescale(parallelism)
            program.start()
            until_it_waits()
            program.driver.kill(draw.choice(program.members("slot")))
            until_it_waits()
            program.kill()
        first, second = (2, 3) if widths[-1] == 3 else (3, 2)
        program.rescale(first)
        program.start()
        until_it_waits()
        asked = program.request("PATCH", f"/rescaling?parallelism={second}")
        page = f"/rescaling/{asked['request-id']}"
        program.wait(lambda: program.request("GET", page)["status"]["id"] == "COMPLETED", "rescaled", program.driver)
        until_it_waits()
        program.request("POST", "/stop", {"targetDirectory": (tmp_path / "savepoints").as_uri(), "drain": False})
        slow.unlink()
        program._feed = None
        assert program.wait_for_end(program.driver) == 0
        (savepoint,) = (tmp_path / "savepoints").iterdir()
        assert not has_channel_state(read_savepoint(savepoint.as_uri()).savepoint.checkpoint)
        program.rescale(1)
        program.start(without_spark=True)
        feed.go_on(len(feed.sent) + 50)
        assert feed._producer.flush(600) == 0
        program.wait(lambda: reader.look() >= len(feed.sent), f"all {len(feed.sent)} results visible", program.driver)
        program.kill()
        found = reader.by_key()
    reader.close()
    assert {key: len(told) for key, told in found.items()} == dict(feed.counts)
    for told in found.values():
        assert [(each["number"], each["count"]) for each in told] == [(n, n) for n in range(1, len(told) + 1)]
