"""Draws windows: assigners, triggers, evictors, lateness and functions; see `drawing`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from . import functions, models
from .drawing import Drawing, keyed
from .models import Element, Stream
from .window_functions import AFTER_ALL


@dataclass
class Windows:
    """The windows that are drawn: what the text says, and which they are."""

    text: str
    windows: list[tuple[Any, models.Window]]
    late: list[Element]
    again: bool = False
    """Whether an element came to a window that may have fired."""
    kind: str = ""


def ms(time: int) -> str:
    return f"Time.milliseconds({time})"


def aligned(
    d: Drawing,
    stream: Stream,
    key: Any,
    lateness: int,
    bare: Callable[[Any], Any] = lambda value: value,
    staggers: bool = True,
) -> Windows:
    """Tumbling, sliding and cumulative windows, and the user's own, which are given what is ``bare``.

    Those that are staggered need the key itself.
    """
    offset = d.one_of(0, 0, 3)
    size, step = d.one_of((20, 10), (30, 10), (20, 5), (30, 20))
    random = f"TumblingEventTimeWindows.of({ms(size)}, {ms(offset)}, WindowStagger.RANDOM)"
    kind, text, assigner = d.one_of(
        *([("own", f"EvenAndOdd({size})", models.even_and_odd(size, bare))] if not lateness else []),
        *([("own", random, models.staggered(size, offset, key))] if staggers and not lateness else []),
        ("tumbling", f"TumblingEventTimeWindows.of({ms(size)}, {ms(offset)})", models.tumbling(size, offset)),
        ("sliding", f"SlidingEventTimeWindows.of({ms(size)}, {ms(step)}, {ms(offset)})", models.sliding(size, step, offset)),
        (
            "cumulative",
            f"CumulativeEventTimeWindows.of({ms(40)}, {ms(10)}, {ms(offset)})",
            models.cumulative(40, 10, offset),
        ),
    )
    windows, late, again = models.timed_windows(stream, key, assigner, lateness)
    return Windows(text, windows, late, again, kind)


def session(d: Drawing, stream: Stream, key: Any, lateness: int) -> Windows | None:
    """Sessions. Between elements of several splits, and results of windows, those that touch may merge or not."""
    if not stream.ordered and not stream.punctual:
        return None
    # A result of a window comes just before the watermark of its time: a session that it only touches is over.
    known = stream.ordered and all(each.passed == each.timestamp - 1 for each in stream.elements)
    known = known or (stream.ordered and not stream.elements_of_windows)
    gap = d.one_of(10, 15, 20) if known else d.one_of(15, 25)
    text, gap_of = d.one_of(
        (f"EventTimeSessionWindows.with_gap({ms(gap)})", lambda value: gap),
        ("EventTimeSessionWindows.with_dynamic_gap(gap_of)", functions.gap_of),
        (f"OwnSessions({gap})", lambda value: gap),
        # Behind other ones, the second session of one element would be the first one of another.
        *([(f"TwoSessions({gap})", lambda value: gap)] if all(e.timestamp < AFTER_ALL for e in stream.elements) else []),
    )
    if not known and models.touch(stream, key, gap_of):  # windows that are staggered leave the grid
        return None
    windows, late, again = models.sessions(stream, key, gap_of, lateness)
    if text.startswith("TwoSessions"):
        second = replace(stream, elements=tuple(replace(e, timestamp=e.timestamp + AFTER_ALL) for e in stream.elements))
        windows, late = [*windows, *models.sessions(second, key, gap_of, lateness)[0]], []
    return Windows(text, windows, late, again, "session")


def window(d: Drawing, of: str) -> Any:
    stream = d.input_of(of)
    by, key = keyed(d, of)
    ordered = stream.ordered and key is functions.key_of
    lateness = d.one_of(0, 0, 0, 10, 50)
    here = replace(stream, ordered=ordered)
    drawn = d.one_of(aligned, aligned, session)(d, here, key, lateness)
    if drawn is None:
        return False
    if drawn.again and drawn.kind not in ("tumbling", "sliding"):
        return False  # between windows of one start, and sessions that grow, no result is known as the last one
    text = f"{by}.window({drawn.text})"
    fires, ends, purges = models.at_end, True, False
    triggered = evicted = False
    before = after = models.keep_all
    if drawn.kind in ("tumbling", "sliding"):
        early = d.one_of("", "", "", f".trigger(ContinuousEventTimeTrigger.of({ms(10)}))")
        text += early
        drawn.again = drawn.again or early != ""  # it fires before the end, when time has come so far
    if not drawn.again:
        if d.one_of(False, False, True):
            trigger, fires, ends, purges = trigger_of(d, ordered and drawn.kind != "session", drawn.kind)
            triggered = True
            text += f".trigger({trigger})"
        if d.one_of(False, False, True):
            evictor, before, after = evictor_of(d, ordered and drawn.kind == "tumbling")
            evicted = True
            text += f".evictor({evictor})"
    if lateness:
        text += f".allowed_lateness({lateness})"
    asks = d.one_of(False, True)
    if asks or d.one_of(False, True):  # with it, a restart may change the windows (`changes`)
        text += ".side_output_late_data(LATE)"
    whole_order: bool | str = ordered and drawn.kind == "tumbling"
    if (
        ordered
        and drawn.kind in ("sliding", "cumulative")
        and all(each.timestamp == each.value[1] for each in stream.elements)
    ):
        whole_order = "by time"  # they are put together by panes
    once = not triggered and not lateness and not drawn.again and drawn.kind != "own"
    result, keeps_key = content(d, whole_order, once, evicted, drawn, key)
    results: list[tuple[int, Element]] = []
    places = {id(element): place for place, element in enumerate(stream.elements)}
    in_order = (not triggered or (not ends and drawn.kind == "tumbling")) and drawn.kind != "own"
    fired: dict[Any, int] = {}
    for its_key, each in drawn.windows:
        for held, time, by in models.firings(each, fires, ends, purges, before, after):
            fired[its_key] = fired.get(its_key, 0) + 1
            passed = models.NEVER if triggered or d.batch else time - 1
            told = Element(result.value(its_key, each, held, fired[its_key]), time, passed)
            results.append((places.get(id(by), 0), told))
    if triggered and not ends:  # windows fire by the order of their elements
        results.sort(key=lambda result: result[0])
    elements = tuple(element for _, element in results)
    model = Stream(elements, ordered=ordered and in_order and keeps_key, placed=keeps_key, elements_of_windows=True)
    if drawn.again:
        name = d.add(text + result.text, model, of, stage=1)
        model = models.last_results(model)
        d.add(f"{name}.key_by(key_and_time_of).process(Last())", model, name, stage=1)
        del d.streams[name]  # how many results there are before the last is not defined
    else:
        name = d.add(text + result.text, model, of, stage=1)
    if asks:
        d.beside("get_side_output(LATE)", Stream(tuple(drawn.late), ordered=ordered), name)
    return name


def trigger_of(d: Drawing, ordered: bool, kind: str) -> tuple[str, models.Fires, bool, bool]:
    """A trigger: its text, when it fires, whether it fires at the end, and whether it purges."""
    n = d.one_of(2, 3)
    choices: list[Any] = [
        ("EventTimeTrigger.create()", models.at_end, True, False),
        ("PurgingTrigger.of(EventTimeTrigger.create())", models.at_end, True, True),
    ]
    if kind != "session":
        choices.append(("NeverTrigger()", models.at_end, False, False))
    if ordered:
        choices += [
            (f"CountTrigger.of({n})", models.every(n), False, False),
            (f"PurgingTrigger.of(CountTrigger.of({n}))", models.every(n), False, True),
            (f"DeltaTrigger.of({n}, difference)", models.delta(n, functions.difference), False, False),
            (f"PurgingTrigger.of(DeltaTrigger.of({n}, difference))", models.delta(n, functions.difference), False, True),
            (f"EarlyAndAtEnd({n})", models.every(n), True, False),
            (f"PurgingTrigger.of(EarlyAndAtEnd({n}))", models.every(n), True, True),
        ]
    return d.one_of(*choices)


def evictor_of(d: Drawing, ordered: bool) -> tuple[str, models.Evict, models.Evict]:
    """An evictor: its text, and what is left before and after the function."""
    choices: list[Any] = [("TimeEvictor.of(Time.milliseconds(10)", models.latest(10))]
    if ordered:
        choices += [
            ("CountEvictor.of(2", models.last_elements(2)),
            ("DeltaEvictor.of(4, difference", models.near_last(4, functions.difference)),
        ]
        if d.one_of(False, False, True):
            return "NoMultipleLeft(2)", models.no_multiple(2), models.keep_all
    text, evict = d.one_of(*choices)
    if d.one_of(False, True):
        return f"{text}, True)", models.keep_all, evict
    return f"{text})", evict, models.keep_all


@dataclass
class Content:
    text: str
    value: Callable[[Any, models.Window, list[Element], int], Any]


def content(d: Drawing, ordered: bool | str, once: bool, evicted: bool, drawn: Windows, key: Any) -> tuple[Content, bool]:
    """What is done with the elements of a window: the text, and the result; whether results have the key."""
    in_place = d.changing()
    if drawn.again:
        ordered = False
    combine: Any = functions.Follow() if ordered is True else functions.Add()
    name = f"{type(combine).__name__}({in_place})"
    # Windows that merge have no state of their own, in Flink either.
    counted = d.one_of(0, 1, 1 if drawn.kind == "session" else 2) if once else 0

    def whole(its_key: Any, window: models.Window, held: list[Element], fired: int) -> Any:
        result = models.whole(held, ordered)
        return its_key, window.start, result * 100 + fired * 10 + counted - 1 if counted else result

    def reduced(its_key: Any, window: models.Window, held: list[Element], fired: int) -> Any:
        return reduce(combine.reduce, [each.value for each in held])

    def summed(its_key: Any, window: models.Window, held: list[Element], fired: int) -> Any:
        total = sum(each.value[2] for each in held)
        return "sum", max([0, *(each.value[1] for each in held)]), total * 10 + len(held)

    def placed(result: Any) -> Any:
        return lambda its_key, window, held, fired: (its_key, window.start, result(its_key, window, held, fired)[2])

    total = d.one_of("Sum", "MergingSum") if drawn.kind != "session" else "MergingSum"
    cleared = "Whole" if drawn.kind == "session" else d.one_of("Whole", "Cleared")
    choices = [
        (Content(f".process({cleared}({ordered!r}, {counted}, {in_place}))", whole), True),
        (Content(f".apply(Applied({ordered!r}, {in_place}))", whole), True) if not counted else None,
        (Content(f".reduce({name}, Placed())", placed(reduced)), True),
        (Content(f".aggregate({total}({in_place}), Placed())", placed(summed)), True),
        (Content(f".reduce({name})", reduced), True) if key is functions.key_of and not drawn.again else None,
        (Content(f".aggregate({total}({in_place}))", summed), False) if not drawn.again else None,
    ]
    if ordered:  # most functions do not tell the order
        choices += choices[:2]
    return d.one_of(*[choice for choice in choices if choice is not None])


def counted_windows(d: Drawing, of: str) -> Any:
    """Windows of a number of elements, and global ones. The results of late elements would be late or not."""
    stream = d.input_of(of)
    if not stream.ordered or not stream.punctual:
        return False
    size, slide = d.one_of((2, 2), (3, 3), (3, 1), (2, 3))
    kind = d.one_of("count", "global")
    fires: models.Fires = models.every(size)
    before = after = models.keep_all
    purges = False
    if kind == "count":
        text = f".count_window({size})" if size == slide else f".count_window({size}, {slide})"
        windows = models.counted(stream, functions.key_of, size, slide)
    else:
        windows = models.global_windows(stream, functions.key_of)
        while (drawn := trigger_of(d, True, "global"))[0].count("EventTime") or "EarlyAndAtEnd" in drawn[0]:
            pass  # the end of all time is no result's timestamp
        trigger, fires, _, purges = drawn
        text = f".window(GlobalWindows.create()).trigger({trigger})"
        if d.one_of(False, True):
            evictor, before, after = evictor_of(d, True)
            text += f".evictor({evictor})"
    result, keeps_key = content(d, True, False, False, Windows("", [], [], kind=kind), functions.key_of)
    elements = [
        Element(result.value(key, each, held, 1), time)
        for key, each in windows
        for held, time, _ in models.firings(each, fires, False, purges, before, after)
    ]
    ordered = keeps_key and (kind == "global" or slide >= size)
    model = Stream(tuple(elements), ordered=ordered, placed=keeps_key, elements_of_windows=True)
    return d.add(f"{of}.key_by(key_of){text}{result.text}", model, of, stage=1)


def windows_of_all(d: Drawing, of: str) -> Any:
    """Windows of all elements, which have no order among them."""
    stream = d.streams[of]
    drawn = aligned(d, stream, lambda value: "all", 0, staggers=False)
    in_place = d.changing()
    function, value = d.one_of(
        (f"process(WholeOfAll(False, {in_place}))", lambda each: ("all", each.start, models.whole(each.elements, False))),
        (f"apply(AppliedToAll(False, {in_place}))", lambda each: ("all", each.start, models.whole(each.elements, False))),
        (
            f"aggregate(Sum({in_place}))",
            lambda each: (
                "sum",
                max([0, *(e.value[1] for e in each.elements)]),
                sum(e.value[2] for e in each.elements) * 10 + len(each.elements),
            ),
        ),
    )
    assert each_is_full(drawn)
    elements = tuple(Element(value(each), (each.end or 0) - 1) for _, each in drawn.windows)
    d.alone.add(d.next_name())
    return d.add(f"{of}.window_all({drawn.text}).{function}", Stream(elements, ordered=False), of, stage=1)


def contents(d: Drawing, of: str) -> Any:
    """What windows contain, in one of each: also those that a changed program begins with another size."""
    stream = d.streams[of]
    if not stream.punctual:  # what is late depends on the size
        return False
    by, key = keyed(d, of)
    size = d.one_of(10, 20, 30)
    text, times = d.one_of(
        (f"TumblingEventTimeWindows.of({ms(size)})", 1),
        (f"TumblingEventTimeWindows.of({ms(size)}, None, WindowStagger.NATURAL)", 1),
        (f"SlidingEventTimeWindows.of({ms(2 * size)}, {ms(size)})", 2),
    )
    evictor = d.one_of("", "", ".evictor(CountEvictor.of(10**6))")
    how = d.one_of(f"apply(Contents({d.changing()}))", f"process(ContentsOfKey({d.changing()}))")
    call = f"{by}.window({text}){evictor}.{how}.key_by(key_of).process(Gathered())"
    return d.add(call, models.gathered(stream, key, times), of, stage=1)


def each_is_full(drawn: Windows) -> bool:
    return all(each.elements for _, each in drawn.windows)


OPERATIONS = [window, window, window, contents, counted_windows, windows_of_all]
