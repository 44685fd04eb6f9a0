"""BootstrapTask: runs a keyed operator over rows and stores the state that it makes. One task for a range of key groups.

It works like an epoch of a job: the operator opens on the state that there is, takes the rows, and its changes are stored
as files of changed rows and timers. Memory does not grow with the state: changes are stored portion by portion, and rows
that are stored leave memory for a RocksDB on the worker's disk.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from holdfast.checkpoint.metadata import KeyedHandle, OperatorCheckpoint
from holdfast.checkpoint.paths import new_attempt, safe_name
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.rocksdb_options import RocksDBOptions
from holdfast.common.typeinfo import TypeInformation
from holdfast.runtime.plan.operator import Operator
from holdfast.runtime.records.records import RecordBatch
from holdfast.state.backends.backend import HEAP, Place, StateBackendSettings
from holdfast.state.backends.canonical import Part, part_of
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.keys.key_groups import KeyGroupRange, key_group_range
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.store.scratch import scratch_directory
from holdfast.state.stored.delta import write_delta
from holdfast.state.stored.schema import OperatorSchema, restored_schema
from holdfast.state_api.function_reading import copy_of, function_context

__all__ = ["BootstrapTask", "Records", "Target", "Written", "in_lists"]

_MEMORY = 64 << 20
"""Estimated memory of changed rows, in bytes, from which they are stored."""
_ROCKSDB = {RocksDBOptions.MAX_OPEN_FILES.key: "64"}
"""By it, RocksDB's memory does not grow with the number of its files, which may hold a large key group."""
_FIRST = 100
"""Rows in the first file, at least, from which the memory of rows is estimated: those of a batch."""
_MOST = 500_000
"""The most rows in a file."""

Written = tuple[KeyedHandle, dict[str, Any]]
"""The state of a range of key groups, with its schema as plain data."""
Records = tuple[list[Any], list[Any], "list[int] | None"]
"""Keys, elements, and timestamps in ms."""


def in_lists(records: Sequence[tuple[Any, Any, int | None]]) -> Records:
    """Turn triples of key, element and timestamp into lists."""
    keys, values, stamps = map(list, zip(*records, strict=True))
    return keys, values, None if stamps[0] is None else stamps


@dataclass(frozen=True)
class Target:
    """The savepoint that is being written."""

    uri: str
    options: Mapping[str, str]
    now_ms: int
    """Processing time: the time of the last write of state that expires."""

    def storage(self) -> Storage:
        """The savepoint's directory."""
        return Storage.open(self.uri, self.options)

    @staticmethod
    def path(uid: str, kind: str) -> str:
        """A unique path for a file of an operator."""
        return f"{safe_name(uid)}-{new_attempt()}.{kind}"


@dataclass(frozen=True)
class BootstrapTask:
    """Makes the keyed state of one operator. Pickled: it runs in any process."""

    uid: str
    make_operator: Callable[[], Operator]
    key_type: TypeInformation[Any]
    stored: OperatorCheckpoint
    """The operator as it is in the savepoint, with files there; without keyed state for a new one."""
    target: Target
    parallelism: int
    once: bool = False
    """Whether each key has only one record."""

    @property
    def where(self) -> str:
        """The operator, for messages."""
        return f"{self.stored.name!r} (uid {self.uid!r})"

    def check(self) -> None:
        """Open a copy of the operator without rows.

        Raises:
            HoldfastError: as for `declared`.
        """
        self.declared()

    def declared(self) -> dict[str, dict[str, Any]]:
        """The schema that the operator declares without rows, as plain data by its fingerprint.

        Raises:
            ConfigurationError: the function cannot be pickled.
            IncompatibleState: the declared states do not fit those in the savepoint; shows both.
            UserCodeError: the function's ``open`` failed.
        """
        state = KeyedState(self.where, self._schema, max_parallelism=self.stored.max_parallelism)
        copy = copy_of(self, self.where)
        copy._open(state, 0).close()
        return {state.schema.fingerprint: state.schema.plain()}

    @property
    def _schema(self) -> OperatorSchema | None:
        schemas = list(self.stored.schemas.values())
        return restored_schema(self.where, schemas) if schemas else None

    def _open(self, state: KeyedState, subtask: int) -> Operator:
        state.registry.key(self.key_type.to_dict())
        operator = self.make_operator()
        context = function_context(self.uid, self.stored, self.target.now_ms, subtask, self.parallelism)
        operator.context = replace(context, state=state, key_type=self.key_type)
        operator.open()
        return operator

    def run(self, subtask: int, batches: Iterable[Records]) -> Iterator[Written]:
        """Process the records of this subtask's key groups, sorted by key; yields the state if it has changed.

        Raises:
            CorruptFile: a file of the savepoint is missing or altered.
            UserCodeError: the function failed, or a value does not fit its state.
            StorageError: the storage refused a call, or the retry budget ran out.
        """
        groups = key_group_range(self.stored.max_parallelism, self.parallelism, subtask)
        storage, files = self.target.storage(), []
        taken, most = 0, _FIRST
        with self._opened(groups, subtask, storage) as (state, operator, bound):
            for keys, values, stamps in chain(batches, [([], [], None)]):
                if keys:
                    operator.process(RecordBatch(values, stamps, keys))
                    taken += len(keys)
                if taken >= most or state.memory() > _MEMORY or not keys:
                    changes = state.collect()
                    if changes:
                        files.append(write_delta(storage, self.target.path(self.uid, "dump"), changes))
                    state.completed()
                    if self.once and not self._before(groups):
                        state.forget()
                    else:
                        state.evict(math.inf)  # the last key may come again
                    bound()
                    taken, most = 0, _MOST
            schema = state.schema
        if files:
            yield KeyedHandle(groups.first, groups.last, schema.fingerprint, HEAP, base=list(files)), schema.plain()

    def _before(self, groups: KeyGroupRange) -> Part | None:
        """The state that there is."""
        return part_of(self.uid, self.stored, groups)

    @contextmanager
    def _opened(
        self, groups: KeyGroupRange, subtask: int, storage: Storage
    ) -> Iterator[tuple[KeyedState, Operator, Callable[[], None]]]:
        """The operator, open on the stored state of these key groups, and what keeps memory within its bound."""
        part = self._before(groups)
        with scratch_directory(tempfile.gettempdir()) as directory, ThreadPoolExecutor(1) as unused:
            place = Place(self.where, groups, self.stored.max_parallelism, storage, os.path.join(directory, "state"))
            backend = KeyedStateBackend(place, replace(StateBackendSettings.of(_ROCKSDB), cache_bytes=_MEMORY), unused)
            state = backend.open([] if part is None else part.handles, self._schema)
            try:
                operator = self._open(state, subtask)
                backend.replay()
                yield state, operator, backend.bound
                operator.close()
            finally:
                backend.close()
