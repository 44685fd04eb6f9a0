"""Tells before a program runs whether it can restore from a checkpoint or savepoint.

No input is read and no keyed state is loaded: the program's stateful functions are opened on the checkpoint's schemas alone,
so that they declare their states.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.entries import CheckpointRecord
from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import load, read_checkpoint
from holdfast.checkpoint.metadata import CheckpointMetadata, ListedState, OperatorCheckpoint, has_output
from holdfast.checkpoint.paths import JobPaths, names_checkpoint, restored_position
from holdfast.checkpoint.retention import missing_files
from holdfast.checkpoint.savepoint import REMEDY, read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.checkpoint.takeover import newest_intact
from holdfast.common.values.pickling import dumps_program, use_class_aliases
from holdfast.connectors.base import JobInfo
from holdfast.errors import ConfigurationError, CorruptFile, HoldfastError, IncompatibleState
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.definitions import changed_definitions, continued
from holdfast.runtime.plan.listed_states import ListedStates, list_text
from holdfast.runtime.plan.operator import Operator, StateKind
from holdfast.runtime.plan.plan import Chained, JobPlan, Vertex
from holdfast.runtime.plan.redistribution import OperatorSnapshot, assigned
from holdfast.runtime.protocol.resumption import obstacles, unclaimed, with_key_groups
from holdfast.runtime.task.changelogs import judge_changelogs
from holdfast.runtime.time.clock import Clock
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.stored.damage import with_content
from holdfast.state.stored.elements import ElementForm
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import (
    ROWS,
    VALUES,
    AsIs,
    ColumnSchema,
    Incompatible,
    OperatorSchema,
    Verdict,
    joined,
    judge_column,
    restored_schema,
)

__all__ = [
    "JudgingLists",
    "OperatorCheck",
    "RestoreCheck",
    "StateCheck",
    "check_restore",
    "read_check",
    "write_answer",
    "write_check",
]

AS_IS, MIGRATED, INCOMPATIBLE, NEW, UNDECLARED = "as is", "after migration", "incompatible", "new", "not declared"
RESCALED, REMOVED, DROPPED = "rescaled", "removed", "dropped"


@dataclass(frozen=True)
class OperatorCheck:
    """What will happen to a source, an operator with state, or a sink with prepared output."""

    kind: str
    """``source``, ``operator`` or ``sink``."""
    name: str
    uid: str
    verdict: str
    """``as is``, ``rescaled`` (it continues at another parallelism), ``new`` (it starts without state), ``incompatible``,
    ``removed`` (the program lacks it, and is refused), or ``dropped`` (the program lacks it, and continues).
    """
    stored_parallelism: int = 0
    """Parallelism in the checkpoint; 0 for sources, sinks, and what is new."""
    parallelism: int = 0
    """Parallelism in the program; 0 for what the program lacks."""


@dataclass(frozen=True)
class StateCheck:
    """What will happen to one state."""

    operator: str
    uid: str
    state: str
    verdict: str
    """``as is``, ``after migration``, ``incompatible``, ``new`` (it starts empty), or ``not declared``: the function does
    not declare it in ``open`` or ``initialize_state``. States that nothing declares stay in the checkpoints.
    """
    stored: str = ""
    """The state as stored in the checkpoint."""
    declared: str = ""
    """The state as the program declares it."""
    reason: str = ""
    """What a migration changes, or why it is impossible."""


@dataclass(frozen=True)
class RestoreCheck:
    """Whether a program can restore from a checkpoint or savepoint, and what will happen to the state."""

    path: str
    """The checkpoint or savepoint."""
    job_name: str
    """The job that wrote it."""
    checkpoint_id: int
    problems: tuple[str, ...]
    """Everything that prevents the restore, with remedies; types that do not fit are also in `states`."""
    notes: tuple[str, ...]
    """What the user should know before the start: state that is dropped, functions that could not be opened here."""
    states: tuple[StateCheck, ...]
    """The keyed and operator states of all operators."""
    operators: tuple[OperatorCheck, ...] = ()
    """The sources, the operators with state, and the sinks with prepared output."""

    @property
    def restorable(self) -> bool:
        """Whether nothing prevents the restore."""
        return not self.problems


def check_restore(plan: JobPlan, path: str | None = None) -> RestoreCheck:
    """Check whether a program can restore from a checkpoint or savepoint.

    Args:
        plan: The program.
        path: As for ``execution.state-recovery.path``; None: what the program would restore if it started now.

    Raises:
        ConfigurationError: there is nothing to restore from.
        HoldfastError: the metadata cannot be read: it is altered, or has a format that this release does not read.
    """
    settings = plan.settings
    path = path or settings.restore_path
    savepoint = None
    damage: CorruptFile | None = None
    passed_over: list[str] = []
    if path and not names_checkpoint(path):
        opened = read_savepoint(path, settings.storage_options)
        storage, checkpoint, where, savepoint = opened.storage, opened.savepoint.checkpoint, opened.uri, opened.uri
    elif path:
        storage, checkpoint, where = _of_job(plan, path)
    else:
        storage, checkpoint, where, damage, passed_over = _newest(plan)
    remedy = "" if savepoint is None else REMEDY
    plan = with_key_groups(plan, checkpoint)
    missing = (each for each in missing_files(storage, checkpoint) if damage is None or each.path != damage.path)
    problems = [] if damage is None else [str(damage)]
    problems += [str(with_content(each, storage, checkpoint, remedy)) for each in missing]
    found_obstacles = list(obstacles(plan, checkpoint, savepoint))
    problems += [each.reason for each in found_obstacles]
    bad = {each.uid for each in found_obstacles}
    changelogs = judge_changelogs(plan)
    problems += [reason for _, reason in changelogs.problems]
    bad |= {uid for uid, _ in changelogs.problems}
    dropped = unclaimed(plan, checkpoint) if settings.ignore_unclaimed_state else []
    notes = [*passed_over, *(f"dropped: the state of {each}" for each in dropped), *changelogs.notes]
    states: list[StateCheck] = []
    use_class_aliases(plan.class_aliases)
    own: JobPlan = pickle.loads(dumps_program(plan))  # a copy: opening must not change the program's own functions
    changed = {each.uid for vertex in own.vertices for each in changed_definitions(vertex, checkpoint.operators)}
    for vertex in own.vertices:
        for chained in vertex.chain:
            if chained.factory.state and chained.uid not in changed:
                stored = checkpoint.operators.get(chained.uid)
                chained = replace(chained, factory=continued(chained.factory, stored))
                found = _Operator(plan.name, storage, vertex, chained, stored)
                problems += found.problems
                bad |= {chained.uid} if found.problems else set()
                notes += found.notes
                states += found.states
    return RestoreCheck(
        where,
        checkpoint.job_name,
        checkpoint.checkpoint_id,
        tuple(problems),
        tuple(notes),
        tuple(states),
        tuple(_operators(plan, checkpoint, bad)),
    )


def write_check(plan: JobPlan, file: str) -> None:
    """Check a program like `check_restore`, for another process: write a `RestoreCheck` as JSON, or the error's text."""
    result: RestoreCheck | str
    try:
        result = check_restore(plan)
    except HoldfastError as error:
        result = str(error)
    write_answer(result, file)


def write_answer(result: RestoreCheck | str, file: str) -> None:
    """Write a check, or why there is none, for `read_check` in another process."""
    Path(file).write_bytes(msgspec.json.encode(result))


def read_check(file: Path) -> RestoreCheck | str:
    """Read what `write_answer` wrote."""
    return msgspec.json.decode(file.read_bytes(), type=RestoreCheck | str)


def _log_of(plan: JobPlan, purpose: str) -> tuple[Storage, JobPaths, CheckpointLog]:
    """The log of the job's checkpoints; ``purpose`` says in an error why it is needed."""
    settings = plan.settings
    if not settings.checkpoint_uri:
        raise ConfigurationError(purpose)
    storage, paths = Storage.open(settings.checkpoint_uri, settings.storage_options), JobPaths.of(plan.name)
    return storage, paths, CheckpointLog(storage, paths, settings.retained_checkpoints)


def _of_job(plan: JobPlan, path: str) -> tuple[Storage, CheckpointMetadata, str]:
    """A checkpoint of the job."""
    storage, paths, log = _log_of(
        plan, f"set execution.checkpointing.dir to the directory of the checkpoints of the job that restores {path}"
    )
    number: CheckpointId = restored_position(path, storage.locate(paths.log_prefix))
    return storage, read_checkpoint(storage, paths, number), log.locate(number)


def _newest(plan: JobPlan) -> tuple[Storage, CheckpointMetadata, str, CorruptFile | None, list[str]]:
    """The checkpoint that the job would continue from, why it would not, and the checkpoints that it would pass over."""
    storage, _, log = _log_of(
        plan,
        "there is nothing to restore from: name a savepoint, or set execution.checkpointing.dir to the job's checkpoints",
    )
    retained = log.read_retained()
    if not retained:
        raise ConfigurationError(f"job {plan.name!r} has no checkpoint in {storage.uri}: it would begin without state")
    found = dict[CheckpointId, CheckpointMetadata]()
    passed_over: list[str] = []

    def verify(record: CheckpointRecord) -> None:
        try:
            checkpoint = found[record.checkpoint_id] = load(storage, record).checkpoint
            for error in missing_files(storage, checkpoint):
                raise with_content(error, storage, checkpoint)
        except CorruptFile as error:
            passed_over.append(f"checkpoint {record.checkpoint_id} is passed over: {error}")
            raise

    try:
        chosen = retained[newest_intact(retained, verify, log.locate)].checkpoint_id
    except CorruptFile as error:
        if not found:
            raise
        chosen = next(iter(found))
        return storage, found[chosen], log.locate(chosen), error, []
    return storage, found[chosen], log.locate(chosen), None, passed_over


def _operators(plan: JobPlan, checkpoint: CheckpointMetadata, bad: Collection[str]) -> Iterator[OperatorCheck]:
    """Check each operator. ``bad``: the uids of those that cannot continue."""
    missing = {each.uid: each for each in unclaimed(plan, checkpoint)}
    gone = DROPPED if plan.settings.ignore_unclaimed_state else REMOVED
    for vertex in plan.vertices:
        source = vertex.source
        if source is not None:
            verdict = INCOMPATIBLE if source.uid in bad else AS_IS if source.uid in checkpoint.sources else NEW
            yield OperatorCheck("source", source.name, source.uid, verdict, parallelism=vertex.parallelism)
    for vertex in plan.vertices:
        for chained in vertex.chain:
            uid, stored = chained.uid, checkpoint.operators.get(chained.uid)
            if uid not in missing and (chained.factory.state or (stored is not None and stored.subtasks)):
                before = 0 if stored is None else stored.parallelism
                verdict = AS_IS if before == vertex.parallelism else RESCALED if before else NEW
                verdict = INCOMPATIBLE if uid in bad else verdict
                yield OperatorCheck("operator", chained.name, uid, verdict, before, vertex.parallelism)
    for uid in sorted({uid for uid, _, _ in checkpoint.committables if has_output(uid)} - missing.keys()):
        yield OperatorCheck("sink", uid, uid, INCOMPATIBLE if uid in bad else AS_IS)
    for each in missing.values():
        yield OperatorCheck(each.kind, each.name, each.uid, gone, each.parallelism)


class JudgingLists(ListedStates):
    """Notes what will happen to each declared list; continues after one that does not fit."""

    def __init__(self, storage: Storage, stored: OperatorSnapshot | None, where: str) -> None:
        super().__init__(storage, stored, where)
        self._known = self.described()
        self.found: dict[str, tuple[str, str, ListedState | None, ListedState]] = {}
        """By name: the verdict and its reason, the stored and the declared list."""
        self.problems: list[str] = []

    @property
    def undeclared(self) -> dict[str, ListedState]:
        """The stored lists that nothing declared."""
        return {name: listed for name, listed in self._known.items() if name not in self.found}

    def stored(self, name: str, mode: str) -> list[bytes]:
        """No elements: otherwise an async operator would resume its pending requests."""
        super().stored(name, mode)
        return []

    def _declare(self, name: str, mode: str, form: ElementForm | None = None) -> ListedState | None:
        before = super()._declare(name, mode, form)
        if before is None:
            self.found[name] = NEW, "", None, self._listed[name]
        elif self.found[name][0] == INCOMPATIBLE:
            return None
        return before

    def _judge(self, name: str, stored: ListedState, declared: ListedState, verdict: Verdict) -> None:
        if name in self.found:
            return
        self.found[name] = (*_told(verdict), stored, declared)
        try:
            super()._judge(name, stored, declared, verdict)
        except IncompatibleState as error:
            self.problems.append(str(error))
            self._parts.pop(name, None)


class _Judging(OperatorSchemaRegistry):
    """Notes what will happen to each declared state; continues after a type that does not fit."""

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
        """The position of a column; notes its verdict."""
        known = self.stored.states.get(state)
        if known is not None and known.kind == VALUES:  # judged with the column whose rows the values have left
            return 0
        before = next((each for each in known.columns if each.name == column.name), None) if known is not None else None
        if (state, column.name) in self.found or before is None:
            self.found.setdefault((state, column.name), (NEW, None, column, ""))
            return super().column(state, column, again=again)
        verdict, reason = _told(judge_column(before, column))
        self.found[state, column.name] = verdict, before, column, reason
        if verdict == INCOMPATIBLE:
            try:
                super().column(state, column, again=again)
            except IncompatibleState as error:
                self.problems.append(str(error))
            return self._replaced(state, column)
        return super().column(state, column, again=again)

    def _replaced(self, state: str, column: ColumnSchema) -> int:
        """Put the declared column in the place of the stored one, so that the function can continue."""
        position = self.schema.column(state, column.name)
        assert position is not None
        known = self.schema.states[state]
        columns = (*known.columns[:position], column, *known.columns[position + 1 :])
        states = {**self.schema.states, state: msgspec.structs.replace(known, columns=columns)}
        self.schema = msgspec.structs.replace(self.schema, states=states)
        return position


def _told(verdict: Verdict) -> tuple[str, str]:
    """A verdict on a state, and what a migration changes or why it is impossible."""
    if isinstance(verdict, Incompatible):
        return INCOMPATIBLE, verdict.reason
    return (AS_IS, "") if isinstance(verdict, AsIs) else (MIGRATED, verdict.change)


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
        share = None if stored is None else assigned(stored, 1, 0)  # all elements, since any subtask may get any of them
        state = None
        lists = JudgingLists(storage, share, where) if StateKind.LISTED in chained.factory.state else None
        try:
            if StateKind.KEYED in chained.factory.state:
                state = KeyedState(where, _schema(where, stored), registry=_Judging)
                state.registry.key(None if chained.key_type is None else chained.key_type.to_dict())
            self._open(_context(job, vertex, chained, state, lists), chained)
        except HoldfastError as error:
            if state is None or not getattr(state.registry, "problems", None):  # else it may follow from those
                self.problems.append(str(error))
        registry = None if state is None else state.registry
        if isinstance(registry, _Judging):
            self.problems[:0] = registry.problems
            self.states = list(_states(chained, registry))
        if lists is not None:
            self.problems += lists.problems
            self.states += _lists(chained, lists)

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
    job: str, vertex: Vertex, chained: Chained, state: KeyedState | None, lists: ListedStates | None
) -> OperatorContext:
    return OperatorContext(
        job=JobInfo("check", job, 1, ""),
        uid=chained.uid,
        name=chained.name,
        subtask=0,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism,
        clock=Clock(),
        state=state,
        key_type=chained.restored_key_type,
        lists=lists,
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


def _lists(chained: Chained, lists: JudgingLists) -> Iterator[StateCheck]:
    for name, (verdict, reason, before, declared) in lists.found.items():
        known = "" if before is None else list_text(before)
        yield StateCheck(chained.name, chained.uid, name, verdict, known, list_text(declared), reason)
    for name, stored in lists.undeclared.items():
        yield StateCheck(chained.name, chained.uid, name, UNDECLARED, list_text(stored))
