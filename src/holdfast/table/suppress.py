"""The operator of `KTable.suppress`: it holds the newest change of each row until event time has come far enough.

A row is held from its first change on, until it is due at a watermark. Whether that is before another change of the row is
decided by the timestamp of the change and by the watermark of its own split, so what is emitted does not depend on how the
input is cut. Only with a bound it depends on the order in which changes of different keys arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.time_domain import TimeDomain
from holdfast.common.values.pickling import dumps
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.operators.broadcast import chunks
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.records.records import RecordBatch
from holdfast.state.keys.key_codec import encode_key
from holdfast.state.keys.key_groups import key_grouper
from holdfast.table.changes import Change
from holdfast.table.lateness import Lateness, TimedProcess
from holdfast.table.suppressed import EagerBufferConfig, Suppressed
from holdfast.table.windows import Windowed

__all__ = ["SuppressFactory"]

Held = tuple[int, Any, Any, int]
"""The watermark at which a row is due, its new value, the value that was emitted before, and the size in bytes or 0."""


_HELD: ValueStateDescriptor[Any] = ValueStateDescriptor("held")


class Suppress(KeyedProcessFunction[Any, Change, Change], DefinedState):
    """When rows are emitted.

    Args:
        suppressed: What the program says.
        closes_after: Of a windowed table: how far from its end the watermark closes a window, in ms.
    """

    def __init__(self, suppressed: Suppressed, closes_after: int | None) -> None:
        self.windowed = closes_after is not None
        self.limit = suppressed.limit
        self.eager = isinstance(suppressed.config, EagerBufferConfig)
        self._closes_after = closes_after or 0
        self.bound = suppressed.config.bound
        self.lateness = Lateness()

    def definition(self) -> dict[str, Any]:
        """Until when rows are held."""
        return {"of": "suppress() of a table", "until": "window closes" if self.limit is None else "time limit"}

    def continuing(self, stored: Mapping[str, Any]) -> Suppress:
        """None goes on with rows that are held until something else.

        Raises:
            IncompatibleState: always.
        """
        raise IncompatibleState(
            f"it holds rows until {stored['until']!r}, and the program's suppress() is until {self.definition()['until']!r}"
        )

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the held row."""
        self.held = runtime_context.get_state(_HELD)

    def process_element(self, value: Change, ctx: KeyedProcessFunction.Context) -> None:
        """Nothing: the operator holds and emits changes by itself."""

    def due(self, key: Any, stamp: int) -> int:
        """The watermark at which a row is emitted, whose first change has this timestamp."""
        if self.limit is None:
            return int(key[2]) + self._closes_after
        return min(stamp + self.limit - 1, MAX_TIMESTAMP - 1)

    def goes_before(self, due: int, stamp: int, passed: int) -> bool:
        """Whether a held row is emitted before a change of it."""
        return passed >= due or (self.limit is not None and stamp > due)


@dataclass
class _Group:
    """The held rows of a key group: which there are, and the oldest first."""

    sizes: dict[Any, tuple[int, int]] = field(default_factory=dict)
    """When each row is due, and its size in bytes."""
    order: list[tuple[int, bytes, Any]] = field(default_factory=list)
    """A heap of the rows by when they are due, and by key. Others are removed when they come to the top."""
    bytes: int = 0

    def put(self, key: Any, due: int, size: int) -> None:
        known = self.sizes.get(key)
        if known is None or known[0] != due:
            heapq.heappush(self.order, (due, encode_key(key), key))
        self.bytes += size - (0 if known is None else known[1])
        self.sizes[key] = due, size

    def remove(self, key: Any) -> None:
        self.bytes -= self.sizes.pop(key, (0, 0))[1]

    def oldest(self) -> Any:
        while True:
            due, _, key = self.order[0]
            if self.sizes.get(key, (None,))[0] == due:
                return key
            heapq.heappop(self.order)


class SuppressProcess(TimedProcess):
    """Holds and emits rows."""

    needing = "suppress()"
    function: Suppress

    def open(self) -> None:
        super().open()
        self._bound = self.function.bound
        self._bounded = self._bound.records is not None or self._bound.bytes is not None
        self._grouper = key_grouper(self.context.max_parallelism)
        self._groups: dict[int, _Group] | None = None
        self._final = self.function.limit is None

    def process(self, batch: RecordBatch) -> None:
        self.check_timed(batch)
        keys, passed = batch.keys, self.context.clock.passed
        assert keys is not None
        if self._bounded and self._groups is None:
            self._groups = self._found()
        emitted = _Emitted(self)
        space = self.space
        for key, change, stamp, row in zip(keys, batch.values, batch.stamps(), space.load(keys)):
            space.row, space.key = row, key
            self._take(change, stamp, passed, emitted)
        emitted.flush()

    def _take(self, change: Change, stamp: int, passed: int, emitted: _Emitted) -> None:
        """Hold a change, or emit it; and the rows that are due before it."""
        function = self.function
        key, new, old = change
        held: Held | None = function.held.value()
        if held is not None and function.goes_before(held[0], stamp, passed):
            self._release(held)
            emitted.take(self._row(key, held), held[0], alone=True)
            held = None
        due = function.due(key, stamp) if held is None else held[0]
        if held is not None:
            old = held[2]
        if self._final:  # nothing of the row has been emitted
            old = None
        if due <= passed or function.limit == 0:
            if held is not None:
                self._release(held)
            emitted.take((key, new, old), stamp)
        elif new is None and old is None:
            if held is not None:
                self._release(held)
        else:
            self._hold(due, new, old, held is None)
            if self._bounded:
                self._enforce(change, stamp, emitted)

    def _hold(self, due: int, new: Any, old: Any, first: bool) -> None:
        key = self.space.key
        size = 0 if self._bound.bytes is None else len(dumps((key, new, old)))
        self.function.held.update((due, new, old, size))
        if first:
            self.event_timers.register(due, key)
        if self._groups is not None:
            self._group(key).put(key, due, size)

    def _release(self, held: Held, fired: bool = False) -> None:
        """Hold the current key's row no longer."""
        key = self.space.key
        self.function.held.clear()
        if not fired:
            self.event_timers.delete(held[0], key)
        if self._groups is not None:
            self._group(key).remove(key)

    def _row(self, key: Any, held: Held) -> Change:
        return Windowed(*key) if self.function.windowed else key, held[1], held[2]

    # ---- bounds -------------------------------------------------------------------------------------------------------

    def _group(self, key: Any) -> _Group:
        assert self._groups is not None
        return self._groups.setdefault(self._grouper([key])[0], _Group())

    def _over(self, group: _Group) -> bool:
        records, size = self._bound.records, self._bound.bytes
        return (records is not None and len(group.sizes) > records) or (size is not None and group.bytes > size)

    def _enforce(self, change: Change, stamp: int, emitted: _Emitted) -> None:
        """Emit the oldest rows of the current key's group, or fail, while they are too many."""
        space = self.space
        group = self._group(space.key)
        while self._over(group):
            if not self.function.eager:
                told = RuntimeError(
                    f"suppress() holds {len(group.sizes)} rows of {group.bytes} bytes in the key's group, and its buffer is "
                    f"bounded by {self._bound}: raise the bound, or let it emit_early_when_full()"
                )
                raise self.fail(told, change, space.key)
            oldest = group.oldest()
            space.row, space.key = self.table.load([oldest])[0], oldest
            held: Held | None = self.function.held.value()
            assert held is not None, "a row of the index is held"
            self._release(held)
            emitted.take(self._row(oldest, held), max(stamp, self.context.clock.watermark + 1), alone=True)

    def _found(self) -> dict[int, _Group]:
        """The held rows of all keys, by key group."""
        groups: dict[int, _Group] = {}
        space, held = self.space, self.function.held
        _, cell = space.state_of(_HELD)
        for rows in chunks(self.table, cell):
            for space.key, space.row in rows:
                its: Held | None = held.value()
                if its is None:
                    continue
                due, _, _, size = its
                groups.setdefault(self._grouper([space.key])[0], _Group()).put(space.key, due, size)
        return groups

    # ---- timers -------------------------------------------------------------------------------------------------------

    def _fire_until(self, timers: Any, time: int, domain: TimeDomain) -> None:
        table, space, restore_key = self.table, self.space, self.restore_key
        out = Collector(self.context.copied)
        for when, key in timers.due(time, table.load):
            space.row, space.key = table.rows[key], key
            held: Held | None = self.function.held.value()
            if held is not None and held[0] <= when:
                self._release(held, fired=True)
                shown = key if restore_key is None else restore_key(key)
                out.take((self._row(shown, held),), when)
        out.emit(self.context)


class _Emitted:
    """What is emitted while a batch is processed."""

    def __init__(self, operator: SuppressProcess) -> None:
        self._operator = operator
        self._out = Collector(operator.context.copied)
        self._alone = False

    def take(self, change: Change, stamp: int, alone: bool = False) -> None:
        """Emit a change. One that is emitted ``alone`` is not late, also if the elements of the batch are."""
        if change[1] is None and change[2] is None:
            return
        if alone != self._alone:
            self.flush()
            self._alone = alone
        self._out.take((change,), stamp)

    def flush(self) -> None:
        """Pass on what has been taken."""
        if not self._out.values:
            return
        context = self._operator.context
        passing = context.emitted
        late_by = passing.late_by
        if self._alone:
            passing.late_by = MIN_TIMESTAMP
        try:
            self._out.emit(context)
        finally:
            passing.late_by = late_by
        self._out = Collector(context.copied)


@dataclass(frozen=True)
class SuppressFactory(FunctionFactory):
    """Makes operators that suppress changes."""

    needs_timestamps = True

    @staticmethod
    def of(suppressed: Suppressed, closes_after: int | None) -> SuppressFactory:
        """The operator of a table; ``closes_after`` is that of a windowed table."""
        return SuppressFactory(SuppressProcess, Suppress(suppressed, closes_after))

    def deadline(self) -> Callable[[int], int] | None:
        """A change is late when the watermark has reached it: rows that are due then go before it."""
        return None if self.func.limit is None else _just_before


def _just_before(timestamp: int) -> int:
    return max(timestamp - 1, MIN_TIMESTAMP)
