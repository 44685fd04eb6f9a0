"""Harnesses of operators: elements, times and checkpoints under a test's control, without Spark and its JVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from holdfast.common.configuration import Configuration
from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.batches import fitted
from holdfast.common.values.type_variables import OUT, A, B, R, T
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.connectors.base import Enumerator, JobInfo, ReaderContext, SourceReader
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.state.api.descriptors import StateDescriptor
from holdfast.testing import inspection
from holdfast.testing.clock import VirtualClock
from holdfast.testing.dataflow import Dataflow, HarnessSnapshot
from holdfast.testing.recorder import Output, Recorder, RecorderSink

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HarnessSnapshot", "OneInputTestHarness", "TwoInputTestHarness"]


class _Input:
    """The source of a harness, which no task reads: the harness passes the elements to the task."""

    bounded = False

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        raise NotImplementedError("a harness has no driver")

    def create_reader(self, context: ReaderContext) -> SourceReader:
        raise NotImplementedError("a harness reads nothing")


def _timestamp(value: Any, record_timestamp: int) -> int:
    return record_timestamp


_TIMES = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_timestamp)
"""Tells the checks of the program that the elements have timestamps."""


class _Harness(Generic[OUT]):
    """A small program whose operators are open. Use it in a ``with`` statement, or close it."""

    def __init__(
        self,
        types: tuple[TypeInformation | None, ...],
        build: Callable[..., DataStream[OUT]],
        *,
        parallelism: int = 1,
        configuration: Mapping[str, str] | Configuration | None = None,
        snapshot: HarnessSnapshot | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        given = configuration if isinstance(configuration, Configuration) else Configuration.from_dict(configuration or {})
        env = StreamExecutionEnvironment(given).set_parallelism(parallelism)
        inputs = [
            env.from_source(_Input(), _TIMES, f"input {number}", declared).set_parallelism(1).uid(f"input {number}")
            for number, declared in enumerate(types, start=1)
        ]
        result = build(*inputs)
        if not isinstance(result, DataStream):
            raise TypeError(f"the function that builds the harness's program must return a stream, not {result!r}")
        self._recorder = Recorder()
        result.sink_to(RecorderSink(self._recorder.token)).name("output").uid("output")
        plan = env._plan("harness")
        sources = {vertex.source.uid: vertex.id for vertex in plan.vertices if vertex.source is not None}
        self._vertices = [sources[f"input {number}"] for number in range(1, len(types) + 1)]
        self._dataflow = Dataflow(plan, self._recorder, snapshot)
        self.clock = clock or VirtualClock()
        """The processing time."""
        self._dataflow.advance_processing_time(self.clock.now())
        self.clock.call(self._dataflow.advance_processing_time)

    # ---- time -------------------------------------------------------------------------------------------------------

    def set_processing_time(self, time: int) -> Self:
        """Set processing time, in ms since 1970; timers and windows that are due fire.

        Raises:
            ValueError: the time would go back.
        """
        self.clock.set(time)
        return self

    # ---- what came out ----------------------------------------------------------------------------------------------

    def get_output(self) -> list[tuple[OUT, int]]:
        """The emitted elements with their timestamps (ms; ``-2**63``: none), in order, since `clear_output`."""
        return list(self._recorder.main)

    def extract_output_values(self) -> list[OUT]:
        """The emitted elements, in order, since `clear_output`."""
        return [value for value, _ in self._recorder.main]

    def get_side_output(self, output_tag: OutputTag[R]) -> list[R]:
        """The elements emitted with the tag, which the program itself does not read, since `clear_output`."""
        values = [value for value, _ in self._side(output_tag)]
        return values if output_tag.type_info is None else fitted(output_tag.type_info, values)

    def _side(self, output_tag: OutputTag) -> list[Output]:
        return self._recorder.side.get(output_tag.tag_id, [])

    def clear_output(self) -> Self:
        """Forget the output so far."""
        self._recorder.clear()
        return self

    # ---- state and timers -------------------------------------------------------------------------------------------

    def get_keyed_state(self, state_descriptor: StateDescriptor, key: Any) -> Any:
        """The content of a function's keyed state: a value, a list or a dict; None (or an empty one) if there is none.

        Args:
            state_descriptor: The state's descriptor, with the function's types.
            key: The key.

        Raises:
            LookupError: no function has such a state.
        """
        return inspection.keyed_content(self._dataflow, state_descriptor, key)

    def get_operator_state(self, name: str) -> list[Any]:
        """The content of a function's operator or broadcast state in each subtask: lists or dicts.

        Raises:
            LookupError: no function has such a state.
        """
        return inspection.operator_content(self._dataflow, name)

    def event_time_timers(self) -> list[tuple[int, Any]]:
        """The pending event-time timers of keyed functions, by time: time in ms and key."""
        return sorted(inspection.timers(self._dataflow, "event"), key=lambda timer: (timer[0], repr(timer[1])))

    def processing_time_timers(self) -> list[tuple[int, Any]]:
        """The pending processing-time timers of keyed functions, by time: time in ms and key."""
        return sorted(inspection.timers(self._dataflow, "processing"), key=lambda timer: (timer[0], repr(timer[1])))

    def num_late_records_dropped(self) -> int:
        """The number of late elements that windows and joins have dropped."""
        return sum(task.chain.late_dropped for task in self._dataflow.tasks.values())

    # ---- life -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> HarnessSnapshot:
        """Take a checkpoint. A harness of the same program starts from it with ``snapshot=``, at any parallelism."""
        return self._dataflow.snapshot()

    def close(self) -> None:
        """Close the functions, and remove local state."""
        self._dataflow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()

    def _process(self, number: int, value: Any, timestamp: int | None) -> Self:
        self._dataflow.process(self._vertices[number], value, timestamp)
        return self

    def _advance(self, number: int, watermark: int) -> Self:
        self._dataflow.advance_watermark(self._vertices[number], watermark)
        return self


class OneInputTestHarness(_Harness[OUT], Generic[T, OUT]):
    """Drives the operators that a program puts on one stream: elements, watermarks and processing time, one by one.

    The operators, state backends, timers and checkpoints are those of a job; there is no Spark and no JVM. An element, and
    all that follows from it, is processed when the call returns.

    Args:
        build: From the input stream to the stream of results: any operations, also several with a shuffle between them.
        type_info: The declared type of the input elements.
        parallelism: The parallelism of the operators; keys are distributed as in a job.
        configuration: Settings under Flink's keys, e.g. ``{"state.backend.type": "rocksdb"}``.
        snapshot: The checkpoint to start from, as another harness's `snapshot` returned it.
        clock: The processing time; a new clock at 0 by default.

    Raises:
        ConfigurationError: the program cannot work.
        IncompatibleState: the program cannot start from the snapshot.

    Examples:
        >>> from holdfast.common import Time
        >>> from holdfast.datastream.window import TumblingEventTimeWindows
        >>> def totals(payments):
        ...     minutes = payments.key_by(lambda p: p[0]).window(TumblingEventTimeWindows.of(Time.minutes(1)))
        ...     return minutes.reduce(lambda a, b: (a[0], a[1] + b[1]))
        >>> with OneInputTestHarness(totals) as harness:
        ...     harness.process_element(("anna", 3), 1_000).process_element(("anna", 4), 2_000)
        ...     harness.process_watermark(59_999).get_output()
        OneInputTestHarness
        [(('anna', 7), 59999)]
    """

    def __init__(
        self,
        build: Callable[[DataStream[T]], DataStream[OUT]],
        type_info: TypeInformation[T] | None = None,
        *,
        parallelism: int = 1,
        configuration: Mapping[str, str] | Configuration | None = None,
        snapshot: HarnessSnapshot | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        super().__init__(
            (type_info,), build, parallelism=parallelism, configuration=configuration, snapshot=snapshot, clock=clock
        )

    def process_element(self, value: Any, timestamp: int | None = None) -> Self:
        """Process an element.

        Args:
            value: The element.
            timestamp: Its timestamp in ms; None: it has none. Behind the watermark, the element is late.

        Raises:
            UserCodeError: a function raised; its error is the cause.
        """
        return self._process(0, value, timestamp)

    def process_watermark(self, timestamp: int) -> Self:
        """Advance event time; timers and windows that are due fire. An earlier time has no effect."""
        return self._advance(0, timestamp)

    def __repr__(self) -> str:
        return type(self).__name__


class TwoInputTestHarness(_Harness[OUT], Generic[A, B, OUT]):
    """Drives the operators that a program puts on two streams. Event time is the lower one of the two watermarks.

    Args:
        build: From the two input streams to the stream of results: a connection, a broadcast, a join.
        type_info1: The declared type of the first stream's elements.
        type_info2: The declared type of the second stream's elements.
        parallelism: The parallelism of the operators; keys are distributed as in a job.
        configuration: Settings under Flink's keys, e.g. ``{"state.backend.type": "rocksdb"}``.
        snapshot: The checkpoint to start from, as another harness's `snapshot` returned it.
        clock: The processing time; a new clock at 0 by default.

    Raises:
        ConfigurationError: the program cannot work.
        IncompatibleState: the program cannot start from the snapshot.
    """

    def __init__(
        self,
        build: Callable[[DataStream[A], DataStream[B]], DataStream[OUT]],
        type_info1: TypeInformation[A] | None = None,
        type_info2: TypeInformation[B] | None = None,
        *,
        parallelism: int = 1,
        configuration: Mapping[str, str] | Configuration | None = None,
        snapshot: HarnessSnapshot | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        types = (type_info1, type_info2)
        super().__init__(types, build, parallelism=parallelism, configuration=configuration, snapshot=snapshot, clock=clock)

    def process_element1(self, value: Any, timestamp: int | None = None) -> Self:
        """Process an element of the first stream; see `OneInputTestHarness.process_element`."""
        return self._process(0, value, timestamp)

    def process_element2(self, value: Any, timestamp: int | None = None) -> Self:
        """Process an element of the second stream; see `OneInputTestHarness.process_element`."""
        return self._process(1, value, timestamp)

    def process_watermark1(self, timestamp: int) -> Self:
        """Advance the watermark of the first stream."""
        return self._advance(0, timestamp)

    def process_watermark2(self, timestamp: int) -> Self:
        """Advance the watermark of the second stream."""
        return self._advance(1, timestamp)

    def process_both_watermarks(self, timestamp: int) -> Self:
        """Advance the watermarks of both streams."""
        self._advance(0, timestamp)
        return self._advance(1, timestamp)

    def __repr__(self) -> str:
        return type(self).__name__
