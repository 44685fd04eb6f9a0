"""The definition of windows in a checkpoint, and how other windows can continue its state. Pure.

Windows are stored in one of four forms: ``aligned``, a table of rows per window; ``panes``, a table per pane, from which
several windows are composed; ``rows``, a row with timers per key and window; ``merging``, the same with a set of windows per
key. The first two are converted to ``rows`` if the program's windows differ: windows with contents keep their spans, and new
elements go to the program's windows. ``rows`` stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import IncompatibleState
from holdfast.functions.aggregates import Aggregates
from holdfast.runtime.operators.windows.window_base import WindowSpec
from holdfast.runtime.operators.windows.window_content import Accumulator, Reduced
from holdfast.windowing.assigners import (
    GlobalWindows,
    MergingWindowAssigner,
    PeriodicWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    StaggeredWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.windowing.counts import CountSlidingWindowAssigner, CountTumblingWindowAssigner
from holdfast.windowing.cumulative import CumulativeEventTimeWindows, CumulativeProcessingTimeWindows
from holdfast.windowing.evictors import Evictor
from holdfast.windowing.sessions import SessionWindows

__all__ = [
    "ALIGNED",
    "MERGING",
    "PANES",
    "ROWS",
    "TIMED",
    "KeepsAll",
    "check_continues",
    "described",
    "former_windows",
    "named",
]

ALIGNED, PANES, ROWS, MERGING = "aligned", "panes", "rows", "merging"
TIMED = "elements with timestamps"
"""The content of windows with an evictor."""
_PERIODIC: dict[str, Any] = {
    each.__name__: each
    for each in (
        CumulativeEventTimeWindows,
        CumulativeProcessingTimeWindows,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
    )
}
_BY_NUMBER = "windows of a number of elements"
_COUNTS = (CountSlidingWindowAssigner, CountTumblingWindowAssigner)


class KeepsAll(Evictor[Any, Any]):
    """Evicts nothing: for contents that were stored for an evictor which the program no longer has."""

    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        """Keep all."""

    def evict_after(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        """Keep all."""


def described(spec: WindowSpec, form: str) -> dict[str, Any]:
    """The definition, as plain data, of windows that are stored in this form."""
    assigner = spec.assigner
    name, arguments = named(assigner)
    return {
        "of": "windows",
        "kind": _kind(assigner),
        "assigner": name,
        "arguments": arguments,
        "event time": assigner.is_event_time(),
        "form": form,
        "content": _content(spec),
        "inputs": 1 + spec.two_inputs,
    }


def _kind(assigner: Any) -> str:
    if isinstance(assigner, MergingWindowAssigner):
        return "sessions" if isinstance(assigner, SessionWindows) else "own windows that merge"
    if isinstance(assigner, (PeriodicWindows, StaggeredWindows)):
        return "windows of time"
    if isinstance(assigner, GlobalWindows):
        return "global windows"
    return _BY_NUMBER if isinstance(assigner, _COUNTS) else "own windows"


def named(assigner: Any) -> tuple[str, list[Any]]:
    """The assigner's class and arguments; a subclass of a Holdfast assigner is stored like it."""
    if isinstance(assigner, PeriodicWindows):
        names = [each.__name__ for each in type(assigner).__mro__]
        return next((name for name in names if name in _PERIODIC), names[0]), list(assigner.arguments)
    if isinstance(assigner, (*_COUNTS, StaggeredWindows)):
        return type(assigner).__name__, list(assigner.arguments)
    return type(assigner).__name__, []


def _content(spec: WindowSpec) -> str:
    content = spec.content
    if spec.evictor is not None:
        return TIMED
    if isinstance(content, Reduced):
        return "reduced elements"
    if not isinstance(content, Accumulator):
        return "elements"
    if not isinstance(content.function, Aggregates):
        return "accumulators"
    return ", ".join(f"{type(each).__name__}({each.field or ''})" for each in content.function.each)


def check_continues(own: Mapping[str, Any], stored: Mapping[str, Any], merges: bool) -> None:
    """Check whether windows can continue the state of another definition.

    Args:
        own: Their definition.
        stored: The stored definition.
        merges: Whether they can merge contents.

    Raises:
        IncompatibleState: they cannot.
    """
    kinds = own["kind"], stored["kind"]
    if kinds[0] != kinds[1]:
        raise IncompatibleState(f"it has {stored['kind']} ({_shown(stored)}), and the program {own['kind']} ({_shown(own)})")
    if own["inputs"] != stored.get("inputs", own["inputs"]):  # earlier checkpoints do not record it
        joins = ["a window join" if each["inputs"] == 2 else "windows of one stream" for each in (stored, own)]
        raise IncompatibleState(f"it has elements of {joins[0]}, and the program {joins[1]}")
    if own["event time"] != stored["event time"]:
        times = [f"{'event' if each['event time'] else 'processing'} time" for each in (stored, own)]
        raise IncompatibleState(f"its windows are of {times[0]}, and those of the program of {times[1]}")
    if kinds[0] == _BY_NUMBER and _shown(own) != _shown(stored):
        raise IncompatibleState(f"its elements are numbered for {_shown(stored)}, and the program has {_shown(own)}")
    if own["content"] != stored["content"] and stored["content"] != TIMED:
        why = ": an evictor needs them with their timestamps" if own["content"] == TIMED else ""
        raise IncompatibleState(f"its windows hold {stored['content']}, and those of the program {own['content']}{why}")
    if stored["form"] == PANES and own["form"] != PANES and not merges:
        raise IncompatibleState(
            f"its windows ({_shown(stored)}) are stored in parts, and the program's AggregateFunction has no merge() to put "
            "them together"
        )


def _shown(definition: Mapping[str, Any]) -> str:
    arguments = ", ".join(map(str, definition["arguments"]))
    return f"{definition['assigner']}({arguments})" if arguments else str(definition["assigner"])


def former_windows(stored: Mapping[str, Any]) -> PeriodicWindows[Any]:
    """The assigner of windows that a checkpoint with this definition stores as namespaces.

    Raises:
        IncompatibleState: it is not one of Holdfast's.
    """
    made = _PERIODIC.get(stored["assigner"])
    if made is None:
        raise IncompatibleState(f"its windows are of {_shown(stored)}, which this release does not know")
    windows: PeriodicWindows[Any] = made(*stored["arguments"])
    return windows
