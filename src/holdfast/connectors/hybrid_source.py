"""HybridSource, a source of several sources one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, cast

from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import R, T
from holdfast.connectors.base import (
    Batch,
    Enumerator,
    EpochInput,
    JobInfo,
    JudgingSource,
    ReaderContext,
    Source,
    SourceReader,
    SplitRange,
    check_form,
    produced_type,
)
from holdfast.errors import ConfigurationError, IncompatibleState

__all__ = ["HybridSource", "HybridSourceBuilder"]


class HybridSource(Generic[T]):
    """A source that reads several sources one after the other, e.g. the history in files, then a Kafka topic.

    Each source but the last must be bounded. The next one starts when all records of the one before are planned; its
    position does not depend on where that one ended. The watermark never goes back: records of the next source that are
    older than those before may be late.

    Examples:
        >>> from holdfast.datastream.connectors.number_seq import NumberSequenceSource
        >>> HybridSource.builder(NumberSequenceSource(1, 10)).add_source(NumberSequenceSource(11, 20)).build().bounded
        True
    """

    def __init__(self, sources: Sequence[Source[T]]) -> None:
        """Create a source of these, in order.

        Raises:
            TypeError: one is not a source.
            ConfigurationError: there is none, or one that is not the last never ends.
        """
        if not sources:
            raise ConfigurationError("a HybridSource needs at least one source")
        for number, source in enumerate(sources):
            _check_next(sources[:number], source)
        self.sources = tuple(sources)

    @staticmethod
    def builder(first_source: Source[R]) -> HybridSourceBuilder[R]:
        """Begin with the first source."""
        return HybridSourceBuilder(first_source)

    @property
    def bounded(self) -> bool:
        """Whether the last source is bounded."""
        return self.sources[-1].bounded

    @property
    def timestamped(self) -> bool:
        """Whether the records of all sources have timestamps."""
        return all(getattr(source, "timestamped", True) for source in self.sources)

    def get_produced_type(self) -> TypeInformation | None:
        """The records' type, if all sources declare the same one."""
        types = {produced_type(source) for source in self.sources}
        return types.pop() if len(types) == 1 else None

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        """Create the enumerator, in the driver."""
        return _HybridEnumerator(self.sources, job, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in the source of its number."""
        check_form(state, ("number", "state", "finished", "open"), "HybridSource")
        number = state["number"]
        if number >= len(self.sources):
            raise IncompatibleState(
                f"it is one in source {number + 1} of a HybridSource, and the program has one of {len(self.sources)} "
                "sources; run it with the same ones"
            )
        source = self.sources[number]
        ended = state["finished"] and number + 1 < len(self.sources)
        if isinstance(source, JudgingSource) and not ended:
            source.check_position(state["state"])

    def create_reader(self, context: ReaderContext) -> SourceReader[T]:
        """Create a reader, in a task slot."""
        return _HybridReader(self.sources, context)


class HybridSourceBuilder(Generic[T]):
    """Collects the sources of a HybridSource."""

    def __init__(self, first_source: Source[T]) -> None:
        self._sources: list[Source] = []
        self.add_source(first_source)

    def add_source(self, source: Source[R]) -> HybridSourceBuilder[T | R]:
        """Read this source after those before.

        Raises:
            TypeError: it is not a source.
            ConfigurationError: the source before it never ends.
        """
        _check_next(self._sources, source)
        self._sources.append(source)
        return cast("HybridSourceBuilder[T | R]", self)

    def build(self) -> HybridSource[T]:
        """The source."""
        return HybridSource(self._sources)


def _check_next(before: Sequence[Source], source: Source) -> None:
    given: Any = source
    if not isinstance(given, Source):
        remedy = " Call build() on it." if hasattr(given, "build") else ""
        raise TypeError(f"a HybridSource consists of Sources; this is a {type(given).__name__}.{remedy}")
    if before and not before[-1].bounded:
        raise ConfigurationError(
            f"source {len(before)} of the HybridSource, a {type(before[-1]).__name__}, is unbounded, so "
            "the next one would never be read: make it bounded (a KafkaSource by set_bounded()), or put it last."
        )


def member_uid(uid: str, number: int) -> str:
    """The uid of one of the sources, under which it may store files."""
    return f"{uid}-{number + 1}"


class _HybridEnumerator:
    """Plans one source after the other."""

    def __init__(self, sources: Sequence[Source], job: JobInfo, uid: str) -> None:
        self._sources = sources
        self._job = job
        self._uid = uid
        self._enumerators: dict[int, Enumerator] = {}
        """The current one, and those before whose last checkpoint is not completed."""
        self._number = 0
        self._finished = False
        """Whether the current source has ended."""
        self._open: dict[str, Any] = {}
        """The splits of the current source that have not ended, and where each goes on."""

    def start(self, state: Any | None) -> None:
        number, inner = 0, None
        if state is not None:
            number, inner = state["number"], state["state"]
            if state["finished"] and number + 1 < len(self._sources):
                number, inner = number + 1, None
            else:
                self._open = dict(state["open"])
        self._enter(number, inner)

    def _enter(self, number: int, state: Any | None) -> None:
        self._number = number
        self._finished = False
        current = self._enumerators[number] = self._sources[number].create_enumerator(
            self._job, member_uid(self._uid, number)
        )
        current.start(state)

    @property
    def _current(self) -> Enumerator:
        return self._enumerators[self._number]

    @property
    def _is_last(self) -> bool:
        return self._number + 1 == len(self._sources)

    def plan(self, max_records: int) -> EpochInput:
        while True:
            if self._finished and not self._is_last:
                self._enter(self._number + 1, None)
            planned = self._current.plan(max_records)
            self._finished = planned.finished
            ranges = [self._own(part) for part in planned.ranges]
            if planned.finished:
                ranges += self._ends()
            if ranges or not planned.finished or self._is_last:
                break
        more = self._finished and not self._is_last
        return EpochInput(tuple(ranges), planned.backlog + more, self._finished and not more)

    def _own(self, part: SplitRange) -> SplitRange:
        """A range of the current source as one of the hybrid source."""
        if part.last:
            self._open.pop(part.split, None)
        else:
            self._open[part.split] = part.end
        return self._renamed(part)

    def _renamed(self, part: SplitRange) -> SplitRange:
        name = f"source {self._number + 1}: {part.split}"
        return replace(part, split=name, payload=(self._number, part.split, part.payload))

    def _ends(self) -> Iterator[SplitRange]:
        """The ends of the splits that the finished source has left open: they must not hold the watermark back."""
        for split, end in self._open.items():
            yield self._renamed(SplitRange(split, end, end, weight=0, last=True))
        self._open = {}

    def snapshot(self) -> Any:
        return {
            "number": self._number,
            "state": self._current.snapshot(),
            "finished": self._finished,
            "open": dict(self._open),
        }

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        number = state["number"]
        for earlier in [each for each in self._enumerators if each < number]:
            self._enumerators.pop(earlier).close()
        if number in self._enumerators:
            self._enumerators[number].checkpoint_completed(checkpoint_id, state["state"])

    def wait(self, timeout: float) -> None:
        if not self._finished or self._is_last:
            self._current.wait(timeout)

    def close(self) -> None:
        for enumerator in self._enumerators.values():
            enumerator.close()


class _HybridReader:
    """Reads ranges by the reader of their source."""

    def __init__(self, sources: Sequence[Source], context: ReaderContext) -> None:
        self._sources = sources
        self._context = context
        self._readers: dict[int, SourceReader] = {}

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        number, split, payload = part.payload
        if number not in self._readers:
            for earlier in [each for each in self._readers if each < number]:
                self._readers.pop(earlier).close()
            context = replace(self._context, uid=member_uid(self._context.uid, number))
            self._readers[number] = self._sources[number].create_reader(context)
        return self._readers[number].read(replace(part, split=split, payload=payload), max_batch)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
