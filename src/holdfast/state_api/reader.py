"""SavepointReader: the state in a savepoint or checkpoint as Spark DataFrames or as Arrow record batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.checkpoint.metadata import BROADCAST, SPLIT, UNION, ListPart
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.job_client import JobClient
from holdfast.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation, Types
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.listed_states import read_part
from holdfast.runtime.spark.spark_context import refuse_connect
from holdfast.state.backends.contents import contents_of, declare_stored, timers_of
from holdfast.state.keys.declared_keys import key_restorer
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.stored.elements import ElementForm
from holdfast.state.stored.schema import TIMERS, ColumnSchema, OperatorSchema
from holdfast.state_api.function_reading import KeyReading, Results, function_context
from holdfast.state_api.reader_functions import KeyedStateReaderFunction
from holdfast.state_api.snapshots.catalog import Snapshot, open_snapshot
from holdfast.state_api.snapshots.holding import hold_checkpoint
from holdfast.state_api.state_rows import Field, StateRows, batches_of, frame_of
from holdfast.state_api.stored_operator import StoredOperator
from holdfast.state_api.window_reader import WindowReader

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArrowSavepointReader", "SavepointReader", "StateReader"]

R = TypeVar("R")
Declared = Mapping[str, "TypeInformation[Any] | Sequence[TypeInformation[Any]]"]
_KEYED = "keyed"


@dataclass(frozen=True)
class StateReader(Generic[R]):
    """Reads the state in a savepoint or checkpoint; of a running job, in one that is held (`SavepointReader.scan`).

    Keyed state is read one range of key groups at a time, of about 64 MB of stored state or of one key group. What does not
    fit into memory is read from the disk, so memory does not depend on the size of the state or of a key group.
    """

    snapshot: Snapshot
    options: Mapping[str, str] = field(default_factory=dict)

    @abstractmethod
    def _made(self, rows: StateRows) -> R:
        """The rows in this reader's form."""

    def read_keyed_state(
        self,
        uid: str,
        function: KeyedStateReaderFunction[Any, Any] | None = None,
        key_type: TypeInformation[Any] | None = None,
        output_type: TypeInformation[Any] | None = None,
        types: Declared | None = None,
    ) -> R:
        """The keyed state of an operator: a row for each key, or the results of a function of the keys.

        Without a function, the columns are ``key`` and one for each state.

        Args:
            uid: The operator's uid.
            function: Reads the states and timers of a key.
            key_type: The type of the keys; None: as declared in the job.
            output_type: The type of the function's results: a type of rows, with a column for each field, or a type of the
                column ``value``; None: pickles.
            types: Without a function, by name: types for states that were declared without one (a pair for a map).
                Otherwise they are pickles.

        Raises:
            ConfigurationError: there is no such state, or the type of the keys is not known.
            IncompatibleState: a state that the function declares does not fit the stored one.
        """
        if isinstance(function, TypeInformation):
            raise TypeError(f"the function is {function!r}, a type: pass key_type={function!r}")
        if function is not None:
            return self._read_by(uid, function, key_type, Results(output_type))
        return self._read_columns(uid, key_type, types)

    def _read_by(
        self,
        uid: str,
        function: KeyedStateReaderFunction[Any, Any],
        key_type: TypeInformation[Any] | None,
        results: Results,
    ) -> R:
        operator = StoredOperator.of(self.snapshot, self.options, uid)
        key, stored = operator.key_type(key_type), operator.operator
        context = function_context(uid, stored, self.snapshot.checkpoint.created_at)

        def open(state: KeyedState) -> Callable[[], Iterator[Sequence[Any]]]:
            reading = KeyReading(function, context, state, key)
            return lambda: reading.read(results)

        where = f"{stored.name!r} (uid {uid!r})"
        trial = KeyedState(where, operator.schema, max_parallelism=stored.max_parallelism)
        KeyReading(function, context, trial, key).close()  # what does not fit is told before anything is read
        return self._made(operator.rows_by(results.fields, open))

    def _read_columns(self, uid: str, key_type: TypeInformation[Any] | None, types: Declared | None) -> R:
        operator = StoredOperator.of(self.snapshot, self.options, uid)
        stored = operator.schema.states.get(_KEYED)
        if stored is None:
            raise ConfigurationError(f"{operator.where} has no state of user functions; for windows, call window(...)")
        given = {name: [each] if isinstance(each, TypeInformation) else list(each) for name, each in (types or {}).items()}
        unknown = [name for name in given if operator.schema.column(_KEYED, name) is None]
        if unknown:
            raise ConfigurationError(
                f"{operator.where} has no state {unknown[0]!r}; it has {', '.join(column.name for column in stored.columns)}"
            )
        key = operator.key_type(key_type)
        if any(column.name == "key" for column in stored.columns):
            raise ConfigurationError(
                f"{operator.where} has a state 'key', which would be a second column of this name: read it by a "
                "KeyedStateReaderFunction"
            )
        width, pickled = len(stored.columns), _unpickled(operator.schema)

        def declare(state: KeyedState) -> None:
            if _KEYED in state.schema.states:
                declare_stored(state, _KEYED, {**pickled, **given}, pickled=False)

        def extract(state: KeyedState) -> Iterator[Sequence[Any]]:
            restore = key_restorer(key) or _same
            if _KEYED in state.schema.states:
                columns = list(state.schema.states[_KEYED].columns)
                for key_of, _, values in contents_of(state.space(_KEYED), columns):
                    yield restore(key_of), *values, *(None,) * (width - len(values))

        fields: list[Field] = [("key", key)]
        fields += [(column.name, _shown_type(column, given.get(column.name))) for column in stored.columns]
        return self._made(operator.rows(fields, extract, declare))

    def read_timers(self, uid: str, key_type: TypeInformation[Any] | None = None) -> R:
        """The timers of an operator: columns ``key``, ``service`` and ``time`` (in ms).

        Services are ``event`` and ``processing`` for user functions, ``ttl`` for the clean-up of expired state. Timers of
        windows belong to pairs of a key and a window; only their keys are shown.

        Raises:
            ConfigurationError: there are no timers, or the type of the keys is not known.
        """
        operator = StoredOperator.of(self.snapshot, self.options, uid)
        key = operator.key_type(key_type)
        services = [name.removesuffix("-timers") for name, each in operator.schema.states.items() if each.kind == TIMERS]
        if not services:
            raise ConfigurationError(f"{operator.where} has no timers")

        def extract(state: KeyedState) -> Iterator[Sequence[Any]]:
            restore = key_restorer(key) or _same
            for service in services:
                pairs = service.startswith("window") or service == "interval-join"
                for time, owner in timers_of(state, service):
                    yield restore(owner[0] if pairs else owner), service, time

        fields: list[Field] = [("key", key), ("service", Types.STRING()), ("time", Types.LONG())]
        return self._made(operator.rows(fields, extract))

    def window(self, window_assigner: Any) -> WindowReader[R]:
        """Read the contents of windows: the next call is that of the job's program (``reduce``, ``aggregate``, ...).

        Args:
            window_assigner: The job's window assigner.
        """
        now = self.snapshot.checkpoint.created_at
        return WindowReader(
            lambda uid: StoredOperator.of(self.snapshot, self.options, uid), self._made, window_assigner, now
        )

    def read_list_state(self, uid: str, name: str, type_info: TypeInformation[Any] | None = None) -> R:
        """The elements of an operator's list state, in a column ``value``.

        Raises:
            ConfigurationError: there is no such state.
        """
        return self._listed(uid, name, SPLIT, type_info)

    def read_union_state(self, uid: str, name: str, type_info: TypeInformation[Any] | None = None) -> R:
        """The elements of an operator's union list state, in a column ``value``.

        Raises:
            ConfigurationError: there is no such state.
        """
        return self._listed(uid, name, UNION, type_info)

    def read_broadcast_state(
        self,
        uid: str,
        name: str,
        key_type_info: TypeInformation[Any] | None = None,
        value_type_info: TypeInformation[Any] | None = None,
    ) -> R:
        """The entries of a broadcast state, in columns ``key`` and ``value``.

        Raises:
            ConfigurationError: there is no such state, or it has no types and none were given.
        """
        given = None if key_type_info is None or value_type_info is None else MapTypeInfo(key_type_info, value_type_info)
        return self._listed(uid, name, BROADCAST, given)

    def _listed(self, uid: str, name: str, mode: str, given: TypeInformation[Any] | None) -> R:
        operator = self.snapshot.checkpoint.operators.get(uid)
        listed = None if operator is None else operator.listed.get(name)
        if operator is None or listed is None or listed.mode != mode:
            known = [
                f"{each} of {stored} ({state.mode})"
                for stored, found in sorted(self.snapshot.checkpoint.operators.items())
                for each, state in found.listed.items()
            ]
            raise ConfigurationError(
                f"{self.snapshot.path} has no {mode} state {name!r} of uid {uid!r}; it has {', '.join(known) or 'none'}"
            )
        stored = listed.type
        declared = TypeInformation.from_dict(stored) if given is None and stored is not None else given
        entries = mode == BROADCAST
        if entries and not isinstance(declared, MapTypeInfo):
            raise ConfigurationError(
                f"broadcast state {name!r} has no declared types: pass key_type_info and value_type_info"
            )

        def extract(storage: Storage, part: ListPart) -> Iterator[Sequence[Any]]:
            where = f"state {name!r} of uid {uid!r}"
            read = ElementForm(declared).reader(stored, where) if declared is not None else _same
            for element in map(read, read_part(storage, part)):
                yield from element.items() if entries else [(element,)]

        fields: list[Field] = [("value", declared)]
        if isinstance(declared, MapTypeInfo) and entries:
            fields = [("key", declared.key_type), ("value", declared.value_type)]
        subtasks = operator.subtasks[:1] if entries else operator.subtasks
        parts = [part for state in subtasks for part in state.lists.get(name, [])]
        return self._made(StateRows(self.snapshot.storage.uri, self.options, self.snapshot.path, fields, parts, extract))


@dataclass(frozen=True)
class ArrowSavepointReader(StateReader["Iterator[pyarrow.RecordBatch]"]):
    """Reads state as Arrow record batches, in this process and without Spark's JVM."""

    def _made(self, rows: StateRows) -> Iterator[pyarrow.RecordBatch]:
        return batches_of(rows)


@dataclass(frozen=True, kw_only=True)
class SavepointReader(StateReader["DataFrame"]):
    """Reads state as Spark DataFrames, with a Spark partition for each range of key groups."""

    spark: SparkSession

    @staticmethod
    def read(spark: SparkSession, path: str, options: Mapping[str, str] | None = None) -> SavepointReader:
        """Open a savepoint or checkpoint.

        Args:
            spark: The session to read on.
            path: A savepoint, a checkpoint, or a job's directory for its newest checkpoint, as for `open_snapshot`.
            options: The settings of the storage, such as ``s3.*``.

        Raises:
            ConfigurationError: the session is one of Spark Connect.
            HoldfastError: as for `open_snapshot`.
        """
        refuse_connect(spark, "SavepointReader.read()")
        return SavepointReader(open_snapshot(path, options), options or {}, spark=spark)

    @staticmethod
    def read_arrow(path: str, options: Mapping[str, str] | None = None) -> ArrowSavepointReader:
        """Open a savepoint or checkpoint whose state is read as Arrow record batches, in this process.

        Raises:
            HoldfastError: as for `open_snapshot`.
        """
        return ArrowSavepointReader(open_snapshot(path, options), options or {})

    @staticmethod
    @contextmanager
    def scan(
        spark: SparkSession, job: JobClient | str, options: Mapping[str, str] | None = None, token: str | None = None
    ) -> Iterator[SavepointReader]:
        """Read the newest completed checkpoint of a running job: ``with SavepointReader.scan(spark, job) as reader: ...``.

        All reads see this one checkpoint, however many the job completes meanwhile, and the job does not notice them. Spark
        reads when a DataFrame is collected or written: do that within the ``with``. A read that comes too late fails; it
        never returns a part.

        Args:
            spark: The session to read on.
            job: The client of a job of this process; the name or id of a job on this machine; or a job's URL, as for
                `hold_checkpoint`.
            options: The settings of the storage, such as ``s3.*``; None: those of a job of this process.
            token: The token of the driver at a URL, as for `hold_checkpoint`.

        Raises:
            HoldfastError: as for `hold_checkpoint` and `open_snapshot`.
        """
        with hold_checkpoint(job, token) as held:
            yield SavepointReader.read(spark, held.path, held.options if options is None else options)

    @staticmethod
    @contextmanager
    def scan_arrow(
        job: JobClient | str, options: Mapping[str, str] | None = None, token: str | None = None
    ) -> Iterator[ArrowSavepointReader]:
        """Read the newest completed checkpoint of a running job as Arrow record batches, like `scan` and in this process.

        Raises:
            HoldfastError: as for `hold_checkpoint` and `open_snapshot`.
        """
        with hold_checkpoint(job, token) as held:
            yield SavepointReader.read_arrow(held.path, held.options if options is None else options)

    def _made(self, rows: StateRows) -> DataFrame:
        return frame_of(rows, self.spark)


def _same(value: Any) -> Any:
    return value


def _unpickled(schema: OperatorSchema) -> dict[str, list[None]]:
    """The states without a type that are unpickled to be read: their pickles are not those of their contents alone."""
    columns = schema.states[_KEYED].columns
    return {
        each.name: [None] * (2 if each.kind == "map" else 1)
        for each in columns
        if not each.types and (each.ttl or f"{_KEYED}/{each.name}" in schema.states)
    }


def _shown_type(column: ColumnSchema, given: Sequence[TypeInformation[Any]] | None) -> TypeInformation[Any] | None:
    """The type of a state's content; None: a pickle."""
    types = [TypeInformation.from_dict(each) for each in column.types] if given is None else list(given)
    if not types:
        return None
    if column.kind == "map":
        return MapTypeInfo(types[0], types[1])
    return ListTypeInfo(types[0]) if column.kind == "list" else types[0]
