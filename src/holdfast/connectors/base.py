"""Interfaces of connectors: Flink's Source (FLIP-27) and Sink V2 (FLIP-143), adapted to epochs.

A **source** has an enumerator in the driver, which assigns a range of each split to an epoch, and readers in the tasks,
which read exactly these ranges. A **sink** has writers in the tasks, which prepare their output as committables, and a
committer in the driver, which makes it visible once the checkpoint that holds the committables is durable.

Source and Sink objects are pickled into the job's plan; the objects they create live where they are created.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, runtime_checkable

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import ListPart
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import IN, T
from holdfast.errors import ConfigurationError, IncompatibleState

_log = logging.getLogger(__name__)

__all__ = [
    "Batch",
    "Committable",
    "Committer",
    "Enumerator",
    "EpochInput",
    "ExclusiveSink",
    "JudgingSink",
    "JudgingSource",
    "JobInfo",
    "PausingEnumerator",
    "ReaderContext",
    "Sink",
    "SinkWriter",
    "Source",
    "SourceReader",
    "SplitRange",
    "StatefulSink",
    "StatefulWriter",
    "WriterContext",
    "WriterState",
    "check_form",
    "produced_type",
    "takes_columns",
]


@dataclass(frozen=True)
class JobInfo:
    """The job, as seen by a connector."""

    job_id: str
    job_name: str
    generation: int
    """Increases with every driver that takes the job over. Use it in names that must not collide with an older driver's."""
    storage_uri: str | None
    """The location of the job's checkpoints; None when checkpointing is off (no state outlives the driver)."""
    storage_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings for opening the storage (``s3.*``), including secrets."""
    identity: str = ""
    """Tells jobs apart that have one name, in different storages; the same for all drivers of the job. Empty when
    checkpointing is off."""
    own_topics: frozenset[str] = frozenset()
    """The topics with the changelogs of its state, and with its checkpoint log, which no pattern of its sources means."""
    inline_bytes: int = 0
    """The most bytes of an epoch's output that one writer may put into its committables, in place of a file."""
    sinks: int = 1
    """The number of the job's sinks, which share the room in a checkpoint's metadata."""


@dataclass(frozen=True)
class SplitRange:
    """The range ``[start, end)`` of one split in an epoch. Reading it again returns the same records."""

    split: str
    """The split's stable name, e.g. ``payments-3`` for a partition or a file's path."""
    start: Any
    end: Any
    weight: int = 1
    """Approximate number of records; the reader subtasks share ranges by weight."""
    payload: Any = None
    """Further data for the reader."""
    last: bool = False
    """Whether the split ends with this range, and then no longer holds the watermark back. A range with ``start == end``
    holds no records and only announces its split, which holds the watermark back from then on."""
    since: int = MIN_TIMESTAMP
    """The highest timestamp before a new split, in ms, of a source that knows it: records behind it may be late."""


@dataclass(frozen=True)
class EpochInput:
    """The input of one epoch from a source."""

    ranges: tuple[SplitRange, ...] = ()
    backlog: int = 0
    """Approximate number of records ready beyond these ranges (0: the source has caught up)."""
    finished: bool = False
    """Whether a bounded source ends with these ranges."""


class Enumerator(Protocol):
    """Discovers splits and cuts them into ranges per epoch. Lives in the driver; every checkpoint holds its state."""

    def start(self, state: Any | None) -> None:
        """Start from the restored checkpoint's state, or without one. Check that the input exists.

        Raises:
            ConfigurationError: the input cannot exist as configured (topic missing, directory unreadable).
            InputLost: input that the state refers to is gone.
            ServiceUnavailable: what has the input does not answer. A job that begins ends with that, one that goes on tries
                again.
        """

    def plan(self, max_records: int) -> EpochInput:
        """Assign the next epoch's ranges, about ``max_records`` in total. Does not block for long; the plan may be empty.

        Advances the enumerator's position past the ranges it returns.
        """

    def snapshot(self) -> Any:
        """Return the state after the last planned epoch: plain data (None, bool, int, float, str, bytes, lists and dicts).

        The engine takes a copy, in which tuples are lists. Anything else, such as a set, ends the job.
        """

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Handle the completion of the checkpoint with this state (e.g. commit group offsets, free old input)."""

    def wait(self, timeout: float) -> None:
        """Wait until there may be new input, at most ``timeout`` seconds."""

    def close(self) -> None:
        """Release resources."""


@runtime_checkable
class PausingEnumerator(Enumerator, Protocol):
    """An enumerator that can hold back single splits. Of others, watermark alignment holds back the whole source."""

    def pause(self, splits: Collection[str]) -> None:
        """Plan no records of these splits, nor wait for them, until the next call."""


@runtime_checkable
class WatchedEnumerator(Enumerator, Protocol):
    """An enumerator that goes on while its system does not answer, and tells so."""

    @property
    def silence(self) -> str | None:
        """Why the system does not answer, as far as it is known; None: it answers."""


@runtime_checkable
class LastingEnumerator(Enumerator, Protocol):
    """An enumerator that goes on when the job takes itself over in its driver, as its connection cannot be made anew."""

    def restart(self, job: JobInfo, state: Any | None) -> bool:
        """Go on from the restored checkpoint's state, as `start` does; False: it cannot, and another one takes its place."""


@dataclass
class Batch(Generic[T]):
    """Records of one split, in order."""

    values: list[T]
    timestamps: list[int] | None = None
    """The records' own timestamps in ms (e.g. Kafka's); None if the source has none."""
    locate: Callable[[int], str] = field(default=lambda i: f"record {i}")
    """The origin of record i of the batch, for error messages, e.g. ``topic payments, partition 3, offset 17``."""


@dataclass(frozen=True)
class ReaderContext:
    """The subtask of a reader."""

    job: JobInfo
    uid: str
    subtask: int
    parallelism: int


class SourceReader(Protocol[T]):
    """Reads ranges. Lives in a task slot as long as the job, so it may keep connections open and read ahead."""

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[T]]:
        """Read the records of the range, in order, in batches of at most ``max_batch``.

        The task interleaves several such iterators, the split with the lowest watermark first.

        Raises:
            UserCodeError: a record does not parse; ``record`` names its origin.
            StaleRange: the range must be planned anew, by an enumerator that starts from the last checkpoint's state.
            InputLost: the range is gone.
        """

    def close(self) -> None:
        """Release resources."""


@runtime_checkable
class Source(Protocol[T]):
    """A source of records, for ``env.from_source``. The records' type is that of the batches that its readers return."""

    @property
    def bounded(self) -> bool:
        """Whether the source is bounded."""

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        """Create the enumerator, in the driver."""

    def create_reader(self, context: ReaderContext) -> SourceReader[T]:
        """Create a reader, in a task slot."""


@runtime_checkable
class JudgingSource(Source[T], Protocol[T]):
    """A source that tells before the job starts whether it can go on from a stored position. Others take any."""

    def check_position(self, state: Any) -> None:
        """Check the snapshot of an enumerator, without asking a server or reading input.

        Raises:
            IncompatibleState: it is not a position in this source.
        """


def produced_type(source_or_schema: object) -> TypeInformation | None:
    """The records' type, if the source, its file format or its schema declares it (Flink's ResultTypeQueryable)."""
    declared = getattr(source_or_schema, "get_produced_type", None)
    try:
        return None if declared is None else declared()
    except ConfigurationError:  # of an Avro record that contains itself: it can be read, but no type stands for it
        return None


def check_form(stored: Any, fields: Collection[str], source_or_sink: str, versions: Sequence[int] = ()) -> None:
    """Check that stored plain data is of the kind of connector that reads it: has its fields, and a version it knows.

    Raises:
        IncompatibleState: another kind of connector, or a release of another form, has stored it.
    """
    if not isinstance(stored, Mapping) or not stored.keys() >= set(fields):
        raise IncompatibleState(f"another kind of connector than this {source_or_sink} has stored it")
    if versions and stored["version"] not in versions:
        raise IncompatibleState(f"it is of version {stored['version']}, and this release knows version {versions[-1]}")


@dataclass(frozen=True)
class Committable:
    """Prepared output of one writer in one epoch: everything needed to make it visible, even after a crash."""

    uid: str
    """The sink operator's uid."""
    subtask: int
    data: Any
    """Plain data (msgpack-able), stored in the checkpoint's metadata."""


class WriterState(Protocol):
    """What a writer keeps in checkpoints: parts of pickled elements. A part is written once, and stays as it is.

    At another parallelism, the parts of a subtask stay together, in order; a subtask gets those of several, or none.
    """

    inline: int
    """The most bytes of elements that a part may hold itself, in place of a file."""
    parts: Sequence[ListPart]
    """Those of the last checkpoint."""

    def read(self, part: ListPart) -> Sequence[bytes]:
        """Read the elements of a part.

        Raises:
            CorruptFile: its file is missing or altered.
        """

    def write(self, elements: list[bytes]) -> ListPart:
        """Make a part of these elements; those of more than ``inline`` bytes go to a file."""

    def store(self, parts: Sequence[ListPart]) -> None:
        """Set the parts of the next checkpoint. Files written since the last call that are not among them are deleted."""


@dataclass(frozen=True)
class WriterContext:
    """The subtask of a writer."""

    job: JobInfo
    uid: str
    subtask: int
    parallelism: int
    warn: Callable[[str, str], None] = field(default=lambda subject, text: _log.warning("%s", text))
    """Warns the job's user: the driver logs ``text`` once per ``subject``, whichever subtasks report it."""
    state: WriterState | None = None
    """The state of the writer of a `StatefulSink`."""
    now: Callable[[], int] = field(default=lambda: round(1000 * time.time()))
    """The processing time, in ms since 1970."""


class SinkWriter(Protocol[IN]):
    """Writes records. Lives in a task slot as long as the job. One epoch is open at a time."""

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch.

        ``attempt`` is unique to this run of the epoch; output of an abandoned attempt must stay invisible. ``committed``
        is the last checkpoint whose output is known to be visible.
        """

    def write(self, values: Sequence[IN], timestamps: Sequence[int] | None) -> None:
        """Write a batch of records, in order."""

    def prepare_commit(self) -> list[Any]:
        """End the epoch: make its output durable but invisible, and return the ``data`` of its committables.

        Return an empty list if no output needs a commit (no output, or an at-least-once sink).
        """

    def abort_epoch(self) -> None:
        """Drop the output of the open epoch, which was abandoned (its task failed or was superseded)."""

    def close(self) -> None:
        """Release resources; prepared output stays prepared."""


@runtime_checkable
class StatefulWriter(SinkWriter[IN], Protocol[IN]):
    """A writer whose output may wait for a later epoch, in its state."""

    def end_input(self) -> None:
        """The input ends with the open epoch: all output is prepared in it."""

    def next_commit(self) -> int | None:
        """The processing time at which output is due although no records come, in ms; None: there is none.

        Asked after `prepare_commit`. An epoch begins at that time.
        """


class Committer(Protocol):
    """Makes prepared output visible. Lives in the driver."""

    def recover(self, committables: Sequence[Committable]) -> None:
        """Take over the output of earlier drivers; called once, before this driver's first epoch.

        ``committables`` are those of the restored checkpoint (empty on a fresh start). Commit them, though they may be
        committed already. Then discard all other output prepared by earlier drivers or attempts of this job, so that it
        can never become visible.
        """

    def commit(self, committables: Sequence[Committable]) -> None:
        """Make the output visible; called for every checkpoint, also without committables.

        Idempotent: the call is repeated after a crash or a lost response.

        Raises:
            Fenced: a later driver owns the output.
        """

    def close(self) -> None:
        """Release resources."""


@runtime_checkable
class Sink(Protocol[IN]):
    """A sink of records, for ``stream.sink_to``. Their type is that which its writers take."""

    def validate(self) -> None:
        """Check the sink before the job starts (servers reachable, directory writable).

        Raises:
            ConfigurationError: a check failed; names the remedy.
            ServiceUnavailable: a server does not answer. A job that begins ends with that; one that goes on waits for it.
        """

    def create_writer(self, context: WriterContext) -> SinkWriter[IN]:
        """Create a writer, in a task slot."""

    def create_committer(self, job: JobInfo, uid: str) -> Committer | None:
        """Create the committer, in the driver; None if the writer needs none."""


def takes_columns(sink: object) -> bool:
    """Whether a sink's writers take columns (`holdfast.common.formats.columns`) as well as lists of records."""
    return bool(getattr(sink, "takes_columns", False))


@runtime_checkable
class JudgingSink(Sink[IN], Protocol[IN]):
    """A sink that tells before the job starts whether it can commit output of a checkpoint. Others get any."""

    def check_prepared(self, data: Any) -> None:
        """Check the ``data`` of a committable, without asking a server.

        Raises:
            IncompatibleState: this sink cannot commit it.
        """


@runtime_checkable
class StatefulSink(Sink[IN], Protocol[IN]):
    """A sink whose writers keep state in checkpoints; they are `StatefulWriter`s."""

    @property
    def keeps_state(self) -> bool:
        """Whether they do; False: the sink is like any other."""


@runtime_checkable
class ExclusiveSink(Sink[IN], Protocol[IN]):
    """A sink with a name that must be unique among the sinks of the job."""

    @property
    def exclusive_name(self) -> str | None:
        """The name for messages; None if the sink has none."""
