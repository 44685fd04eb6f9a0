"""Draws programs: their text, and beside each line what it gives by `models`.

An operation is a function of a `Drawing` and the name of a stream. It adds one or a few streams, each with a line of the
program, or returns False where it would have no defined result (its reason stands there). What is drawn is small: few keys,
times on a coarse grid, with ties and late elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from . import functions, models
from .models import Stream

GRID = 10
KEYS = "ade"
"""At each parallelism that is drawn, they are in different subtasks, so far as there are as many."""
SETTINGS = (
    *("", "", "", "", ".disable_chaining()", ".start_new_chain()"),
    *('.set_description("drawn")', ".set_buffer_timeout(5)", '.slot_sharing_group("drawn")'),
)
"""Settings of an operator that change no result."""


IDLENESS = ".with_idleness(Duration.of_hours(8))"
"""No split is silent for so long, however the wall clock is set."""


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
    alone: set[str] = field(default_factory=set)
    """The streams of one subtask, whatever the job's parallelism."""
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
        setting = self.one_of(*SETTINGS)
        self.lines.append(f'{name} = {text}{setting}.uid("{name}")')
        self.streams[name] = stream
        self.stages[name] = stage + max((self.stages[each] for each in inputs), default=0)
        self.read.update(inputs)
        return name

    def input_of(self, name: str) -> Stream:
        """A stream as a keyed operator gets it. In BATCH mode that is in the order of time; equal times as they come."""
        stream = self.streams[name]
        if not self.batch:
            return stream
        return replace(stream, elements=tuple(sorted(stream.elements, key=lambda element: element.timestamp)))

    def next_name(self) -> str:
        return f"s{len(self.stages) + 1}"

    def beside(self, text: str, stream: Stream, of: str) -> str:
        """A side output of a stream."""
        name = self.next_name()
        self.lines.append(f"{name} = {of}.{text}")
        self.streams[name] = stream
        self.stages[name] = self.stages[of]
        if of in self.alone:
            self.alone.add(name)
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


AS_LAST = -1
"""The time of the key's last record, so that late elements have ties, too."""

record = st.tuples(
    st.integers(0, 2),  # the key
    st.sampled_from([0, 1, 2, 5]),  # how far time goes on
    st.sampled_from([0, 0, 0, 1, 2, 4, 7, AS_LAST, AS_LAST]),  # how far the record is behind
    st.integers(1, 9),  # its number
    st.sampled_from([0, 0, 0, 1, 2]),  # how many more of its key and time follow it
)
records = st.one_of(
    st.lists(record, min_size=8, max_size=12),
    st.lists(record, min_size=1, max_size=9),
    st.lists(record, min_size=20, max_size=30),
)
"""Most faults need several elements of a key, over several epochs, and some a rare meeting of them. More elements cost less
than more programs: what takes time is to open subtasks. A program that is shown has as few as need be."""


def source(d: Drawing) -> str:
    """A source of one to three splits, each key in one of them; watermarks in the source or behind it."""
    name = d.next_name()
    count = d.one_of(1, 2, 3)
    splits: dict[str, list[Any]] = {f"{name}-{n}": [] for n in range(count)}
    times, last = [0] * count, [0] * len(KEYS)
    for key, step, lag, number, more in d.draw(records):
        split = key % count
        times[split] += step * GRID
        if lag != AS_LAST:
            last[key] = max(times[split] - lag * GRID, 0)
        for n in range(1 + more):
            record = (KEYS[key], last[key], 1 + (number - 1 + n) % 9)
            splits[f"{name}-{split}"].append(list(record) if d.in_place else record)
    if d.one_of(False, False, True):
        splits[f"{name}-empty"] = []
    d.sources[name] = splits
    how, delay = d.one_of(
        ("for_monotonous_timestamps()", 0),
        ("for_bounded_out_of_orderness(Duration.of_millis(20))", 20),
        ("for_generator(Punctuated)", None),
    )
    how += d.one_of("", "", IDLENESS)
    if d.one_of(*[False] * 7, True):
        return collection(d, name, splits)
    if d.one_of(False, False, True):
        return behind(d, name, splits, how, delay)
    strategy = f"WatermarkStrategy.{how}.with_timestamp_assigner(time_of)"
    text = f'env.from_source(SplitSource({name.upper()}, cut, seed), {strategy}, "{name}")'
    stream = arrived(d, splits, delay)
    if d.one_of(*[False] * 7, True):
        d.alone.add(name)
        return d.add(f"{text}.set_parallelism(1)", models.spread(stream))
    return d.add(text, stream)


def arrived(d: Drawing, splits: dict[str, list[Any]], delay: int | None) -> Stream:
    """What a source gives. In BATCH mode nothing is late."""
    elements = models.timed(splits, delay)
    return Stream(tuple(replace(each, passed=models.NEVER) for each in elements) if d.batch else elements)


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


def collection(d: Drawing, name: str, splits: dict[str, list[Any]]) -> str:
    """A collection in which elements that are equal are one object. Its elements are spread, and none may be late."""
    strategy = "WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(1000)).with_timestamp_assigner(time_of)"
    text = f"env.from_collection(shared({name.upper()})).map(Plus(1, {d.changing()}))"
    text += f".assign_timestamps_and_watermarks({strategy})"
    together = {"all": [(key, time, number + 1) for some in splits.values() for key, time, number in some]}
    return d.add(text, models.spread(arrived(d, together, 1000)))


# ---- element by element -----------------------------------------------------------------------------------------------


def plus(d: Drawing, of: str) -> Any:
    declared = "" if d.in_place else d.one_of("", ", ELEMENT")
    return d.add(
        f"{of}.map(Plus(3, {d.changing()}){declared})", models.each(d.streams[of], lambda v: [(v[0], v[1], v[2] + 3)]), of
    )


def kept(d: Drawing, of: str) -> Any:
    """A function that keeps what it returns, and returns it again."""
    return d.add(f"{of}.map(Kept())", d.streams[of], of)


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
    if how == "forward()" and of in d.alone:  # which needs the same parallelism on both sides
        d.alone.add(d.next_name())
        function += ".set_parallelism(1)"
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
    stream = d.input_of(of)
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
    model = models.rolled(stream, combine)
    if d.batch:
        model = replace(model, elements=tuple(mine[-1] for mine in model.by_key.values()))
    return d.add(f"{of}.key_by(key_of).{how.format(in_place)}", model, of)


def numbered(d: Drawing, of: str) -> Any:
    stream = d.input_of(of)
    if not stream.ordered:  # each result depends on the order
        return False
    kind, typed, ttl = (
        d.one_of("value", "list", "map", "reducing", "aggregating"),
        d.one_of(True, False),
        d.one_of(False, True),
    )
    declared = f"Declared{'Expiring' if ttl else ''}({kind!r})"
    text = d.one_of(f"Numbered({kind!r}, {typed}, {ttl})", declared)
    model = models.processed(stream, functions.key_of, functions.Numbered(kind, typed, ttl))
    return d.add(f"{of}.key_by(key_of).process({text})", model, of)


def timers(d: Drawing, of: str) -> Any:
    stream = d.input_of(of)
    size, again, kind = d.one_of(10, 20, 30), d.one_of(0, 1, 2), d.one_of("none", "list", "reducing")
    behind = max((each.passed - each.timestamp for each in stream.elements), default=0)
    delay = d.one_of(0, 7, 10) + max(behind, 0) + 1  # a timer in the past rings at a time that is not defined
    by, key = keyed(d, of)
    model = models.processed(stream, key, functions.Timers(size, delay, again, kind), timers=True)
    if kind != "none" or again:
        model = replace(model, ordered=model.ordered and kind == "none")
    return d.add(f"{by}.process(Timers({size}, {delay}, {again}, {kind!r}, {d.changing()}))", model, of, stage=1)


OPERATIONS = [plus, kept, twice, no_multiple, project, split, spread, union, rolling, numbered, timers, timers]
