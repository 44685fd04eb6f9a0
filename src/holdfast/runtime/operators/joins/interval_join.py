"""The join of two keyed streams by an interval of time.

Each side has a buffer per key, with elements by timestamp. An arriving element is joined with the matching elements in the
other side's buffer, so each pair meets once. A timer removes an element from its buffer when no element in time can match it
any more; an outer join then emits it, unless it had a partner. All elements of a key and side with the same timestamp have
the same partners, so one entry per timestamp records that they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.common.output_tag import OutputTag
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.errors import IncompatibleState
from holdfast.functions.join_functions import ProcessJoinFunction
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.plan.context import UserRuntimeContext
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import close_function, not_iterable, open_function, user_error
from holdfast.state.api.descriptors import MapStateDescriptor

__all__ = ["IntervalJoinOperator"]

_LEFT, _RIGHT = 0, 1
_BUFFERS = ("left-buffer", "right-buffer")
_UNMATCHED = ("left-unmatched", "right-unmatched")


class _Pair(ProcessJoinFunction.Context):
    __slots__ = ("stamp", "stamps")

    stamps: tuple[int, int]
    stamp: int

    def get_left_timestamp(self) -> int:
        return self.stamps[_LEFT]

    def get_right_timestamp(self) -> int:
        return self.stamps[_RIGHT]

    def get_timestamp(self) -> int:
        return self.stamp


class _IntervalJoin(Operator):
    def __init__(self, spec: IntervalJoinOperator) -> None:
        self._spec = spec
        self._from = (spec.lower, -spec.upper)
        """By side: the first timestamp of the other side that an element joins, relative to its own."""
        self._to = (spec.upper, -spec.lower)

    def open(self) -> None:
        state = self.context.state
        assert state is not None
        self._space = state.space("keyed")
        self._table = self._space.table()
        types = (self._spec.left_type, self._spec.right_type)
        self._buffers = [
            self._space.get_map_state(
                MapStateDescriptor(name, Types.LONG(), None if declared is None else Types.LIST(declared))
            )
            for name, declared in zip(_BUFFERS, types)
        ]
        self._unmatched = [
            self._space.get_map_state(MapStateDescriptor(name, Types.LONG(), Types.BOOLEAN())) if outer else None
            for name, outer in zip(_UNMATCHED, self._spec.outer)
        ]
        """By side of an outer join: the timestamps of elements without a partner."""
        self._timers = state.timer_queue("interval-join")
        self._pair = _Pair()
        open_function(self._spec.func, UserRuntimeContext(self.context, None))

    def close(self) -> None:
        close_function(self._spec.func)

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return partial(self._take, _LEFT), partial(self._take, _RIGHT)

    def _take(self, side: int, batch: RecordBatch) -> None:
        keys, values, stamps = batch.keys, batch.values, batch.stamps()
        assert keys is not None
        if (at := batch.untimed()) is not None:
            told = ValueError("the element has no timestamp, which an interval join needs: assign timestamps before it")
            raise user_error(told, self.context.name, self.context.uid, values[at], keys[at])
        passed = self.context.clock.passed
        out = Collector(self.context.copied)
        late: tuple[list[Any], list[int]] = ([], [])
        space, own, unmatched = self._space, self._buffers[side], self._unmatched[side]
        key = value = None
        try:
            for key, value, stamp, row in zip(keys, values, stamps, self._table.load(keys)):
                if _after(stamp) <= passed:
                    late[0].append(value)
                    late[1].append(stamp)
                    continue
                space.row, space.key, space.namespace = row, key, None
                own.put(stamp, [*(own.get(stamp) or ()), value])
                if not self._join(out, side, value, stamp) and unmatched is not None:
                    unmatched.put(stamp, True)
                # An element with the watermark's own timestamp is in time, so its partners must stay until the watermark
                # passes.
                self._timers.register(min(stamp + max(self._to[side], 0) + 1, MAX_TIMESTAMP), (key, side))
        except (Exception, SystemExit) as error:
            raise user_error(error, self.context.name, self.context.uid, value, key) from error
        if late[0]:
            self.context.emit_late((self._spec.left_late_tag, self._spec.right_late_tag)[side], *late)
        out.emit(self.context)

    def _join(self, out: Collector, side: int, value: Any, stamp: int) -> bool:
        """Join an element with the matching ones in the other side's buffer; returns whether there is any."""
        other, unmatched = self._buffers[1 - side], self._unmatched[1 - side]
        first, last = stamp + self._from[side], stamp + self._to[side]
        pair, copied = self._pair, self.context.copied
        partners = sorted((when, held) for when, held in other.items() if first <= when <= last)
        for when, held in partners:
            pair.stamps = (stamp, when) if side == _LEFT else (when, stamp)
            pair.stamp = max(stamp, when)
            for each in held:
                one, two = copied(value), copied(each)  # copies: the function may change its arguments
                self._process(out, *((one, two) if side == _LEFT else (two, one)))
            if unmatched is not None:
                unmatched.remove(when)
        return bool(partners)

    def _process(self, out: Collector, left: Any, right: Any) -> None:
        results = None
        try:
            results = self._spec.func.process_element(left, right, self._pair)
            if results is not None:
                out.take(results, self._pair.stamp)
        except TypeError as error:
            raise not_iterable(error, results) from error

    def advance_watermark(self, watermark: int) -> None:
        rows, space = self._table.rows, self._space
        out = Collector(self.context.copied)
        for when, (key, side) in self._timers.due(watermark, lambda owners: self._table.load([key for key, _ in owners])):
            space.row, space.key, space.namespace = rows[key], key, None
            buffer, stamp = self._buffers[side], when - 1 - max(self._to[side], 0)
            for gone in [stamp] if when < MAX_TIMESTAMP else sorted(buffer.keys()):
                self._emit_unmatched(out, side, key, gone, min(when, MAX_TIMESTAMP - 1))
                buffer.remove(gone)
        out.emit(self.context)

    def _emit_unmatched(self, out: Collector, side: int, key: Any, stamp: int, now: int) -> None:
        """Emit the elements of a timestamp that have had no partner; called when no partner can come any more."""
        unmatched, pair, value = self._unmatched[side], self._pair, None
        if unmatched is None or not unmatched.contains(stamp):
            return
        unmatched.remove(stamp)
        pair.stamps = (stamp, MIN_TIMESTAMP) if side == _LEFT else (MIN_TIMESTAMP, stamp)
        pair.stamp = now
        try:
            for value in self._buffers[side].get(stamp) or ():
                self._process(out, *((value, None) if side == _LEFT else (None, value)))
        except (Exception, SystemExit) as error:
            raise user_error(error, self.context.name, self.context.uid, value, key) from error


@dataclass(frozen=True)
class IntervalJoinOperator(OperatorFactory):
    """A ProcessJoinFunction on pairs with ``left + lower <= right <= left + upper``."""

    state = StateKind.KEYED
    needs_timestamps = True

    func: ProcessJoinFunction[Any, Any, Any]
    lower: int
    upper: int
    left_type: TypeInformation | None = None
    right_type: TypeInformation | None = None
    left_late_tag: OutputTag | None = None
    right_late_tag: OutputTag | None = None
    outer: tuple[bool, bool] = (False, False)
    """Whether elements of the left and of the right side without a partner are emitted."""

    def create(self) -> Operator:
        """Create the operator."""
        return _IntervalJoin(self)

    def functions(self) -> Sequence[Any]:
        """The user's function."""
        return (self.func,)

    def definition(self) -> dict[str, Any]:
        """The bounds that determine the timers, and the sides that record elements without a partner."""
        return {"of": "an interval join", "bounds": [self.lower, self.upper], "outer": list(self.outer)}

    def continuing(self, stored: Mapping[str, Any]) -> IntervalJoinOperator:
        """Continue unless elements of the checkpoint would leave at a wrong time, or without being emitted.

        Raises:
            IncompatibleState: they would.
        """
        lower, upper = stored["bounds"]
        if [lower, upper] != [self.lower, self.upper]:
            raise IncompatibleState(
                f"its elements wait for partners between {lower} and {upper} ms, and the program has the bounds "
                f"{self.lower} and {self.upper} ms"
            )
        for side, outer, before in zip(("left", "right"), self.outer, stored["outer"]):
            if outer and not before:
                raise IncompatibleState(
                    f"it has not noted which elements of the {side} side had a partner, and the program's join is an outer "
                    "one of that side"
                )
        return self

    def deadline(self) -> Callable[[int], int] | None:
        """An element is late when the watermark has passed it."""
        return _after


def _after(timestamp: int) -> int:
    return timestamp + 1
