"""Another number of key groups: of an operator in a checkpoint, and of its keyed state."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import ConfigurationError
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.canonical import Part, opened_part
from holdfast.state.backends.portions import in_files, portions
from holdfast.state.stored.delta import write_delta
from holdfast.state_api.bootstrap_task import Target

__all__ = ["RegroupTask", "of_other_groups"]


def of_other_groups(uid: str, operator: OperatorCheckpoint, max_parallelism: int) -> OperatorCheckpoint:
    """An operator with another number of key groups, in each of which the keys of all former ones mix.

    Raises:
        ConfigurationError: it has windows, joins or patterns that some of its key groups have fired further than others.
    """
    if operator.max_parallelism == max_parallelism:
        return operator
    times = {*operator.watermarks, *(reached for _, _, reached in operator.ahead)}
    if len(times) > 1 and operator.definition is not None:
        raise ConfigurationError(
            f"the number of key groups of operator {uid!r} cannot change: its key groups have fired up to different event "
            f"times, from {min(times)} to {max(times)} ms, and together they would fire some results twice. Start the job "
            f"from this savepoint with its {operator.max_parallelism} key groups, and take another one when event time has "
            "gone on"
        )
    least = [min(times)] * len(operator.watermarks) if times else []
    return msgspec.structs.replace(operator, max_parallelism=max_parallelism, watermarks=least, ahead=[])


@dataclass(frozen=True)
class RegroupTask:
    """Reads parts of an operator's state, and writes each as files of the new key groups."""

    source: str
    """The storage of the state."""
    target: Target
    max_parallelism: int

    def __call__(self, _: int, parts: Iterable[Part]) -> Iterator[tuple[str, dict[str, Any], IndexedFile]]:
        """Yields for each file the schema of its part, as its fingerprint and as plain data, and the file."""
        source, target = Storage.open(self.source, self.target.options), self.target.storage()
        for part in parts:
            with opened_part(part, source, StateBackendSettings.of({}), tempfile.gettempdir()) as state:
                files = [
                    write_delta(target, self.target.path(part.uid, "dump"), changes)
                    for changes in in_files(portions(state, self.max_parallelism))
                ]
                # Of several subtasks' parts: a schema that reads all their data, which no subtask may have had.
                fingerprint, plain = state.schema.fingerprint, state.schema.plain()
            for file in files:
                yield fingerprint, plain, file
