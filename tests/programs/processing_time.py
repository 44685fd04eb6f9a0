"""Draws operations of processing time; see `drawing`. Only what is independent of the clock is judged.

That is which elements have come through: a timer or a window gives each once, sooner or later, and the rest at the end of
all time. How often it does, and for which elements at once, depends on the cut.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cep.model import Model
from cep.patterns import parse

from . import functions, models
from . import more_functions as more
from .drawing import Drawing, keyed
from .models import Element, Stream, grouped
from .window_drawing import ms


def waits(d: Drawing, of: str) -> Any:
    by, key = keyed(d, of)
    text = f"{by}.process(Waits({d.one_of(0, 1, 5, 100, 10**7)}, {d.changing()}))"
    return d.add(text, models.gathered(d.streams[of], key), of, stage=1)


def windows(d: Drawing, of: str) -> Any:
    """Windows that also end at the end of all time."""
    by, key = keyed(d, of)
    size = d.one_of(2, 10, 100, 10**7)
    times: int | None
    text, times = d.one_of(
        (f"TumblingProcessingTimeWindows.of({ms(size)})", 1),
        (f"TumblingProcessingTimeWindows.of({ms(size)}, None, WindowStagger.NATURAL)", 1),
        (f"TumblingProcessingTimeWindows.of({ms(size)}, None, WindowStagger.RANDOM)", 1),
        (f"SlidingProcessingTimeWindows.of({ms(2 * size)}, {ms(size)})", 2),
        (f"CumulativeProcessingTimeWindows.of({ms(3 * size)}, {ms(size)})", None),
        (f"ProcessingTimeSessionWindows.with_gap({ms(size)})", 1),
        ("ProcessingTimeSessionWindows.with_dynamic_gap(gap_of)", 1),
        *([] if d.batch else [("GlobalWindows.create()", 1)]),
    )
    inner = "ProcessingTimeTrigger.create()"
    if text.startswith("Global"):
        inner = f"ContinuousProcessingTimeTrigger.of({ms(size)})"
    trigger = f"AtEndToo(PurgingTrigger.of({inner}))"
    evictor = d.one_of("", "", ".evictor(CountEvictor.of(10**6))")
    contents = d.one_of(f"apply(Contents({d.changing()}))", f"process(ContentsOfKey({d.changing()}))")
    told = f"{by}.window({text}).trigger({trigger}){evictor}.{contents}"
    model = models.gathered(d.streams[of], key, times)
    return d.add(f"{told}.key_by(key_of).process(Gathered({times is None}))", model, of, stage=1)


def windows_in_time(d: Drawing, of: str) -> Any:
    """Windows with their own trigger. In BATCH mode all of them fire; at the end of a stream those that are open do not."""
    by, key = keyed(d, of)
    size = d.one_of(2, 10, 100)
    text, times = d.one_of(
        (f"TumblingProcessingTimeWindows.of({ms(size)})", 1),
        (f"SlidingProcessingTimeWindows.of({ms(2 * size)}, {ms(size)})", 2),
        (f"ProcessingTimeSessionWindows.with_gap({ms(size)})", 1),
    )
    groups = grouped(d.streams[of].elements, lambda element: key(element.value))
    totals = {each: times * sum(element.value[2] for element in mine) for each, mine in groups.items()}
    most = None if d.batch else totals
    text = f"{by}.window({text}).reduce(Add({d.changing()}), Placed()).key_by(key_of).process(Totals({most}))"
    elements = tuple(Element((each, -1, total), functions.END) for each, total in totals.items() if d.batch)
    return d.add(text, Stream(elements, placed=True, elements_of_windows=True), of, stage=1)


def pattern_of_arrivals(d: Drawing, of: str) -> Any:
    """A pattern over the elements as they come."""
    stream = d.input_of(of)
    if not stream.ordered:
        return False
    text = d.one_of("a ~b", "a >b", "a ~~b", "a ~b{2} ~c", "a !~c ~b", "a !>b ~c", "a+ ~b", "a ~b? ~c")
    elements: list[Element] = []
    for key, mine in stream.by_key.items():
        if len(mine) > 11:
            return False  # the model tries all choices of events
        lettered = [more.lettered(each.value) for each in mine]
        found = Model(parse(text), [(event[0], number) for number, event in enumerate(lettered)], 10**12)
        for come, named in found.matches.values():
            told = [(key, lettered[number][2] + len(name), lettered[number][3]) for name, number in named]
            # A match is late if its last element is.
            elements.append(replace(mine[come - 1], value=(key, len(named), functions.digest(told, False))))
    call = f"CEP.pattern({of}.map(lettered).key_by(key_of_event), pattern({text!r}, {10**12}))"
    call += ".in_processing_time().process(Matched())"
    return d.add(call, Stream(tuple(elements), ordered=False, elements_of_windows=True), of, stage=1)


OPERATIONS = [waits, windows, windows_in_time, pattern_of_arrivals]
