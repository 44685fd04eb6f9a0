"""The temporal join: each element with the version of its key that is valid at the element's timestamp.

Elements and versions wait in keyed state until the watermark has passed them, because no earlier version can come then. An
element is joined with the newest version that is not later than itself. A replaced version is removed when the watermark
passes the newer one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row, RowKind
from holdfast.functions.join_functions import FlatJoinFunction
from holdfast.runtime.operators.joins.versions import Versions
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.plan.context import UserRuntimeContext
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import close_function, not_iterable, open_function, user_callable, user_error
from holdfast.state.api.descriptors import MapStateDescriptor

__all__ = ["TemporalJoinOperator"]

_DELETIONS = (RowKind.DELETE, RowKind.UPDATE_BEFORE)


class _TemporalJoin(Operator):
    def __init__(self, spec: TemporalJoinOperator) -> None:
        self._spec = spec

    def open(self) -> None:
        state, spec = self.context.state, self._spec
        assert state is not None
        self._space = state.space("keyed")
        self._table = self._space.table()
        elements = None if spec.left_type is None else Types.LIST(spec.left_type)
        self._elements = self._space.get_map_state(MapStateDescriptor("elements", Types.LONG(), elements))
        self._versions = Versions(self._space, spec.right_type)
        self._timers = state.timer_queue("temporal-join")
        open_function(spec.func, UserRuntimeContext(self.context, None))
        self._join = user_callable(spec.func, "join")
        self._flat = isinstance(spec.func, FlatJoinFunction)

    def close(self) -> None:
        close_function(self._spec.func)

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        spec = self._spec
        return (
            partial(self._take, self._add_element, spec.left_late_tag),
            partial(self._take, self._add_version, spec.right_late_tag),
        )

    def _take(self, add: Callable[[int, Any], None], late_tag: OutputTag | None, batch: RecordBatch) -> None:
        keys, values, stamps = batch.keys, batch.values, batch.stamps()
        assert keys is not None
        if (at := batch.untimed()) is not None:
            told = ValueError("the element has no timestamp, which a temporal join needs: assign timestamps before it")
            raise user_error(told, self.context.name, self.context.uid, values[at], keys[at])
        passed = self.context.clock.passed
        late: tuple[list[Any], list[int]] = ([], [])
        space = self._space
        key = value = None
        try:
            for key, value, stamp, row in zip(keys, values, stamps, self._table.load(keys)):
                if stamp <= passed:
                    late[0].append(value)
                    late[1].append(stamp)
                    continue
                space.row, space.key, space.namespace = row, key, None
                add(stamp, value)
                self._timers.register(stamp, key)
        except (Exception, SystemExit) as error:
            raise user_error(error, self.context.name, self.context.uid, value, key) from error
        if late[0]:
            self.context.emit_late(late_tag, *late)

    def _add_element(self, stamp: int, value: Any) -> None:
        self._elements.put(stamp, [*(self._elements.get(stamp) or ()), value])

    def _add_version(self, stamp: int, value: Any) -> None:
        if isinstance(value, Row) and value.get_row_kind() in _DELETIONS:
            self._versions.delete(stamp)
        else:
            self._versions.put(stamp, value)

    def advance_watermark(self, watermark: int) -> None:
        rows, space = self._table.rows, self._space
        out = Collector(self.context.copied)
        known: dict[Any, deque[int]] = {}
        for when, key in self._timers.due(watermark, self._table.load):
            space.row, space.key, space.namespace = rows[key], key, None
            if key not in known:
                known[key] = self._versions.stamps()
            valid = self._versions.forget_before(known[key], when)
            elements = self._elements.get(when)
            if elements is not None:
                self._elements.remove(when)
                self._join_all(out, key, list(elements), self._versions.get(valid), when)
        out.emit(self.context)

    def _join_all(self, out: Collector, key: Any, elements: list[Any], version: Any, stamp: int) -> None:
        if version is None and not self._spec.left_outer:
            return
        value = results = None
        copied = self.context.copied
        try:
            for value in elements:
                results = self._join(value, copied(version))  # a copy: the function may change its arguments
                if self._flat:
                    out.take(results or (), stamp)
                else:
                    out.take_one(results, stamp)
        except (Exception, SystemExit) as error:
            told = not_iterable(error, results) if self._flat else error
            raise user_error(told, self.context.name, self.context.uid, value, key) from error


@dataclass(frozen=True)
class TemporalJoinOperator(OperatorFactory):
    """Joins each element of the first input with the version of the second that is valid at its timestamp."""

    state = StateKind.KEYED
    needs_timestamps = True

    func: Any
    left_outer: bool = False
    """Whether elements without a version are joined with None."""
    left_type: TypeInformation | None = None
    right_type: TypeInformation | None = None
    left_late_tag: OutputTag | None = None
    right_late_tag: OutputTag | None = None

    def create(self) -> Operator:
        """Create the operator."""
        return _TemporalJoin(self)

    def functions(self) -> Sequence[Any]:
        """The user's function."""
        return (self.func,)

    def deadline(self) -> Callable[[int], int] | None:
        """An element is late when the watermark has reached it."""
        return int
