"""Whether a program can restore from a checkpoint or savepoint, told before it runs.

No input is read, and no keyed state is loaded: the program's stateful functions are opened on the checkpoint's schemas
alone, so that they declare their states.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import load, read_checkpoint
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint
from holdfast.checkpoint.paths import JobPaths, names_checkpoint, restored_position
from holdfast.checkpoint.retention import missing_files
from holdfast.checkpoint.savepoint import REMEDY, read_savepoint
from holdfast.checkpoint.storage import Storage
from holdfast.common.pickling import use_class_aliases
from holdfast.connectors.base import JobInfo
from holdfast.errors import ConfigurationError, CorruptFile, HoldfastError, IncompatibleState
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.completion import obstacles, unclaimed
from holdfast.runtime.context import Clock, OperatorContext
from holdfast.runtime.listed_states import ListedStates
from holdfast.runtime.operators.base import Operator, StateKind
from holdfast.runtime.plan import Chained, JobPlan, Vertex
from holdfast.runtime.redistribution import OperatorSnapshot, assigned
from holdfast.state.damage import with_content
from holdfast.state.keyed_state import KeyedState
from holdfast.state.registry import SchemaRegistry
from holdfast.state.schema import (
    ROWS,
    AsIs,
    ColumnSchema,
    Incompatible,
    OperatorSchema,
    joined,
    judge_column,
    restored_schema,
)

__all__ = ["RestoreCheck", "StateCheck", "check_restore", "read_check", "write_check"]

AS_IS, MIGRATED, INCOMPATIBLE, NEW, UNDECLARED = "as is", "after migration", "incompatible", "new", "not declared"


@dataclass(frozen=True)
class StateCheck:
    """What becomes of one keyed state."""

    operator: str
    uid: str
    state: str
    verdict: str
    """``as is``, ``after migration``, ``incompatible``, ``new`` (it begins empty), or ``not declared``: the function does
    not declare it in ``open``. What nothing declares stays in the checkpoints."""
    stored: str = ""
    """The state in the checkpoint."""
    declared: str = ""
    """The state in the program."""
    reason: str = ""
    """What a migration changes, or why there is none."""


@dataclass(frozen=True)
class RestoreCheck:
    """Whether a program can restore from a checkpoint or savepoint, and what becomes of the state."""

    path: str
    """The checkpoint or savepoint."""
    job_name: str
    """The job that made it."""
    checkpoint_id: int
    problems: tuple[str, ...]
    """All that prevents it, with the remedies; types that do not fit are in `states`, too."""
    notes: tuple[str, ...]
    """What a person should know before the start: state that is dropped, functions that could not be opened here."""
    states: tuple[StateCheck, ...]
    """The keyed states of all operators."""

    @property
    def restorable(self) -> bool:
        """Whether nothing prevents it."""
        return not self.problems


def check_restore(plan: JobPlan, path: str | None = None) -> RestoreCheck:
    """Check whether a program can restore from a checkpoint or savepoint.

    Args:
        plan: The program.
        path: As for ``execution.state-recovery.path``; None: what the program would restore if it began now.

    Raises:
        ConfigurationError: there is nothing to restore from.
        HoldfastError: the metadata cannot be read: it is altered, or of a format that this release does not read.
    """
    settings = plan.settings
    path = path or settings.restore_path
    savepoint = None
    if path and not names_checkpoint(path):
        opened = read_savepoint(path, settings.storage_options)
        storage, checkpoint, where, savepoint = opened.storage, opened.savepoint.checkpoint, opened.uri, opened.uri
    else:
        storage, checkpoint, where = _of_job(plan, path)
    remedy = "" if savepoint is None else REMEDY
    problems = [str(with_content(each, storage, checkpoint, remedy)) for each in missing_files(storage, checkpoint)]
    problems += obstacles(plan, checkpoint, savepoint)
    notes = [f"dropped: the state of {each}" for each in unclaimed(plan, checkpoint) if settings.ignore_unclaimed_state]
    states: list[StateCheck] = []
    use_class_aliases(plan.class_aliases)
    own: JobPlan = pickle.loads(cloudpickle.dumps(plan))  # the functions of the program itself stay as they are
    for vertex in own.vertices:
        for chained in vertex.chain:
            if chained.factory.state:
                found = _Operator(plan.name, storage, vertex, chained, checkpoint.operators.get(chained.uid))
                problems += found.problems
                notes += found.notes
                states += found.states
    return RestoreCheck(where, checkpoint.job_name, checkpoint.checkpoint_id, tuple(problems), tuple(notes), tuple(states))


def write_check(plan: JobPlan, file: str) -> None:
    """Check a program as `check_restore` does, for another process: write a `RestoreCheck` as JSON, or the error's text."""
    result: RestoreCheck | str
    try:
        result = check_restore(plan)
    except HoldfastError as error:
        result = str(error)
    Path(file).write_bytes(msgspec.json.encode(result))


def read_check(file: Path) -> RestoreCheck | str:
    """What `write_check` has written."""
    return msgspec.json.decode(file.read_bytes(), type=RestoreCheck | str)


def _of_job(plan: JobPlan, path: str | None) -> tuple[Storage, CheckpointMetadata, str]:
    """A checkpoint of the job; without a path the newest one."""
    settings = plan.settings
    if not settings.checkpoint_uri:
        raise ConfigurationError(
            "there is nothing to restore from: name a savepoint, or set execution.checkpointing.dir to the job's checkpoints"
        )
    storage, paths = Storage.open(settings.checkpoint_uri, settings.storage_options), JobPaths.of(plan.name)
    log = CheckpointLog(storage, paths, settings.retained_checkpoints)
    if path:
        number: CheckpointId = restored_position(path, storage.locate(paths.log_prefix))
        return storage, read_checkpoint(storage, paths, number), log.locate(number)
    retained = log.read_retained()
    if not retained:
        raise ConfigurationError(f"job {plan.name!r} has no checkpoint in {storage.uri}: it would begin without state")
    return storage, load(storage, retained[0]).checkpoint, log.locate(retained[0].checkpoint_id)


class _Judging(SchemaRegistry):
    """Notes what becomes of each declared state, and goes on after a type that does not fit."""

    def __init__(self, where: str, schema: OperatorSchema | None = None) -> None:
        super().__init__(where, schema)
        self.stored = self.schema
        self.found: dict[tuple[str, str], tuple[str, ColumnSchema | None, ColumnSchema, str]] = {}
        """By space and name: the verdict, the stored and the declared column, and the reason."""
        self.problems: list[str] = []

    def key(self, declared: Mapping[str, Any] | None) -> None:
        """Declare the key type, and note if it does not fit."""
        try:
            super().key(declared)
        except IncompatibleState as error:
            self.problems.append(str(error))

    def column(self, state: str, column: ColumnSchema, *, again: bool = False) -> int:
        """The position of a column; its verdict is noted."""
        known = self.stored.states.get(state)
        before = next((each for each in known.columns if each.name == column.name), None) if known is not None else None
        if (state, column.name) in self.found or before is None:
            self.found.setdefault((state, column.name), (NEW, None, column, ""))
            return super().column(state, column, again=again)
        verdict = judge_column(before, column)
        if isinstance(verdict, Incompatible):
            self.found[state, column.name] = INCOMPATIBLE, before, column, verdict.reason
            try:
                super().column(state, column, again=again)
            except IncompatibleState as error:
                self.problems.append(str(error))
            return self._replaced(state, column)
        if isinstance(verdict, AsIs):
            self.found[state, column.name] = AS_IS, before, column, ""
        else:
            self.found[state, column.name] = MIGRATED, before, column, verdict.change
        return super().column(state, column, again=again)

    def _replaced(self, state: str, column: ColumnSchema) -> int:
        """Put the declared column in the place of the stored one, so that the function can go on."""
        position = self.schema.column(state, column.name)
        assert position is not None
        known = self.schema.states[state]
        columns = (*known.columns[:position], column, *known.columns[position + 1 :])
        states = {**self.schema.states, state: msgspec.structs.replace(known, columns=columns)}
        self.schema = msgspec.structs.replace(self.schema, states=states)
        return position


class _Operator:
    """One operator of the program, opened on the schemas of its state."""

    def __init__(
        self, job: str, storage: Storage, vertex: Vertex, chained: Chained, stored: OperatorCheckpoint | None
    ) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.states: list[StateCheck] = []
        self._named = f"operator {chained.name!r} (uid {chained.uid!r})"
        where = f"{chained.name!r} (uid {chained.uid!r})"
        share = None if stored is None else assigned(stored, vertex.parallelism, 0)
        state = None
        try:
            if StateKind.KEYED in chained.factory.state:
                state = KeyedState(where, _schema(where, stored), registry=_Judging)
                state.registry.key(None if chained.key_type is None else chained.key_type.to_dict())
            self._open(_context(job, storage, vertex, chained, state, share), chained)
        except HoldfastError as error:
            self.problems.append(str(error))
        registry = None if state is None else state.registry
        if isinstance(registry, _Judging):
            self.problems[:0] = registry.problems
            self.states = list(_states(chained, registry))

    def _open(self, context: OperatorContext, chained: Chained) -> None:
        operator: Operator = chained.factory.create()
        operator.context = context
        try:
            operator.open()
        except (IncompatibleState, CorruptFile):
            raise
        except Exception as error:
            refusal = _cause(error)
            if refusal is not None:
                raise refusal from error
            self.notes.append(
                f"{self._named} could not be opened here, so that some of its states may not have been checked: {error}"
            )
        finally:
            try:
                operator.close()
            except Exception as error:
                self.notes.append(f"{self._named} could not be closed: {error}")


def _cause(error: BaseException | None) -> IncompatibleState | None:
    """The incompatible state behind an error of the user's function."""
    while error is not None and not isinstance(error, IncompatibleState):
        error = error.__cause__
    return error


def _schema(where: str, stored: OperatorCheckpoint | None) -> OperatorSchema | None:
    if stored is None or not stored.schemas:
        return None
    return joined(list(map(OperatorSchema.of_plain, stored.schemas.values()))) or restored_schema(
        where, list(stored.schemas.values())
    )


def _context(
    job: str, storage: Storage, vertex: Vertex, chained: Chained, state: KeyedState | None, share: OperatorSnapshot | None
) -> OperatorContext:
    listed = StateKind.LISTED in chained.factory.state
    return OperatorContext(
        job=JobInfo("check", job, 1, ""),
        uid=chained.uid,
        name=chained.name,
        subtask=0,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism,
        clock=Clock(),
        state=state,
        key_type=chained.key_type,
        lists=ListedStates(storage, share) if listed else None,
        metrics=MetricGroup(),
    )


def _states(chained: Chained, registry: _Judging) -> Iterator[StateCheck]:
    for (_, name), (verdict, before, declared, reason) in registry.found.items():
        known = "" if before is None else str(before)
        yield StateCheck(chained.name, chained.uid, name, verdict, known, str(declared), reason)
    for space, state in registry.stored.states.items():
        for column in state.columns if state.kind == ROWS else ():
            if (space, column.name) not in registry.found:
                yield StateCheck(chained.name, chained.uid, column.name, UNDECLARED, str(column))
