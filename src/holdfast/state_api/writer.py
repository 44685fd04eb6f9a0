"""SavepointWriter: new savepoints, from DataFrames and from the operators of existing savepoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    OperatorCheckpoint,
    SourceState,
    SubtaskState,
)
from holdfast.checkpoint.retention import verify_files
from holdfast.checkpoint.savepoint import BEGUN, METADATA, copy_file, put_metadata, renamed_operator
from holdfast.checkpoint.stores.storage import Storage
from holdfast.datastream.operations.operator_settings import check_count
from holdfast.errors import ConfigurationError, StorageError
from holdfast.runtime.host.shipping import portable, ship_package
from holdfast.runtime.spark.spark_context import refuse_connect
from holdfast.state.backends.backend import HEAP
from holdfast.state.backends.canonical import parts_of
from holdfast.state.keys.key_groups import MAX_KEY_GROUPS, KeyGroupRange
from holdfast.state_api.bootstrap import StateTransformation
from holdfast.state_api.bootstrap_task import Target
from holdfast.state_api.regrouping import RegroupTask, of_other_groups
from holdfast.state_api.snapshots.catalog import Snapshot, open_snapshot
from holdfast.state_api.spark_jobs import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SavepointWriter"]

_PER_TASK = 8
"""Files that one task copies."""


@dataclass(frozen=True)
class _Stored:
    """An operator and a source of an existing savepoint, either of which may be missing."""

    storage: Storage
    operator: OperatorCheckpoint | None
    source: SourceState | None


@dataclass(frozen=True)
class SavepointWriter:
    """Builds a savepoint. Every method returns a new writer; `write` writes.

    A job that starts from the savepoint reads its sources from the beginning, or from the positions in the savepoints that
    this one was built from.
    """

    spark: SparkSession
    base: CheckpointMetadata
    max_parallelism: int
    """The number of key groups of new operators."""
    regroup: bool = False
    """Whether operators of existing savepoints get this number, too."""
    drained: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, _Stored] = field(default_factory=dict)
    added: Mapping[str, tuple[StateTransformation, ...]] = field(default_factory=dict)

    @staticmethod
    def new_savepoint(
        spark: SparkSession, max_parallelism: int = 128, options: Mapping[str, str] | None = None
    ) -> SavepointWriter:
        """Begin with an empty savepoint.

        Args:
            spark: The session to write on.
            max_parallelism: The number of key groups; that of the job that will start from the savepoint.
            options: The settings of the storage, such as ``s3.*``.

        Raises:
            ConfigurationError: the session is one of Spark Connect.
        """
        refuse_connect(spark, "SavepointWriter.new_savepoint()")
        check_count(max_parallelism, "max parallelism", most=MAX_KEY_GROUPS)
        now = time.time_ns() // 1_000_000
        empty = CheckpointMetadata(CheckpointId(1), 0, "state-processor", "state-processor", now)
        return SavepointWriter(spark, empty, max_parallelism, options=options or {})

    @staticmethod
    def from_existing_savepoint(spark: SparkSession, path: str, options: Mapping[str, str] | None = None) -> SavepointWriter:
        """Begin with all operators and source positions of a savepoint, which stays as it is.

        Raises:
            ConfigurationError: the path is not a savepoint, or the session is one of Spark Connect.
            CorruptFile: a file of it is missing or truncated.
            HoldfastError: it cannot be read.
        """
        refuse_connect(spark, "SavepointWriter.from_existing_savepoint()")
        snapshot = _savepoint(path, options)
        most = max((operator.max_parallelism for operator in snapshot.checkpoint.operators.values()), default=128)
        writer = SavepointWriter(spark, snapshot.checkpoint, most, drained=snapshot.drained, options=options or {})
        return replace(writer, stored=_stored_in(snapshot))

    def with_operator(self, uid: str, transformation: StateTransformation) -> SavepointWriter:
        """Write state of an operator.

        If the savepoint has the operator, the transformation changes it: only the states of the given keys are replaced,
        and all others stay. To begin without them, `remove_operator` first.

        Args:
            uid: The uid that the operator has in the job.
            transformation: From `OperatorTransformation.bootstrap_with`. Call again for further states.

        Raises:
            TypeError: it is not the result of ``transform()``, or of another method that makes state.
        """
        if not callable(getattr(transformation, "check", None)):
            raise TypeError(
                f"with_operator({uid!r}, ...) takes the result of transform(), list_state(), union_state() or "
                f"broadcast_state(), not {transformation!r:.200}"
            )
        return replace(self, added={**self.added, uid: (*self.added.get(uid, ()), transformation)})

    def with_operator_of(self, path: str, uid: str, new_uid: str | None = None) -> SavepointWriter:
        """Add an operator, or the position of a source, of another savepoint.

        Args:
            path: The other savepoint.
            uid: The uid there.
            new_uid: The uid from now on; None: the same.

        Raises:
            ConfigurationError: the other savepoint has no such operator, this one has the uid already, or the numbers of
                key groups differ.
            HoldfastError: it cannot be read.
        """
        snapshot = _savepoint(path, self.options)
        found = _stored_in(snapshot).get(uid)
        if found is None:
            raise ConfigurationError(f"{path} has no operator or source with uid {uid!r}; it has {_known(snapshot)}")
        return self._with({new_uid or uid: found}, path, snapshot.checkpoint)

    def with_savepoint(self, path: str) -> SavepointWriter:
        """Add all operators and source positions of another savepoint, to merge two jobs.

        Raises:
            ConfigurationError: both savepoints have operators of a uid, or the numbers of key groups differ.
            HoldfastError: it cannot be read.
        """
        snapshot = _savepoint(path, self.options)
        return self._with(_stored_in(snapshot), path, snapshot.checkpoint)

    def _with(self, others: Mapping[str, _Stored], path: str, origin: CheckpointMetadata) -> SavepointWriter:
        both = sorted((self.stored.keys() | self.added.keys()) & others.keys())
        if both:
            raise ConfigurationError(
                f"{path} has operators that this savepoint has, too: {', '.join(both)}. Remove or rename those "
                "(remove_operator, change_operator_identifier), or add them one by one (with_operator_of, new_uid=...). "
                "To change an operator of it, call with_operator() afterwards"
            )
        counts = {each.operator.max_parallelism for each in self.stored.values() if each.operator is not None}
        for uid, each in others.items():
            if each.operator is not None and counts and each.operator.max_parallelism not in counts and not self.regroup:
                raise ConfigurationError(
                    f"operator {uid!r} of {path} has {each.operator.max_parallelism} key groups, and this savepoint's "
                    f"have {', '.join(map(str, sorted(counts)))}: call change_max_parallelism() first"
                )
        # Of processing times the latest counts, or windows that have fired would fill again; of generations, the highest.
        base = msgspec.structs.replace(
            self.base,
            created_at=max(self.base.created_at, origin.created_at),
            generation=max(self.base.generation, origin.generation),
        )
        return replace(self, base=base, stored={**self.stored, **others})

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Leave out an operator, or the position of a source.

        Raises:
            ConfigurationError: there is no such operator.
        """
        self._check_known(uid)
        stored = {each: found for each, found in self.stored.items() if each != uid}
        return replace(self, stored=stored, added={each: found for each, found in self.added.items() if each != uid})

    def change_operator_identifier(self, uid: str, new_uid: str) -> SavepointWriter:
        """Give an operator or source another uid.

        Raises:
            ConfigurationError: there is no such operator, or one has the new uid already.
        """
        self._check_known(uid)
        if new_uid in self.stored or new_uid in self.added:
            raise ConfigurationError(f"there is an operator with uid {new_uid!r} already")
        stored = {new_uid if each == uid else each: found for each, found in self.stored.items()}
        added = {new_uid if each == uid else each: found for each, found in self.added.items()}
        return replace(self, stored=stored, added=added)

    def change_max_parallelism(self, max_parallelism: int) -> SavepointWriter:
        """Give all operators this number of key groups: their keyed state is written anew.

        Raises:
            ConfigurationError: the number is not possible.
        """
        check_count(max_parallelism, "max parallelism", most=MAX_KEY_GROUPS)
        return replace(self, max_parallelism=max_parallelism, regroup=True)

    def _check_known(self, uid: str) -> None:
        if uid not in self.stored and uid not in self.added:
            known = ", ".join(sorted({*self.stored, *self.added})) or "none"
            raise ConfigurationError(f"there is no operator with uid {uid!r}; there are {known}")

    def write(self, path: str) -> str:
        """Write the savepoint into a directory, which must be new or empty; returns its path.

        Declared states, columns and the directory are checked first. If writing fails, the files are deleted as far as
        possible. A directory without ``_metadata`` is no savepoint.

        Raises:
            ConfigurationError: the directory has files or is not writable, or a column does not fit its state.
            IncompatibleState: a declared state does not fit the one in the savepoint.
            CheckpointError: a task failed: a function raised, or a value does not fit.
            HoldfastError: a file cannot be read or written.
        """
        options = dict(self.options)
        storage = Storage.open(path.rstrip("/").removesuffix(f"/{METADATA}"), options)
        target = Target(storage.uri, options, time.time_ns() // 1_000_000)
        self._check_counts()
        for uid, transformations in self.added.items():
            for transformation in transformations:
                transformation.check(uid, self._operator(uid), target)
        _begin(storage)
        try:
            operators = self._copied(target)
            for uid, transformations in self.added.items():
                operator = operators.get(uid) or self._operator(uid)
                for transformation in transformations:
                    operator = transformation.write(uid, operator, target)
                operators[uid] = operator
            sources = {uid: each.source for uid, each in self.stored.items() if each.source is not None}
            files = {file.path: file.size for o in operators.values() for state in o.subtasks for file in state.files()}
            size = sum(files.values())
            whole = msgspec.structs.replace(
                self.base, operators=operators, sources=sources, committables=[], full_size=size, delta_size=size
            )
            storage.delete([each for each in storage.list("") if each != BEGUN and each not in files])  # of lost attempts
            put_metadata(storage, whole, self.drained)
        except BaseException:
            with contextlib.suppress(StorageError):  # the first failure is the one to report
                storage.delete([each for each in storage.list("") if each != BEGUN])
                storage.delete([BEGUN])
            raise
        storage.delete([BEGUN])
        return storage.uri

    def _check_counts(self) -> None:
        """Check the numbers of key groups.

        Raises:
            ConfigurationError: the operators cannot have them.
        """
        counts = {each.operator.max_parallelism for each in self.stored.values() if each.operator is not None}
        new = [uid for uid in self.added if uid not in self.stored or self.stored[uid].operator is None]
        if new and counts and not self.regroup and self.max_parallelism not in counts:
            raise ConfigurationError(
                f"the new operator {new[0]!r} has {self.max_parallelism} key groups, and those of the existing savepoint "
                f"have {', '.join(map(str, sorted(counts)))}: begin with new_savepoint(max_parallelism=...) of that number, "
                "or call change_max_parallelism()"
            )
        for uid in self.stored:
            self._operator(uid)

    def _operator(self, uid: str) -> OperatorCheckpoint:
        """An operator before its transformations, with its files where they are now."""
        stored = self.stored[uid].operator if uid in self.stored else None
        if stored is None:
            return OperatorCheckpoint(uid, True, self.max_parallelism)
        return of_other_groups(uid, stored, self.max_parallelism) if self.regroup else stored

    def _copied(self, target: Target) -> dict[str, OperatorCheckpoint]:
        """The operators of existing savepoints, with copies of their files."""
        operators = {uid: each.operator for uid, each in self.stored.items() if each.operator is not None}
        context = self.spark.sparkContext
        ship_package(context)
        regrouped = {
            uid: operator
            for uid, operator in operators.items()
            if self.regroup and operator.max_parallelism != self.max_parallelism
        }
        copies: list[tuple[str, str, str]] = []
        for uid, operator in operators.items():
            keyed = {
                file.path for state in operator.subtasks for each in state.keyed for file in SubtaskState([each]).files()
            }
            files = {file.path for state in operator.subtasks for file in state.files()}
            names = {
                at: target.path(uid, at.rpartition(".")[2]) for at in sorted(files - keyed if uid in regrouped else files)
            }
            copies += [(self.stored[uid].storage.uri, at, name) for at, name in names.items()]
            if uid in regrouped:
                without = [SubtaskState([], state.lists) for state in operator.subtasks]
                operator = msgspec.structs.replace(self._operator(uid), subtasks=without)
            operators[uid] = renamed_operator(operator, names)
        if copies:
            copying = _Copy(target)
            spread = context.parallelize(copies, -(-len(copies) // _PER_TASK))
            on_spark(context, lambda: spread.mapPartitionsWithIndex(portable(copying)).collect())
        for uid, operator in regrouped.items():
            operators[uid] = self._regrouped(uid, operator, operators[uid], target)
        return operators

    def _regrouped(
        self, uid: str, operator: OperatorCheckpoint, without: OperatorCheckpoint, target: Target
    ) -> OperatorCheckpoint:
        parts = list(parts_of(uid, operator))
        if not parts:
            return without
        context = self.spark.sparkContext
        task = RegroupTask(self.stored[uid].storage.uri, target, self.max_parallelism)
        spread = context.parallelize(parts, len(parts))
        written = on_spark(context, lambda: spread.mapPartitionsWithIndex(portable(task)).collect())
        whole = KeyGroupRange(0, self.max_parallelism - 1)
        by_schema: dict[str, list[Any]] = {}
        for schema, _, file in written:
            by_schema.setdefault(schema, []).append(file)
        handles = [KeyedHandle(whole.first, whole.last, schema, HEAP, base=files) for schema, files in by_schema.items()]
        first, *others = without.subtasks
        schemas = {name: schema for name, schema, _ in written}
        return msgspec.structs.replace(without, subtasks=[SubtaskState(handles, first.lists), *others], schemas=schemas)


@dataclass(frozen=True)
class _Copy:
    """Copies files of savepoints: pairs of storage and path, each with the path of its copy."""

    target: Target

    def __call__(self, _: int, copies: Iterable[tuple[str, str, str]]) -> Iterator[None]:
        storage = self.target.storage()
        for uri, at, name in copies:
            copy_file(Storage.open(uri, self.target.options), at, storage, name)
        return iter(())


def _begin(storage: Storage) -> None:
    """Mark the directory as an unfinished savepoint.

    Raises:
        ConfigurationError: it contains files, or cannot be written.
    """
    try:
        found = storage.list("")
        if not found:
            storage.put_new(BEGUN, b"state-processor")
            return
    except StorageError as error:
        raise ConfigurationError(f"no savepoint can be written into {storage.uri}: {error}") from error
    raise ConfigurationError(f"{storage.uri} is not empty, it has {found[0]!r}: write the savepoint into a new directory")


def _stored_in(snapshot: Snapshot) -> dict[str, _Stored]:
    operators, sources = snapshot.checkpoint.operators, snapshot.checkpoint.sources
    return {
        uid: _Stored(snapshot.storage, operators.get(uid), sources.get(uid)) for uid in dict.fromkeys([*operators, *sources])
    }


def _known(snapshot: Snapshot) -> str:
    return ", ".join(sorted({*snapshot.checkpoint.operators, *snapshot.checkpoint.sources})) or "none"


def _savepoint(path: str, options: Mapping[str, str] | None) -> Snapshot:
    snapshot = open_snapshot(path, options)
    if snapshot.kind != "savepoint":
        raise ConfigurationError(
            f"{path} is a checkpoint; only savepoints are in a form that can be rewritten: stop the job with a savepoint"
        )
    verify_files(snapshot.storage, snapshot.checkpoint)
    return snapshot
