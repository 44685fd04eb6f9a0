"""Storage on a local disk, on S3 (moto's server, a real HTTP server in this process), and with the log in a topic."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.handles import FileHandle
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, OperatorCheckpoint, SourceState, SubtaskState
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.log_router import LogRouter
from holdfast.checkpoint.stores.storage import RetryPolicy, Storage
from holdfast.testing.faulty_storage import FaultyStorage
from holdfast.testing.memory_store import MemoryStore
from holdfast.testing.memory_topic import MemoryTopic

QUICK = RetryPolicy(budget=2.0, first_delay=0.001, longest_delay=0.01)


@pytest.fixture
def topics() -> dict[str, MemoryTopic]:
    """By name: where the logs of the storage "topic" are."""
    return {}


@pytest.fixture(params=["local", "s3", "topic"])
def storage(request: pytest.FixtureRequest, tmp_path, topics) -> Storage:
    if request.param == "topic":
        store = DirectoryStore(str(tmp_path / "checkpoints"))
        return Storage(LogRouter(store, lambda name: topics.setdefault(name, MemoryTopic(name)), str))
    if request.param == "local":
        return Storage.open(str(tmp_path / "checkpoints"))
    config = request.getfixturevalue("s3_config")
    return Storage.open(f"s3://checkpoints/{tmp_path.name}", config)


@pytest.fixture
def paths() -> JobPaths:
    return JobPaths.of("a job")


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def faulty(memory: MemoryStore) -> FaultyStorage:
    return FaultyStorage(memory)


def quick(store) -> Storage:
    return Storage(store, QUICK)


def checkpoint(id: int, generation: int, *files: FileHandle, output: bool = False) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=id,
        generation=generation,
        job_id="id",
        job_name="a job",
        created_at=1_700_000_000_000 + id,
        sources={"source": SourceState({"p0": id})},
        operators={"op": OperatorCheckpoint("operator", subtasks=[SubtaskState([KeyedHandle(0, 127, deltas=list(files))])])},
        committables=[("sink", 0, {"transaction": id})] if output else [],
    )
