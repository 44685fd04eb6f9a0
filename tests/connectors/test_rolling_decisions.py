"""When a file is rolled, and what the state of the files that wait holds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.metadata import ListPart
from holdfast.connectors.file.sink_settings import DefaultRollingPolicy, FileCompactStrategy, RollingPolicy
from holdfast.connectors.file.waiting import Rolling, WaitingFile, restored_files
from holdfast.errors import CorruptFile, IncompatibleState

AGED = DefaultRollingPolicy(part_size=100, rollover_interval=1000, inactivity_interval=300)
EACH = RollingPolicy.on_checkpoint_rolling_policy()
LARGE, SECOND = FileCompactStrategy(150, None), FileCompactStrategy(None, 2)
EITHER = FileCompactStrategy(150, 2)


def waits(since: int = 0, last: int = 0, size: int = 0, checkpoints: int = 0) -> WaitingFile:
    return WaitingFile("bucket", since, last, size, checkpoints)


@pytest.mark.parametrize(
    ("rolling", "at_once", "counts"),
    [
        (Rolling(EACH), True, False),
        (Rolling(AGED), False, False),
        (Rolling(EACH, LARGE), False, False),
        (Rolling(AGED, SECOND), False, True),
        (Rolling(EACH, EITHER), False, True),
    ],
    ids=str,
)
def test_files_wait_for_a_policy_or_a_compaction_and_the_checkpoints_count_for_some(
    rolling: Rolling, at_once: bool, counts: bool
):
    assert (rolling.at_once, rolling.counts) == (at_once, counts)


@pytest.mark.parametrize(
    ("rolling", "full", "more"),
    [
        (Rolling(AGED), (100, 0), (99, 9)),
        (Rolling(AGED, LARGE), (150, 0), (149, 9)),
        (Rolling(AGED, SECOND), (100, 2), (900, 1)),
        (Rolling(AGED, SECOND), (101, 3), (99, 2)),
        (Rolling(AGED, EITHER), (150, 0), (149, 1)),
        (Rolling(AGED, EITHER), (100, 2), (99, 2)),
    ],
    ids=str,
)
def a_file_is_full_from_a_size_on(rolling: Rolling, full: tuple[int, int], more: tuple[int, int]):
    assert rolling.is_full(*full)
    assert not rolling.is_full(*more)
    assert not Rolling(EACH, rolling.compaction).is_full(*full)


@pytest.mark.parametrize(
    ("rolling", "file", "size", "now", "rolls"),
    [
        (Rolling(EACH), waits(), 0, 0, True),
        (Rolling(AGED), waits(), 0, 299, False),
        (Rolling(AGED), waits(), 0, 300, True),
        (Rolling(AGED), waits(last=900), 0, 999, False),
        (Rolling(AGED), waits(last=900), 0, 1000, True),
        (Rolling(AGED), waits(), 99, 0, False),
        (Rolling(AGED), waits(), 100, 0, True),
        (Rolling(EACH, LARGE), waits(), 149, 10_000, False),
        (Rolling(EACH, LARGE), waits(), 150, 0, True),
        (Rolling(EACH, SECOND), waits(checkpoints=1), 900, 10_000, False),
        (Rolling(EACH, SECOND), waits(checkpoints=2), 0, 0, True),
        (Rolling(AGED, EITHER), waits(checkpoints=2), 0, 299, False),
        (Rolling(AGED, EITHER), waits(checkpoints=2), 0, 300, True),
        (Rolling(AGED, EITHER), waits(), 150, 0, True),
    ],
    ids=str,
)
def a_file_is_rolled_at_a_checkpoint_once_policy_and_compaction_say_so(
    rolling: Rolling, file: WaitingFile, size: int, now: int, rolls: bool
):
    assert rolling.rolls(file, size, now) is rolls


@pytest.mark.parametrize(
    ("rolling", "file", "due"),
    [
        (Rolling(EACH), waits(), None),
        (Rolling(AGED), waits(), 300),
        (Rolling(AGED), waits(last=900), 1000),
        (Rolling(AGED, LARGE), waits(size=149), None),
        (Rolling(AGED, LARGE), waits(size=150), 300),
        (Rolling(EACH, SECOND), waits(checkpoints=1), 1050),
        (Rolling(EACH, SECOND), waits(checkpoints=2), None),
        (Rolling(AGED, SECOND), waits(checkpoints=1), 1050),
        (Rolling(AGED, SECOND), waits(since=500, last=900, checkpoints=1), 1200),
        (Rolling(AGED, SECOND), waits(since=500, last=900, checkpoints=2), 1200),
    ],
    ids=str,
)
def a_file_asks_for_a_checkpoint_when_it_can_be_rolled_or_counted(rolling: Rolling, file: WaitingFile, due: int | None):
    assert rolling.due(file, 50) == due


class State:
    """The state of a writer, whose parts beyond ``inline`` bytes are said to be in files."""

    inline = 1000

    def write(self, elements: list[bytes]) -> ListPart:
        return ListPart(elements)

    def read(self, part: ListPart) -> list[bytes]:
        return part.elements


def made(bucket: str, since: int, last: int, checkpoints: int, *chunks: bytes) -> WaitingFile:
    file = WaitingFile(bucket, since, last, checkpoints=checkpoints)
    for chunk in chunks:
        file.add(State(), chunk)  # type: ignore[arg-type]
    return file


def the_files_of_several_former_subtasks_are_one_by_bucket():
    files = [made("a", 5, 9, 1, b"12", b"3"), made("b", 1, 2, 0), made("a", 4, 8, 3, b"4567"), made("a", 6, 7, 2)]
    found = restored_files([part for file in files for part in file.stored("lines")], "lines")
    assert {bucket: (each.since, each.last, each.size, each.checkpoints) for bucket, each in found.items()} == {
        "a": (4, 9, 7, 3),
        "b": (1, 2, 0, 0),
    }
    chunks: Any = {bucket: list(each.chunks(State())) for bucket, each in found.items()}  # type: ignore[arg-type]
    assert chunks == {"a": [b"12", b"3", b"4567"], "b": []}
    with pytest.raises(IncompatibleState, match=r"\(lines; now parquet\)"):
        restored_files(files[0].stored("lines"), "parquet")
    with pytest.raises(CorruptFile, match="outside the directory"):
        restored_files(made("../a", 1, 1, 0).stored("lines"), "lines")
