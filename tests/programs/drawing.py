"""Draws programs: their text, and beside each line what it gives by `models`.

An operation is a function of a `Drawing` and the name of a stream. It adds one or a few streams, each with a line of the
program, or returns False where it would have no defined result (its reason stands there). What is drawn is small: few keys,
times on a coarse grid, with ties and late elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from hypothesis import strategies as st

from . import functions, models
from .models import Element, Stream

GRID = 10
KEYS = "abc"


@dataclass(frozen=True)
class Program:
    """The text of a program, and what it tells of each stream."""

    text: str
    sources: dict[str, dict[str, list[Any]]]
    told: dict[str, Stream]
    stages: int = 0
    """The most operations of event time that follow each other."""
    punctual: bool = True
    """Whether no element of a source is behind the watermark of its split."""
    batch: bool = False
    """Whether it runs in BATCH mode."""
    offered: frozenset[str] = frozenset()
    """All choices that there were while it was drawn."""


@dataclass
class Drawing:
    """A program that grows."""

    draw: Callable[[Any], Any]
    in_place: bool
    """Whether elements are lists, which functions change in place."""
    batch: bool = False
    """Whether it will run in BATCH mode: nothing is late, and keyed operators get their input in the order of time."""
    lines: list[str] = field(default_factory=list)
    sources: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    stages: dict[str, int] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    offered: set[str] = field(default_factory=set)
    """The choices that there were."""

    def one_of(self, *choices: Any) -> Any:
        self.offered.update(str(each[0] if isinstance(each, tuple) else each) for each in choices)
        return self.draw(st.sampled_from(choices))

    def changing(self) -> str:
        """The last argument of a function: whether it changes what it is given."""
        return str(self.in_place and self.draw(st.booleans()))

    def add(self, text: str, stream: Stream, *inputs: str, stage: int = 0) -> str:
        """A line of the program, with the stream that it makes."""
        name = self.next_name()
        self.lines.append(f'{name} = {text}.uid("{name}")')
        self.streams[name] = stream
        self.stages[name] = stage + max((self.stages[each] for each in inputs), default=0)
        self.read.update(inputs)
        return name

    def next_name(self) -> str:
        return f"s{len(self.stages) + 1}"

    def beside(self, text: str, stream: Stream, of: str) -> str:
        """A side output of a stream."""
        name = self.next_name()
        self.lines.append(f"{name} = {of}.{text}")
        self.streams[name] = stream
        self.stages[name] = self.stages[of]
        return name

    @property
    def punctual(self) -> bool:
        return all(stream.punctual for stream in self.streams.values())

    def finished(self) -> Program:
        told = {name: stream for name, stream in self.streams.items() if name not in self.read}
        first, *others = [f'{name}.process(Told("{name}")).uid("told {name}")' for name in told]
        united = f"{first}.union({', '.join(others)})" if others else first
        lines = [*self.lines, f'{united}.sink_to(LedgerSink("out")).uid("sink")']
        stages = max(self.stages.values())
        offered = frozenset(self.offered)
        return Program("\n".join(lines), self.sources, told, stages, self.punctual, self.batch, offered)


# ---- sources ----------------------------------------------------------------------------------------------------------


records = st.lists(
    st.tuples(
        st.integers(0, 2),  # the key
        st.sampled_from([0, 1, 2, 5]),  # how far time goes on
        st.sampled_from([0, 0, 0, 1, 2, 4, 7]),  # how far the record is behind
        st.integers(1, 9),  # its number
    ),
    min_size=1,
    max_size=30,
)


def source(d: Drawing) -> str:
    """A source of one to three splits, each key in one of them; watermarks in the source or behind it."""
    name = d.next_name()
    count = d.one_of(1, 2, 3)
    splits: dict[str, list[Any]] = {f"{name}-{n}": [] for n in range(count)}
    times = [0] * count
    for key, step, lag, number in d.draw(records):
        split = key % count
        times[split] += step * GRID
        record = (KEYS[key], max(times[split] - lag * GRID, 0), number)
        splits[f"{name}-{split}"].append(list(record) if d.in_place else record)
    d.sources[name] = splits
    how, delay = d.one_of(
        ("for_monotonous_timestamps()", 0),
        ("for_bounded_out_of_orderness(Duration.of_millis(20))", 20),
        ("for_generator(Punctuated)", None),
    )
    if d.one_of(False, False, True):
        return behind(d, name, splits, how, delay)
    strategy = f"WatermarkStrategy.{how}.with_timestamp_assigner(time_of)"
    text = f'env.from_source(SplitSource({name.upper()}, cut, seed), {strategy}, "{name}")'
    return d.add(text, arrived(d, splits, delay))


def arrived(d: Drawing, splits: dict[str, list[Any]], delay: int | None) -> Stream:
    """What a source gives. In BATCH mode no functions are drawn that depend on the order, which is that of time there."""
    elements = models.timed(splits, delay)
    if d.batch:
        return Stream(tuple(replace(each, passed=models.NEVER) for each in elements), ordered=False)
    return Stream(elements)


def behind(d: Drawing, name: str, splits: dict[str, list[Any]], how: str, delay: int | None) -> str:
    """Watermarks behind a map. Between splits there is no order there: with several, no element may be late."""
    if len(splits) > 1:
        how, delay = "for_bounded_out_of_orderness(Duration.of_millis(1000))", 1000
    strategy = f"WatermarkStrategy.{how}.with_timestamp_assigner(time_of)"
    source = f"SplitSource({name.upper()}, cut, seed), WatermarkStrategy.no_watermarks()"
    text = f'env.from_source({source}, "{name}").uid("source {name}")'
    text += f".map(Plus(1, {d.changing()})).assign_timestamps_and_watermarks({strategy})"
    raised = {split: [(key, time, number + 1) for key, time, number in values] for split, values in splits.items()}
    return d.add(text, arrived(d, raised, delay))


# ---- element by element -----------------------------------------------------------------------------------------------


def plus(d: Drawing, of: str) -> Any:
    return d.add(f"{of}.map(Plus(3, {d.changing()}))", models.each(d.streams[of], lambda v: [(v[0], v[1], v[2] + 3)]), of)


def twice(d: Drawing, of: str) -> Any:
    stream = models.each(d.streams[of], lambda v: [v, (v[0], v[1], v[2] + 50)])
    return d.add(f"{of}.flat_map(Twice({d.changing()}))", stream, of)


def no_multiple(d: Drawing, of: str) -> Any:
    n = d.one_of(3, 2)
    stream = models.each(d.streams[of], lambda v: [v] if v[2] % n else [])
    return d.add(f"{of}.filter(NoMultiple({n}))", stream, of)


def project(d: Drawing, of: str) -> Any:
    if d.in_place:  # it takes tuples and Rows
        return False
    return d.add(f"{of}.project(0, 1, 2)", replace(d.streams[of], placed=False), of)


def split(d: Drawing, of: str) -> Any:
    main = d.add(f"{of}.process(Split({d.changing()}))", models.each(d.streams[of], lambda v: [(v[0], v[1], v[2] + 1)]), of)
    return d.beside("get_side_output(ODD)", models.each(d.streams[of], lambda v: [v] if v[2] % 2 else []), main)


def spread(d: Drawing, of: str) -> Any:
    how = d.one_of(
        "rebalance()", "shuffle()", "rescale()", "forward()", "partition_custom(partition_of, key_of)", "broadcast()"
    )
    function = "process(InFirstSubtask())" if how == "broadcast()" else "map(Plus(1))"
    stream = d.streams[of]
    if how != "broadcast()":
        stream = models.each(stream, lambda v: [(v[0], v[1], v[2] + 1)])
    if how == "forward()" or how.startswith("partition_custom"):
        stream = replace(stream, placed=False)
    else:
        stream = models.spread(stream)
    if d.in_place:
        function = function.replace("Plus(1)", "Plus(1, True)")
    return d.add(f"{of}.{how}.{function}", stream, of)


def union(d: Drawing, of: str) -> Any:
    other = d.one_of(*d.streams)
    if other == of:
        return False
    stream = models.united(d.streams[of], d.streams[other])
    function = "map(Plus(1, True))" if d.in_place else "map(Plus(1))"
    return d.add(f"{of}.union({other}).{function}", models.each(stream, lambda v: [(v[0], v[1], v[2] + 1)]), of, other)


# ---- by key -----------------------------------------------------------------------------------------------------------


def keyed(d: Drawing, of: str) -> tuple[str, Callable[[Any], Any]]:
    """The stream by key, and the key: the element's own one, where possible without a shuffle, or another."""
    stream = d.streams[of]
    if stream.placed and d.one_of(False, True):
        return f"DataStreamUtils.reinterpret_as_keyed_stream({of}, key_of)", functions.key_of
    if d.one_of(False, False, True):
        return f"{of}.key_by(remainder_of)", functions.remainder_of
    return f"{of}.key_by(key_of)", functions.key_of


def rolling(d: Drawing, of: str) -> Any:
    stream = d.streams[of]
    if not stream.ordered:  # each result depends on the order
        return False
    in_place = d.changing()
    combine: Any
    how, combine = d.one_of(
        ("reduce(Add({}))", functions.Add().reduce),
        ("reduce(Follow({}))", functions.Follow().reduce),
        ("sum(2)", lambda a, b: (*a[:2], a[2] + b[2])),
        ("min(2)", lambda a, b: (*a[:2], min(a[2], b[2]))),
        ("max(2)", lambda a, b: (*a[:2], max(a[2], b[2]))),
        ("min_by(2)", lambda a, b: b if b[2] < a[2] else a),
        ("max_by(2)", lambda a, b: b if b[2] > a[2] else a),
    )
    return d.add(f"{of}.key_by(key_of).{how.format(in_place)}", models.rolled(stream, combine), of)


def numbered(d: Drawing, of: str) -> Any:
    stream = d.streams[of]
    if not stream.ordered:  # each result depends on the order
        return False
    kind, typed, ttl = (
        d.one_of("value", "list", "map", "reducing", "aggregating"),
        d.one_of(True, False),
        d.one_of(False, True),
    )
    text = f"Numbered({kind!r}, {typed}, {ttl})"
    model = models.processed(stream, functions.key_of, functions.Numbered(kind, typed, ttl))
    return d.add(f"{of}.key_by(key_of).process({text})", model, of)


def timers(d: Drawing, of: str) -> Any:
    stream = d.streams[of]
    size, again, kind = d.one_of(10, 20, 30), d.one_of(0, 1, 2), d.one_of("none", "list", "reducing")
    behind = max((each.passed - each.timestamp for each in stream.elements), default=0)
    delay = d.one_of(0, 7, 10) + max(behind, 0) + 1  # a timer in the past rings at a time that is not defined
    by, key = keyed(d, of)
    model = models.processed(stream, key, functions.Timers(size, delay, again, kind), timers=True)
    if kind != "none" or again:
        model = replace(model, ordered=model.ordered and kind == "none")
    return d.add(f"{by}.process(Timers({size}, {delay}, {again}, {kind!r}, {d.changing()}))", model, of, stage=1)


# ---- windows ----------------------------------------------------------------------------------------------------------


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


def aligned(d: Drawing, stream: Stream, key: Any, lateness: int, own: bool = True) -> Windows:
    """Tumbling, sliding and cumulative windows, and the user's own."""
    offset = d.one_of(0, 0, 3)
    size, step = d.one_of((20, 10), (30, 10), (20, 5), (30, 20))
    kind, text, assigner = d.one_of(
        *([("own", f"EvenAndOdd({size})", models.even_and_odd(size))] if own and not lateness else []),
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
    gap = d.one_of(15, 25) if not stream.ordered or stream.elements_of_windows else d.one_of(10, 15, 20)
    text, gap_of = d.one_of(
        (f"EventTimeSessionWindows.with_gap({ms(gap)})", lambda value: gap),
        ("EventTimeSessionWindows.with_dynamic_gap(gap_of)", functions.gap_of),
        (f"OwnSessions({gap})", lambda value: gap),
    )
    windows, late, again = models.sessions(stream, key, gap_of, lateness)
    return Windows(text, windows, late, again, "session")


def window(d: Drawing, of: str) -> Any:
    stream = d.streams[of]
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
    if drawn.kind in ("tumbling", "sliding") and d.one_of(False, False, False, True):
        text += f".trigger(ContinuousEventTimeTrigger.of({ms(10)}))"
        drawn.again = True  # it fires before the end, when time has come so far
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
    if asks:
        text += ".side_output_late_data(LATE)"
    whole_order = ordered and drawn.kind == "tumbling" and not drawn.again
    once = not triggered and not lateness and not drawn.again and drawn.kind != "own"
    result, keeps_key = content(d, whole_order, once, evicted, drawn, key)
    elements = []
    fired: dict[Any, int] = {}
    for its_key, each in drawn.windows:
        for held, time in models.firings(each, fires, ends, purges, before, after):
            fired[its_key] = fired.get(its_key, 0) + 1
            elements.append(Element(result.value(its_key, each, held, fired[its_key]), time))
    in_order = (not triggered or (not ends and drawn.kind == "tumbling")) and drawn.kind != "own"
    model = Stream(tuple(elements), ordered=ordered and in_order and keeps_key, placed=keeps_key, elements_of_windows=True)
    if drawn.again:
        name = d.add(text + result.text, model, of, stage=1)
        model = models.last_results(model)
        d.add(f"{name}.key_by(key_and_time_of).process(Last())", model, name, stage=1)
        del d.streams[name]  # how many results there are before the last is not defined
    else:
        name = d.add(text + result.text, model, of, stage=1)
    if asks:
        d.beside("get_side_output(LATE)", Stream(tuple(drawn.late), ordered=stream.ordered), name)
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


def content(d: Drawing, ordered: bool, once: bool, evicted: bool, drawn: Windows, key: Any) -> tuple[Content, bool]:
    """What is done with the elements of a window: the text, and the result; whether results have the key."""
    in_place = d.changing()
    if drawn.again:
        ordered = False
    combine: Any = functions.Follow() if ordered else functions.Add()
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
        (Content(f".process({cleared}({ordered}, {counted}, {in_place}))", whole), True),
        (Content(f".apply(Applied({ordered}, {in_place}))", whole), True) if not counted else None,
        (Content(f".reduce({name}, Placed())", placed(reduced)), True),
        (Content(f".aggregate({total}({in_place}), Placed())", placed(summed)), True),
        (Content(f".reduce({name})", reduced), True) if key is functions.key_of and not drawn.again else None,
        (Content(f".aggregate({total}({in_place}))", summed), False) if not drawn.again else None,
    ]
    return d.one_of(*[choice for choice in choices if choice is not None])


def counted_windows(d: Drawing, of: str) -> Any:
    """Windows of a number of elements, and global ones. The results of late elements would be late or not."""
    stream = d.streams[of]
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
        for held, time in models.firings(each, fires, False, purges, before, after)
    ]
    ordered = keeps_key and (kind == "global" or slide >= size)
    model = Stream(tuple(elements), ordered=ordered, placed=keeps_key, elements_of_windows=True)
    return d.add(f"{of}.key_by(key_of){text}{result.text}", model, of, stage=1)


def windows_of_all(d: Drawing, of: str) -> Any:
    """Windows of all elements, which have no order among them."""
    stream = d.streams[of]
    drawn = aligned(d, stream, lambda value: "all", 0)
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
    return d.add(f"{of}.window_all({drawn.text}).{function}", Stream(elements, ordered=False), of, stage=1)


def each_is_full(drawn: Windows) -> bool:
    return all(each.elements for _, each in drawn.windows)


OPERATIONS = [
    plus, twice, no_multiple, project, split, spread, union,
    rolling, numbered, timers, timers,
    window, window, window, counted_windows, windows_of_all,
]  # fmt: skip
