"""What a connector is made of: Flink's Source (FLIP-27) and Sink V2 (FLIP-143), cut to epochs.

A **source** is an enumerator in the driver, which fixes which part of each split belongs to an epoch, and a reader in
the task, which reads exactly that part. A **sink** is a writer in the task, which prepares what it wrote as
committables, and a committer in the driver, which makes them visible once the checkpoint that names them is durable.

Source and Sink objects are pickled into the job's plan; the objects they create live where they are created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = [
    "Batch",
    "Committable",
    "Committer",
    "Enumerator",
    "EpochInput",
    "ExclusiveSink",
    "JobInfo",
    "ReaderContext",
    "Sink",
    "SinkWriter",
    "Source",
    "SourceReader",
    "SplitRange",
    "WriterContext",
]


@dataclass(frozen=True)
class JobInfo:
    """What a connector may know of the job it runs in."""

    job_id: str
    job_name: str
    generation: int
    """Rises with every driver that takes the job over: part of whatever must not collide with an older driver's."""
    storage_uri: str | None
    """Where the job's checkpoints are kept, or None when checkpointing is off (nothing outlives the driver)."""
    storage_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings that storage is opened with (``s3.*``), secrets among them."""


@dataclass(frozen=True)
class SplitRange:
    """The part ``[start, end)`` of one split that belongs to an epoch. Reading it again gives the same records."""

    split: str
    """The split's stable name, e.g. ``payments-3`` for a partition or a file's path."""
    start: Any
    end: Any
    weight: int = 1
    """About how many records it holds; ranges are spread over the reader subtasks by weight."""
    payload: Any = None
    """What the reader needs besides."""
    last: bool = False
    """Whether nothing will ever follow in this split: it leaves the watermark's minimum with this range. A range with
    ``start == end`` holds no records and only announces its split, which holds the watermark back from then on."""


@dataclass(frozen=True)
class EpochInput:
    """What a source contributes to one epoch."""

    ranges: tuple[SplitRange, ...] = ()
    backlog: int = 0
    """About how many records were ready beyond these ranges (0: the source is caught up)."""
    finished: bool = False
    """True when nothing will ever follow these ranges (a bounded source at its end)."""


class Enumerator(Protocol):
    """Discovers splits and cuts them into epochs; lives in the driver. Its state is in every checkpoint."""

    def start(self, state: Any | None) -> None:
        """Begin, from the state of the restored checkpoint or afresh. Checks that the input is there.

        Raises:
            ConfigurationError: the input cannot exist as configured (topic missing, directory unreadable).
            InputLost: what the state points to is gone.
        """

    def plan(self, max_records: int) -> EpochInput:
        """Fix the next epoch's ranges, about ``max_records`` in all. Never blocks for long; may be empty.

        Advances the enumerator's position past the ranges it returns.
        """

    def snapshot(self) -> Any:
        """The state after the last planned epoch: plain data (msgpack-able: dict, list, str, int, float, bytes)."""

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        """The checkpoint whose snapshot was ``state`` is complete (e.g. commit group offsets, free old input)."""

    def wait(self, timeout: float) -> None:
        """Return as soon as there may be new input, at the latest after ``timeout`` seconds."""

    def close(self) -> None:
        """Free what was opened."""


@dataclass
class Batch:
    """Records of one split, in order."""

    values: list[Any]
    timestamps: list[int] | None = None
    """The records' own timestamps in ms (a Kafka record's), None if the source gives none."""
    locate: Callable[[int], str] = field(default=lambda i: f"record {i}")
    """Where record i of the batch comes from, for error messages, e.g. ``topic payments, partition 3, offset 17``."""


@dataclass(frozen=True)
class ReaderContext:
    """What a reader may know of the subtask it runs in."""

    job: JobInfo
    uid: str
    subtask: int
    parallelism: int


class SourceReader(Protocol):
    """Reads ranges; lives in a task slot for as long as the job, so it may keep connections and read ahead."""

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        """The records of the range, in order, in batches of at most ``max_batch``.

        Several such iterators are pulled in turn, the split with the lowest watermark first.

        Raises:
            UserCodeError: a record does not parse; ``record`` names its place.
            InputLost: the range is no longer there.
        """

    def prefetch(self, parts: Sequence[SplitRange]) -> None:
        """These ranges will be read next; a hint that may be ignored."""

    def close(self) -> None:
        """Free what was opened."""


@runtime_checkable
class Source(Protocol):
    """A place where records come from: what ``env.from_source`` takes."""

    @property
    def bounded(self) -> bool:
        """Whether it ends."""

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        """The enumerator, in the driver."""

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """A reader, in a task slot."""


@dataclass(frozen=True)
class Committable:
    """Prepared output of one writer in one epoch: all that is needed to make it visible, after any crash."""

    uid: str
    """The sink operator's uid."""
    subtask: int
    data: Any
    """Plain data (msgpack-able): it is stored in the checkpoint's metadata."""


@dataclass(frozen=True)
class WriterContext:
    """What a writer may know of the subtask it runs in."""

    job: JobInfo
    uid: str
    subtask: int
    parallelism: int


class SinkWriter(Protocol):
    """Takes records; lives in a task slot for as long as the job. One epoch is open at a time."""

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        """An epoch starts.

        ``attempt`` is unique to this run of it; what an abandoned attempt wrote must stay invisible. ``completed`` is
        the last checkpoint known to be complete *and committed*.
        """

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Take a batch of records, in order."""

    def prepare_commit(self) -> list[Any]:
        """The epoch ends: make everything written durable but invisible; return the ``data`` of its committables.

        An empty list means that nothing needs a commit (nothing written, or the sink is at-least-once).
        """

    def abort_epoch(self) -> None:
        """The open epoch was abandoned (its task failed or was superseded): drop what it wrote."""

    def close(self) -> None:
        """Free what was opened; prepared output stays prepared."""


class Committer(Protocol):
    """Makes prepared output visible; lives in the driver."""

    def recover(self, committables: Sequence[Committable]) -> None:
        """Take over the output of earlier drivers; called once, before the first epoch of this one.

        ``committables`` are those of the restored checkpoint (none on a fresh start): commit them (they may be committed
        already), then make sure that nothing else prepared by earlier drivers or attempts of this job lingers or can
        become visible.
        """

    def commit(self, committables: Sequence[Committable]) -> None:
        """Make them visible; called for every checkpoint, also if nothing was prepared.

        Idempotent: it is repeated after a crash or a lost answer.

        Raises:
            Fenced: a later driver owns the output.
        """

    def close(self) -> None:
        """Free what was opened."""


@runtime_checkable
class Sink(Protocol):
    """A place where records go: what ``stream.sink_to`` takes."""

    def validate(self) -> None:
        """Check what can be checked before the job starts (servers reachable, directory writable).

        Raises:
            ConfigurationError: with the remedy.
        """

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer, in a task slot."""

    def create_committer(self, job: JobInfo, uid: str) -> Committer | None:
        """The committer, in the driver; None when the writer needs none."""


@runtime_checkable
class ExclusiveSink(Sink, Protocol):
    """A sink that holds a name which no other sink of the job may have."""

    @property
    def exclusive_name(self) -> str | None:
        """The name, as a message can tell it; None if there is none."""
