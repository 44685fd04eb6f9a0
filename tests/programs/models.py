"""What each operation gives, in plain Python, by docs/*.md. There are no epochs, tasks or watermarks that move here.

A stream is its elements, of which each has the watermark of its own split just before it: only that decides what is late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from holdfast.common.windows import TimeWindow
from holdfast.state.keys.key_groups import key_group

from .functions import END, digest

NEVER = -(2**63)
"""The watermark before the first one, which no element is behind."""


@dataclass(frozen=True)
class Element:
    value: Any
    timestamp: int
    passed: int = NEVER
    """The watermark of its own split just before it."""


@dataclass(frozen=True)
class Stream:
    elements: tuple[Element, ...]
    ordered: bool = True
    """Whether the order of a key's elements is defined. It is that of `elements` then."""
    placed: bool = False
    """Whether the elements are in the subtasks of their keys."""
    elements_of_windows: bool = False
    """Whether elements come from windows or timers: their task's watermark decides what is over, somewhere before them."""

    @property
    def punctual(self) -> bool:
        """Whether no element is behind the watermark of its split."""
        return all(each.timestamp > each.passed for each in self.elements)

    @property
    def by_key(self) -> dict[Any, list[Element]]:
        return grouped(self.elements, lambda element: element.value[0])


def grouped(elements: Iterable[Element], key: Callable[[Any], Any]) -> dict[Any, list[Element]]:
    found: dict[Any, list[Element]] = defaultdict(list)
    for each in elements:
        found[key(each)].append(each)
    return found


# ---- sources and elements ---------------------------------------------------------------------------------------------


def timed(splits: dict[str, list[Any]], delay: int | None) -> tuple[Element, ...]:
    """The elements of a source behind a generator per split: watermarks `delay` behind the latest, None: punctuated."""
    elements = []
    for values in splits.values():
        passed = NEVER
        latest = 0
        for value in values:
            elements.append(Element(tuple(value), value[1], passed))
            latest = max(latest, value[1])
            if delay is not None:
                passed = latest - delay - 1
            elif value[2] % 2 == 0:
                passed = max(passed, latest - 1)
    return tuple(elements)


def each(stream: Stream, function: Callable[[Any], Iterable[Any]]) -> Stream:
    """An operation on single elements, whose results have the element's timestamp."""
    found = (replace(element, value=value) for element in stream.elements for value in function(element.value))
    return replace(stream, elements=tuple(found))


def united(*streams: Stream) -> Stream:
    """A union: between streams there is no order."""
    elements = tuple(each for stream in streams for each in stream.elements)
    return Stream(elements, False, False, any(stream.elements_of_windows for stream in streams))


def spread(stream: Stream) -> Stream:
    """Elements that go to any subtasks."""
    return replace(stream, ordered=False, placed=False)


# ---- state and timers -------------------------------------------------------------------------------------------------


class PlainState:
    """All kinds of state of one key, as a program sees them."""

    def __init__(self, kind: str, descriptor: Any) -> None:
        self.kind, self.descriptor = kind, descriptor
        self.clear()

    def clear(self) -> None:
        self.held: Any = {} if self.kind == "map" else [] if self.kind == "list" else None

    def value(self) -> Any:
        return self.held

    def update(self, value: Any) -> None:
        self.held = value

    def get(self, key: Any = None) -> Any:
        if self.kind == "map":
            return self.held.get(key)
        if self.kind == "aggregating":
            return None if self.held is None else self.descriptor.get_agg_function().get_result([*self.held])
        return self.held

    def add(self, value: Any) -> None:
        if self.kind == "list":
            self.held = [*self.held, value]
        elif self.kind == "aggregating":
            function = self.descriptor.get_agg_function()
            self.held = function.add(value, function.create_accumulator() if self.held is None else self.held)
        else:
            self.held = value if self.held is None else self.descriptor.get_reduce_function()(self.held, value)

    def put(self, key: Any, value: Any) -> None:
        self.held[key] = value

    def remove(self, key: Any) -> None:
        self.held.pop(key, None)

    def values(self) -> Any:
        return list(self.held.values())


class PlainKey:
    """One key: its states and its timers, and the context of its element or timer."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.states: dict[str, PlainState] = {}
        self.timers: set[int] = set()
        self.now = 0
        self.get_state = self._getter("value")
        self.get_list_state = self._getter("list")
        self.get_map_state = self._getter("map")
        self.get_reducing_state = self._getter("reducing")
        self.get_aggregating_state = self._getter("aggregating")
        self.register_event_time_timer = self.timers.add
        self.delete_event_time_timer = self.timers.discard

    def _getter(self, kind: str) -> Callable[[Any], PlainState]:
        return lambda descriptor: self.states.setdefault(descriptor.get_name(), PlainState(kind, descriptor))

    def timer_service(self) -> PlainKey:
        return self

    def timestamp(self) -> int:
        return self.now

    def get_current_key(self) -> Any:
        return self.key


def processed(stream: Stream, key_of: Callable[[Any], Any], function: Any, timers: bool = False) -> Stream:
    """A KeyedProcessFunction that is independent of when timers ring between elements: all elements, then all timers."""
    results: list[Element] = []
    for key, elements in grouped(stream.elements, lambda element: key_of(element.value)).items():
        here = PlainKey(key)
        function.open(here)
        for element in elements:
            here.now = element.timestamp
            results += [replace(element, value=value) for value in function.process_element(element.value, here)]
        while here.timers:
            here.now = min(here.timers)
            here.timers.remove(here.now)
            results += [Element(value, here.now) for value in function.on_timer(here.now, here)]
    return Stream(tuple(results), ordered=stream.ordered or timers, placed=True, elements_of_windows=timers)


def rolled(stream: Stream, combine: Callable[[Any, Any], Any]) -> Stream:
    """A rolling aggregation: for each element the key's result so far."""
    results = []
    for elements in stream.by_key.values():
        so_far: Any = None
        for element in elements:
            so_far = element.value if so_far is None else combine(so_far, element.value)
            results.append(replace(element, value=so_far))
    return Stream(tuple(results), placed=True)


def gathered(stream: Stream, key_of: Callable[[Any], Any], times: int | None = 1) -> Stream:
    """At the end of all time, what has come of each key, each element so many times; None: it is told once."""
    elements = []
    for key, mine in grouped(stream.elements, lambda element: key_of(element.value)).items():
        values = [(element.value[1], element.value[2]) for element in mine]
        values = sorted(set(values)) if times is None else values * times
        elements.append(Element((key, -1, digest([(key, *value) for value in values], False)), END))
    return Stream(tuple(elements), placed=True, elements_of_windows=True)


# ---- windows ----------------------------------------------------------------------------------------------------------


@dataclass
class Window:
    """One window of one key: its elements in the order of arrival."""

    start: int
    end: int | None
    """None: a window without an end, in which a result has the timestamp of the element that fires."""
    elements: list[Element]


Assigner = Callable[[Element], list[tuple[int, int]]]
Evict = Callable[[list[Element]], list[Element]]


def tumbling(size: int, offset: int = 0) -> Assigner:
    return sliding(size, size, offset)


def sliding(size: int, slide: int, offset: int = 0) -> Assigner:
    def windows(element: Element) -> list[tuple[int, int]]:
        last = element.timestamp - (element.timestamp - offset) % slide
        return [(start, start + size) for start in range(last, element.timestamp - size, -slide)]

    return windows


def cumulative(most: int, step: int, offset: int = 0) -> Assigner:
    def windows(element: Element) -> list[tuple[int, int]]:
        start = element.timestamp - (element.timestamp - offset) % most
        return [(start, end) for end in range(start + step, start + most + 1, step) if end > element.timestamp]

    return windows


def staggered(size: int, offset: int, key_of: Callable[[Any], Any]) -> Assigner:
    """Tumbling windows that lie for each key as its hash says."""
    return lambda element: tumbling(size, offset + key_group(key_of(element.value), size))(element)


def even_and_odd(size: int, bare: Callable[[Any], Any]) -> Assigner:
    return lambda element: tumbling(size * (1 + bare(element.value)[2] % 2))(element)


def timed_windows(
    stream: Stream, key_of: Callable[[Any], Any], assigner: Assigner, lateness: int
) -> tuple[list[tuple[Any, Window]], list[Element], bool]:
    """The windows with their keys, the late elements, and whether an element came to a window that may have fired."""
    windows: dict[Any, dict[tuple[int, int], Window]] = defaultdict(dict)
    late: list[Element] = []
    again = False
    for element in stream.elements:
        mine = [bounds for bounds in assigner(element) if bounds[1] - 1 + lateness > element.passed]
        if not mine:
            late.append(element)
        for bounds in mine:
            again = again or bounds[1] - 1 <= element.passed
            windows[key_of(element.value)].setdefault(bounds, Window(*bounds, [])).elements.append(element)
    return in_order(windows), late, again


def in_order(windows: dict[Any, dict[Any, Window]]) -> list[tuple[Any, Window]]:
    """By key, in the order of their ends."""
    return [
        (key, each) for key, some in windows.items() for each in sorted(some.values(), key=lambda window: window.end or 0)
    ]


def sessions(
    stream: Stream, key_of: Callable[[Any], Any], gap_of: Callable[[Any], int], lateness: int
) -> tuple[list[tuple[Any, Window]], list[Element], bool]:
    """Sessions: an element joins those that touch its own and are open by its own split's watermark."""
    found: dict[Any, dict[Any, Window]] = defaultdict(dict)
    late: list[Element] = []
    again = False
    for key, elements in grouped(stream.elements, lambda element: key_of(element.value)).items():
        held: list[Window] = []
        for element in elements:
            window = TimeWindow(element.timestamp, element.timestamp + gap_of(element.value))
            touched = [
                each
                for each in held
                if (each.end or 0) - 1 + lateness > element.passed
                and window.intersects(TimeWindow(each.start, each.end or 0))
            ]
            for each in touched:
                window = window.cover(TimeWindow(each.start, each.end or 0))
            if window.max_timestamp() + lateness <= element.passed:
                late.append(element)
                continue
            again = again or window.max_timestamp() <= element.passed
            again = again or any((each.end or 0) - 1 <= element.passed for each in touched)
            merged = Window(window.start, window.end, [*(one for each in touched for one in each.elements), element])
            held = [each for each in held if each not in touched] + [merged]
        found[key] = dict(enumerate(held))
    return in_order(found), late, again


def touch(stream: Stream, key_of: Callable[[Any], Any], gap_of: Callable[[Any], int]) -> bool:
    """Whether the session of an element begins just where that of another one of its key ends."""
    starts = {(key_of(each.value), each.timestamp) for each in stream.elements}
    return any((key_of(each.value), each.timestamp + gap_of(each.value)) in starts for each in stream.elements)


def counted(stream: Stream, key_of: Callable[[Any], Any], size: int, slide: int) -> list[tuple[Any, Window]]:
    """Windows of full `size`; one begins with each `slide`-th element."""
    windows = []
    for key, elements in grouped(stream.elements, lambda element: key_of(element.value)).items():
        for number, first in enumerate(range(0, len(elements) - size + 1, slide)):
            windows.append((key, Window(number, None, elements[first : first + size])))
    return windows


def global_windows(stream: Stream, key_of: Callable[[Any], Any]) -> list[tuple[Any, Window]]:
    groups = grouped(stream.elements, lambda element: key_of(element.value))
    return [(key, Window(0, None, elements)) for key, elements in groups.items()]


Fires = Callable[[], Callable[[Element], bool]]
"""Makes a trigger for one window, which tells of each element whether it fires."""


def at_end() -> Callable[[Element], bool]:
    return lambda element: False


def every(n: int) -> Fires:
    def make() -> Callable[[Element], bool]:
        numbers = count(1)
        return lambda element: next(numbers) % n == 0

    return make


def delta(threshold: int, difference: Callable[[Any, Any], int]) -> Fires:
    def make() -> Callable[[Element], bool]:
        last: list[Any] = []

        def fires(element: Element) -> bool:
            if last and difference(last[0], element.value) <= threshold:
                return False
            first = not last
            last[:] = [element.value]
            return not first

        return fires

    return make


def firings(window: Window, trigger: Fires, ends: bool, purges: bool, before: Evict, after: Evict) -> Iterator[Any]:
    """The contents of a window each time that it fires, the timestamp of the result, and the element that fires, or None."""
    fires = trigger()
    held: list[Element] = []
    for element in window.elements:
        held.append(element)
        if fires(element):
            held = before(held)
            yield list(held), element.timestamp if window.end is None else window.end - 1, element
            held = [] if purges else after(held)
    if ends and held and window.end is not None:
        yield before(held), window.end - 1, None


def keep_all(elements: list[Element]) -> list[Element]:
    return elements


def last_elements(n: int) -> Evict:
    return lambda elements: elements[max(len(elements) - n, 0) :]


def latest(span: int) -> Evict:
    return lambda elements: [e for e in elements if e.timestamp > max(x.timestamp for x in elements) - span]


def near_last(threshold: int, difference: Callable[[Any, Any], int]) -> Evict:
    return lambda elements: [e for e in elements if difference(e.value, elements[-1].value) < threshold]


def no_multiple(of: int) -> Evict:
    return lambda elements: [e for e in elements[:-1] if e.value[2] % of] + elements[-1:]


def whole(elements: Sequence[Element], ordered: bool | str) -> int:
    """What `Whole` and `Applied` tell of a window's elements."""
    return len(elements) * 10_000 + digest([each.value for each in elements], ordered)


def last_results(stream: Stream) -> Stream:
    """`Last`, behind a key of key and time."""
    groups = grouped(stream.elements, lambda element: (element.value[0], element.value[1]))
    best = [max(elements, key=lambda element: element.value[2]).value for elements in groups.values()]
    return Stream(tuple(Element(value, END) for value in best), ordered=False)


def late_stream(elements: Sequence[Element], ordered: bool) -> Stream:
    return Stream(tuple(elements), ordered=ordered)
