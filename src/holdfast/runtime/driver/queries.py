"""StateQueries: reads the state of single keys from a running job's completed checkpoints."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.job_client import HeldCheckpoint
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.windows.window_content import CONTENTS
from holdfast.runtime.operators.windows.window_definition import ALIGNED
from holdfast.runtime.plan.settings import JobSettings
from holdfast.state.backends.canonical import Part, opened_part, part_of, parts_of
from holdfast.state.backends.contents import value_of
from holdfast.state.cells.column import Column
from holdfast.state.keys.key_groups import KeyGroupRange, key_group
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.stored.schema import ROWS, OperatorSchema, joined, restored_schema

__all__ = ["Answer", "StateQueries"]


class Answer(NamedTuple):
    """The answer to a query."""

    value: Any
    """The state's content, as its handle shows it, or an aggregating state's accumulator; None if the key has none."""
    checkpoint_id: CheckpointId
    """The checkpoint that contains it."""


class StateQueries:
    """Answers queries from the newest completed checkpoint.

    Only the files with the key's group are read, and no task takes part, so a query does not slow the job down.

    Args:
        storage: The storage of the job's checkpoints.
        retention: Keeps the files of the checkpoint that is being read.
        settings: The job's settings.
        locate: Returns the path of a checkpoint.
    """

    def __init__(
        self,
        storage: Storage,
        retention: Retention,
        settings: JobSettings,
        locate: Callable[[CheckpointId], str],
    ) -> None:
        self._storage = storage
        self._retention = retention
        self._settings = settings
        self._locate = locate

    def query(self, uid: str, name: str, key: Any, window: int | None = None) -> Answer:
        """Read a state of a key.

        Args:
            uid: The operator's uid.
            name: The state's name.
            key: The key.
            window: The start of a tumbling window, in ms, for the content of windows.

        Raises:
            CheckpointError: no checkpoint has been completed yet.
            ConfigurationError: the checkpoint has no such operator or state; the message lists those that it has.
            StorageError: the storage does not answer.
        """
        with self._retention.hold() as checkpoint:
            return Answer(self._read(checkpoint, uid, name, key, window), checkpoint.checkpoint_id)

    @contextmanager
    def held_checkpoint(self) -> Iterator[HeldCheckpoint]:
        """Keep the newest completed checkpoint from deletion while it is read.

        Raises:
            CheckpointError: no checkpoint has been completed yet.
        """
        with self._retention.hold() as held:
            yield HeldCheckpoint(held.checkpoint_id, self._locate(held.checkpoint_id), self._settings.storage_options)

    def largest_keys(self, uid: str) -> Any:
        """The largest keys of an operator in the newest checkpoint, as plain data. Blocks for seconds.

        Another process reads the checkpoint, at a low priority: in this one, the work would hold up the driver.

        Raises:
            CheckpointError: no checkpoint has been completed yet.
            ConfigurationError: the operator has no keyed state, or the state cannot be read.
        """
        with self._retention.hold() as newest:
            path = self._locate(newest.checkpoint_id)
            command = [sys.executable, "-m", "holdfast.state_api.snapshots.largest"]
            request = json.dumps([path, self._settings.storage_options, uid])
            done = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise ConfigurationError(said[-1] if said else "the process that read the checkpoint was killed")
        return json.loads(done.stdout)

    def _read(self, checkpoint: CheckpointMetadata, uid: str, name: str, key: Any, window: int | None) -> Any:
        operator = checkpoint.operators.get(uid)
        if operator is None or not operator.schemas:
            keyed = sorted(each for each, stored in checkpoint.operators.items() if stored.schemas)
            raise ConfigurationError(
                f"there is no keyed state of an operator with uid {uid!r}; the job has state of {', '.join(keyed) or 'none'}"
            )
        where = f"{operator.name!r} (uid {uid!r})"
        if name == CONTENTS and (operator.definition or {}).get("form", ALIGNED) != ALIGNED:
            raise ConfigurationError(
                f"the windows of operator {where} cannot be queried: only contents of tumbling windows without a trigger "
                "or an evictor are stored under their start"
            )
        try:
            group = key_group(key, operator.max_parallelism)
        except TypeError as error:
            raise ConfigurationError(f"operator {where} cannot have this key: {error}") from None
        part = part_of(uid, operator, KeyGroupRange(group, group))
        schema = joined(list(map(OperatorSchema.of_plain, operator.schemas.values())))
        if schema is None:  # states declared while functions run may be in another order in each subtask
            schema = restored_schema(where, list((operator if part is None else part).schemas.values()))
        family, position = _column(schema, where, name, window is not None)
        if part is None:
            return None

        def declare(state: KeyedState) -> None:
            known = state.schema.states.get(family)
            if known is not None and position < len(known.columns):
                state.space(family).register(Column.stored(known.columns[position], known.columns[position].types))

        scratch = self._settings.temporary_directory or tempfile.gettempdir()
        os.makedirs(scratch, exist_ok=True)

        def opened(read: Part) -> AbstractContextManager[KeyedState]:
            return opened_part(read, self._storage, self._settings.state_backend, scratch, declare)

        with opened(part) as state:
            table = state.spaces[family].tables.get(window) if family in state.spaces else None
            row = None if table is None else table.load_one(key)
            if row is not None and position + 1 < len(row) and row[position + 1] is not None:
                return value_of(state.schema.states[family].columns[position], row[position + 1], key)
            kinds = _kinds(state, family)
        if not kinds:  # no other key in its group: try other groups
            with opened(next(parts_of(uid, operator))) as state:
                kinds = _kinds(state, family)
        if kinds and _kind(key) not in kinds:
            raise ConfigurationError(
                f"operator {where} has no key of type {_kind(key)}: its keys are of type {', '.join(sorted(kinds))} "
                '(as JSON, the string 7 is "7")'
            )
        return None


def _kind(key: Any) -> str:
    """The type of a key; all numbers have one type, because 1 and 1.0 are one key."""
    return "number" if isinstance(key, int | float) else type(key).__name__


def _kinds(state: KeyedState, family: str) -> set[str]:
    """The types of some of a state's keys."""
    tables = state.spaces[family].tables.values() if family in state.spaces else ()
    return {_kind(key) for table in tables for keys, _ in itertools.islice(table.blocks(), 1) for key in keys}


def _column(schema: OperatorSchema, where: str, name: str, windowed: bool) -> tuple[str, int]:
    """The family and position of a state."""
    families = {each: stored for each, stored in schema.states.items() if stored.kind == ROWS}
    for family, stored in families.items():
        position = schema.column(family, name)
        if position is not None and bool(stored.slices) is windowed:
            return family, position
        if position is not None and windowed:
            raise ConfigurationError(f"state {name!r} of operator {where} belongs to no window: ask for it without one")
    known = [
        column.name + (" (with the start of a window)" if stored.slices else "")
        for stored in families.values()
        for column in stored.columns
    ]
    raise ConfigurationError(f"operator {where} has no state {name!r} to query; it has {', '.join(known) or 'none'}")
