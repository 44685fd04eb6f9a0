"""The job of ``test_killed_output.py``: a function writes the output of each checkpoint to a file with its id.

It kills itself in the phase it is told. Arguments: a directory, and the phase (empty: none).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deaths import Death

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common import Configuration, Types
from holdfast.spark.checkpoint_sink import CheckpointSink
from holdfast.spark.delivery import StagedCommitter
from holdfast.spark.staged_output import StagedOutput, StagedWriter
from holdfast.testing import InProcessEnvironment

ROWS = 600
PAIR = Types.ROW_NAMED(["shop", "n"], [Types.STRING(), Types.LONG()])


class ToFiles:
    """Replaces what it has written under the same id."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory, "out")
        self.directory.mkdir(exist_ok=True)

    def __call__(self, output: StagedOutput) -> None:
        numbers = [row["n"] for batch in output.batches() for row in batch.to_pylist()]
        file = self.directory / f"{output.checkpoint_id}.json"
        if file.exists():
            assert json.loads(file.read_text()) == numbers, "other rows under the same id"
        self.write(file, json.dumps(numbers))

    def write(self, file: Path, text: str) -> None:
        fresh = file.with_suffix(".fresh")
        fresh.write_text(text)
        fresh.rename(file)


PHASES = {
    "before a part": Death(StagedWriter, "_put", False, 3),
    "after a part": Death(StagedWriter, "_put", True, 4),
    "before the checkpoint": Death(CheckpointLog, "complete", False, 3),
    "after the checkpoint": Death(CheckpointLog, "complete", True, 3),
    "amid the function": Death(ToFiles, "write", False, 2),
    "at the end of the function": Death(ToFiles, "write", True, 2),
    "after the function, before its marker": Death(ToFiles, "__call__", True, 2),
    "after the marker, before the deletion": Death(StagedCommitter, "_delete", False, 3),
    "after the deletion": Death(StagedCommitter, "_delete", True, 3),
    "in a recovery, before orphans are deleted": Death(StagedCommitter, "_sweep", False, 1),
}


def main(directory: str, phase: str) -> None:
    if phase:
        PHASES[phase].arm()
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", f"file://{directory}/checkpoints")
    configuration.set_string("holdfast.epoch.max-records", "25")
    env = InProcessEnvironment(configuration).set_parallelism(2)
    numbers = env.from_collection([(f"shop {n % 7}", n) for n in range(ROWS)], PAIR)
    keyed = numbers.key_by(lambda row: row.shop).map(lambda row: row, output_type=PAIR)
    keyed.sink_to(CheckpointSink("files", ToFiles(directory)))
    env.execute("output")


if __name__ == "__main__":
    main(*sys.argv[1:])
