"""RegroupTask: writes parts of keyed state with another number of key groups."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.storage import Storage
from holdfast.state.backend import StateBackendSettings
from holdfast.state.canonical import Part, opened_part
from holdfast.state.delta import write_delta
from holdfast.state.portions import in_files, portions
from holdfast.state_api.bootstrap_task import Target

__all__ = ["RegroupTask"]


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
