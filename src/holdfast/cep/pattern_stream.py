"""CEP and PatternStream: a stream in which a pattern sequence is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, cast

from holdfast.cep.automaton import automaton
from holdfast.cep.checks import warn_of
from holdfast.cep.conditions import leaves
from holdfast.cep.functions import (
    PatternFlatSelectFunction,
    PatternFlatTimeoutFunction,
    PatternProcessFunction,
    PatternSelectFunction,
    PatternTimeoutFunction,
    TimedOutPartialMatchHandler,
)
from holdfast.cep.operator import CepFactory, CepOperator, PatternFunction
from holdfast.cep.pattern import Pattern
from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import R, T
from holdfast.datastream.data_stream import DataStream, KeyedStream
from holdfast.datastream.functions import RuntimeContext
from holdfast.datastream.operations.function_checks import check_function, check_object
from holdfast.runtime.records.user_code import close_function, open_function

if TYPE_CHECKING:
    from typing_extensions import Self
from holdfast.errors import ConfigurationError

__all__ = ["CEP", "PatternStream"]

MatchOf = Mapping[str, list[Any]]


class CEP:
    """The entry to complex event processing."""

    @staticmethod
    def pattern(
        stream: DataStream[T], pattern: Pattern, comparator: Callable[[T, T], int] | None = None
    ) -> PatternStream[T]:
        """Look for a pattern sequence in a stream: among the elements of each key, or among all, then in one subtask.

        Args:
            stream: The stream.
            pattern: The last pattern of the sequence.
            comparator: Orders elements with the same timestamp: negative, 0 or positive as the first is less than, equal to
                or greater than the second. Otherwise, and if it returns 0, they come in the order of their arrival.

        Warns:
            PatternWarning: the sequence can never match, or its state would grow without end.
        """
        if not isinstance(stream, DataStream):
            raise TypeError(f"CEP.pattern() takes a stream, not {stream!r}.")
        if not isinstance(pattern, Pattern):
            raise TypeError(f"CEP.pattern() takes a Pattern, not {pattern!r}; make one with Pattern.begin(name).")
        if comparator is not None:
            check_function(comparator, "compare", ("first", "second"), "CEP.pattern()")
        compiled = automaton(pattern)
        warn_of(pattern, compiled)
        order = None if comparator is None else getattr(comparator, "compare", comparator)
        return PatternStream(stream, pattern, order)


class _Select(PatternProcessFunction):
    """Calls a function of one result with each match."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._select = getattr(function, "select", function)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        open_function(self._function, runtime_context)

    def close(self) -> None:
        """Close the function."""
        close_function(self._function)

    def process_match(self, match: MatchOf, ctx: PatternProcessFunction.Context) -> Iterable[Any]:
        """Return the function's result."""
        return (self._select(match),)


class _FlatSelect(_Select):
    """Calls a function of any number of results with each match."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._select = getattr(function, "flat_select", function)

    def process_match(self, match: MatchOf, ctx: PatternProcessFunction.Context) -> Iterable[Any]:
        """Return the function's results."""
        results: Iterable[Any] = self._select(match)
        return results


class _WithTimeout(PatternProcessFunction, TimedOutPartialMatchHandler):
    """Adds to a function of matches one of partial matches that time out."""

    def __init__(self, matches: _Select, timeout: Any, tag: OutputTag) -> None:
        self._matches = matches
        self._flat = isinstance(matches, _FlatSelect)
        self._function = timeout
        self._timeout = getattr(timeout, "timeout", timeout)
        self._tag = tag

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open both functions."""
        open_function(self._matches, runtime_context)
        open_function(self._function, runtime_context)

    def close(self) -> None:
        """Close both functions."""
        self._matches.close()
        close_function(self._function)

    def process_match(self, match: MatchOf, ctx: PatternProcessFunction.Context) -> Iterable[Any]:
        """Return the results of the first function."""
        return self._matches.process_match(match, ctx)

    def process_timed_out_match(self, match: MatchOf, ctx: PatternProcessFunction.Context) -> Iterator[Any]:
        """Emit the results of the second function to its side output."""
        results = self._timeout(match, ctx.timestamp())
        for result in results if self._flat else (results,):
            yield self._tag, result


class PatternStream(Generic[T]):
    """A stream with a pattern sequence that is looked for in it, as returned by ``CEP.pattern``."""

    def __init__(self, stream: DataStream[T], pattern: Pattern, comparator: Callable[[Any, Any], int] | None) -> None:
        self._stream = stream
        self._pattern = pattern
        self._comparator = comparator
        self._event_time = True
        self._late_tag: OutputTag | None = None

    def in_event_time(self) -> Self:
        """Order the elements by their timestamps. The default."""
        self._event_time = True
        return self

    def in_processing_time(self) -> Self:
        """Take the elements as they arrive, at the time of their arrival.

        Raises:
            ConfigurationError: the pattern stream has a comparator, which orders elements of one timestamp.
        """
        if self._comparator is not None:
            raise ConfigurationError(
                "in_processing_time() takes elements as they arrive, so the comparator of CEP.pattern() would not be "
                "called: leave it out, or work in event time."
            )
        self._event_time = False
        return self

    def side_output_late_data(self, late_data_output_tag: OutputTag) -> Self:
        """Send late elements to a side output instead of dropping them: those whose time the watermark has reached."""
        if not isinstance(late_data_output_tag, OutputTag):
            raise TypeError(f"side_output_late_data() takes an OutputTag, not {late_data_output_tag!r}.")
        self._late_tag = late_data_output_tag
        return self

    def process(
        self, pattern_process_function: PatternProcessFunction[T, R], output_type: TypeInformation | None = None
    ) -> DataStream[R]:
        """Apply a function to each match and, if it is a TimedOutPartialMatchHandler, to partial matches that time out.

        Args:
            pattern_process_function: The PatternProcessFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).

        Raises:
            TypeError: the function has another class.
        """
        methods = {"process_match": ("match", "ctx")}
        if isinstance(pattern_process_function, TimedOutPartialMatchHandler):
            methods["process_timed_out_match"] = ("match", "ctx")
        check_object(pattern_process_function, PatternProcessFunction, methods, "process() of a PatternStream")
        return self._apply(pattern_process_function, (pattern_process_function,), output_type)

    def select(
        self,
        pattern_select_function: Callable[[Mapping[str, list[T]]], R] | PatternSelectFunction[T, R],
        output_type: TypeInformation | None = None,
        *,
        timeout_function: Callable[[Mapping[str, list[T]], int], Any] | PatternTimeoutFunction[T, Any] | None = None,
        timeout_output_tag: OutputTag | None = None,
    ) -> DataStream[R]:
        """Make one result of each match.

        Args:
            pattern_select_function: A callable ``match -> result`` or a PatternSelectFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
            timeout_function: A callable ``(match, timestamp) -> result`` or a PatternTimeoutFunction, called with partial
                matches that time out.
            timeout_output_tag: The side output of its results.
        """
        check_function(pattern_select_function, "select", ("match",), "select()")
        if timeout_function is not None:
            check_function(timeout_function, "timeout", ("match", "timeout_timestamp"), "select()")
        return self._select(
            _Select(pattern_select_function), pattern_select_function, output_type, timeout_function, timeout_output_tag
        )

    def flat_select(
        self,
        pattern_flat_select_function: Callable[[Mapping[str, list[T]]], Iterable[R]] | PatternFlatSelectFunction[T, R],
        output_type: TypeInformation | None = None,
        *,
        timeout_function: Callable[[Mapping[str, list[T]], int], Iterable[Any]]
        | PatternFlatTimeoutFunction[T, Any]
        | None = None,
        timeout_output_tag: OutputTag | None = None,
    ) -> DataStream[R]:
        """Make any number of results of each match.

        Args:
            pattern_flat_select_function: A callable ``match -> results``, possibly a generator, or a
                PatternFlatSelectFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
            timeout_function: A callable ``(match, timestamp) -> results`` or a PatternFlatTimeoutFunction, called with
                partial matches that time out.
            timeout_output_tag: The side output of its results.
        """
        check_function(pattern_flat_select_function, "flat_select", ("match",), "flat_select()")
        if timeout_function is not None:
            called = getattr(timeout_function, "timeout", timeout_function)
            check_function(called, "flat_select", ("match", "timeout_timestamp"), "flat_select()")
        function = _FlatSelect(pattern_flat_select_function)
        return self._select(function, pattern_flat_select_function, output_type, timeout_function, timeout_output_tag)

    def _select(
        self, function: _Select, given: Any, output_type: Any, timeout: Any, tag: OutputTag | None
    ) -> DataStream[Any]:
        if (timeout is None) != (tag is None):
            raise TypeError("timeout_function and timeout_output_tag belong together: give both, or neither.")
        if timeout is None or tag is None:
            return self._apply(function, (given,), output_type)
        if not isinstance(tag, OutputTag):
            raise TypeError(f"timeout_output_tag is an OutputTag, not {tag!r}.")
        return self._apply(_WithTimeout(function, timeout, tag), (given, timeout), output_type)

    def _apply(self, function: PatternProcessFunction, given: tuple[Any, ...], output_type: Any) -> DataStream[Any]:
        keyed = isinstance(self._stream, KeyedStream)
        stream = cast(KeyedStream[Any, T], self._stream) if keyed else self._stream.key_by(_no_key)
        declared = self._stream._transformation.output_type
        compiled = automaton(self._pattern)
        operator = PatternFunction(
            compiled,
            self._pattern.skip_strategy,
            function,
            self._event_time,
            None if declared is None or declared.is_pickled else declared,
            self._comparator,
        )
        conditions = [leaf.function for condition in compiled.conditions for leaf in leaves(condition)]
        functions = [("pattern function", each) for each in given] + [("condition", each) for each in conditions]
        made = stream._then(
            "Cep" if keyed else "GlobalCep",
            CepFactory(CepOperator, operator, (self._late_tag,)),
            None,
            output_type,
            functions=tuple(functions),
            side_outputs=True,
        )
        return made if keyed else made.force_non_parallel()


def _no_key(value: Any) -> int:
    """The one key of a stream without keys."""
    return 0
