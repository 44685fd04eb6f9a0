"""Draws operations of two streams, tables, patterns, requests and columns; see `drawing`."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from cep.model import Model
from cep.patterns import parse

from . import functions, models
from . import more_functions as more
from .drawing import Drawing
from .models import Element, Stream
from .window_drawing import aligned, ms


def other_of(d: Drawing, of: str) -> str:
    return d.one_of(*reversed(d.streams))


def connected(d: Drawing, of: str) -> Any:
    """One function of two streams, by key or not."""
    other = other_of(d, of)
    one, two = d.streams[of], d.streams[other]
    in_place = d.changing()
    call, first, second = d.one_of(
        (f"map(PlusBoth({in_place}))", lambda v: [(*v[:2], v[2] + 1)], lambda v: [(*v[:2], v[2] + 2)]),
        (f"flat_map(TwiceOne({in_place}))", lambda v: [v, (*v[:2], v[2] + 50)], lambda v: [v]),
        (f"process(PassBoth({in_place}))", lambda v: [(*v[:2], v[2] + 1)], lambda v: [(*v[:2], v[2] + 2)]),
    )
    if other != of and d.one_of(False, True):
        model = models.united(models.each(one, first), models.each(two, second))
        return d.add(f"{of}.connect({other}).{call}", model, of, other)
    late = max((each.passed - each.timestamp for stream in (one, two) for each in stream.elements), default=0)
    arguments = (d.one_of(10, 20), max(late, 0) + 1, d.one_of(0, 1), d.one_of("none", "list", "reducing"))
    tagged = models.united(
        models.each(one, lambda v: [(*v[:2], v[2] * 2)]), models.each(two, lambda v: [(*v[:2], v[2] * 2 + 1)])
    )
    model = replace(models.processed(tagged, functions.key_of, functions.Timers(*arguments), timers=True), ordered=False)
    text = f"{of}.connect({other}).key_by(key_of, key_of).process(TimersOfBoth{arguments!r})"
    return d.add(text, model, of, other, stage=1)


def broadcast(d: Drawing, of: str) -> Any:
    other = other_of(d, of)
    if other == of:
        return False
    stream, rules = d.streams[of], d.streams[other]
    if d.one_of(False, True):
        model = models.spread(models.each(stream, lambda v: [(*v[:2], v[2] + 1)]))
        return d.add(f"{of}.connect({other}.broadcast(RULES)).process(PastRules({d.changing()}))", model, of, other)
    counts = Counter(each.value for each in rules.elements)
    told = functions.digest([(key, time, number * 10 + count) for (key, time, number), count in counts.items()], False)
    elements = tuple(
        Element((key, told, functions.digest([each.value for each in mine], False)), functions.END)
        for key, mine in stream.by_key.items()
    )
    text = f"{of}.key_by(key_of).connect({other}.broadcast(COUNTS)).process(RulesAtEnd({d.changing()}))"
    return d.add(text, Stream(elements, ordered=False), of, other, stage=1)


def window_join(d: Drawing, of: str) -> Any:
    other = other_of(d, of)
    one, two = d.streams[of], d.streams[other]
    in_place = d.changing()
    tagged = [
        Stream(tuple(replace(each, value=(side, each.value)) for each in stream.elements))
        for side, stream in enumerate((one, two))
    ]
    together = Stream((*tagged[0].elements, *tagged[1].elements), ordered=False)
    drawn = aligned(d, together, lambda value: value[1][0], 0, lambda value: value[1])
    elements: list[Element] = []
    kind = d.one_of(f"Paired({in_place})", f"PairedTwice({in_place})", f"Grouped({in_place})")
    trigger = d.one_of("", ".trigger(WithOddAtEnd())")
    for key, window in drawn.windows:
        if trigger and not any(each.value[1][2] % 2 for each in window.elements):
            continue
        left, right = ([each.value[1] for each in window.elements if each.value[0] == side] for side in (0, 1))
        results: list[Any] = []
        if kind.startswith("Grouped"):
            results = [(key, functions.digest(left, False), functions.digest(right, False))]
        else:
            for x in left:
                for y in right:
                    results.append(more.both(x, y))
                    if kind.startswith("PairedTwice"):
                        results.append(more.both(y, x))
        elements += [Element(result, (window.end or 0) - 1) for result in results]
    call = "co_group" if kind.startswith("Grouped") else "join"
    text = f"{of}.{call}({other}).where(key_of).equal_to(key_of).window({drawn.text}){trigger}.apply({kind})"
    return d.add(text, Stream(tuple(elements), ordered=False, elements_of_windows=True), of, other, stage=1)


def interval_join(d: Drawing, of: str) -> Any:
    other = other_of(d, of)
    lower, upper = d.one_of((-10, 10), (0, 20), (-20, -10), (10, 20), (0, 0))
    how = d.one_of("", "", ".left_outer()", ".right_outer()", ".full_outer()")
    text = f".between({ms(lower)}, {ms(upper)})"
    if how == "" and lower < upper and d.one_of(False, True):
        text += d.one_of(".lower_bound_exclusive()", ".upper_bound_exclusive()")
        lower, upper = (lower + 1, upper) if "lower_" in text else (lower, upper - 1)
    left, right = ([each for each in d.streams[name].elements if each.timestamp > each.passed] for name in (of, other))
    elements: list[Element] = []
    paired: tuple[set[int], set[int]] = set(), set()
    for x in left:
        for y in right:
            if x.value[0] == y.value[0] and x.timestamp + lower <= y.timestamp <= x.timestamp + upper:
                elements.append(Element(more.both(x.value, y.value), max(x.timestamp, y.timestamp)))
                paired[0].add(id(x))
                paired[1].add(id(y))
    if how in (".left_outer()", ".full_outer()"):
        alone = [x for x in left if id(x) not in paired[0]]
        elements += [Element(more.both(x.value, None), x.timestamp + max(upper, 0) + 1) for x in alone]
    if how in (".right_outer()", ".full_outer()"):
        alone = [y for y in right if id(y) not in paired[1]]
        elements += [Element(more.both(None, y.value), y.timestamp + max(-lower, 0) + 1) for y in alone]
    call = f"{of}.key_by(key_of).interval_join({other}.key_by(key_of)){text}{how}"
    asks = d.one_of("", "left", "right")
    if asks:
        call += f".side_output_{asks}_late_data(LATE)"
    model = Stream(tuple(elements), ordered=False, placed=True, elements_of_windows=True)
    name = d.add(f"{call}.process(PairedInTime({d.changing()}))", model, of, other, stage=1)
    if asks:
        side = d.streams[of if asks == "left" else other]
        late = tuple(each for each in side.elements if each.timestamp <= each.passed)
        d.beside("get_side_output(LATE)", Stream(late, ordered=side.ordered), name)
    return name


def temporal_join(d: Drawing, of: str) -> Any:
    other = other_of(d, of)
    if not d.streams[other].ordered:  # of two versions with one timestamp the one that came last is valid
        return False
    outer = d.one_of("", ".left_outer()")
    versions = Stream(tuple(each for each in d.streams[other].elements if each.timestamp > each.passed)).by_key
    elements = []
    for each in d.streams[of].elements:
        if each.timestamp <= each.passed:
            continue
        valid = [one for one in versions.get(each.value[0], ()) if one.timestamp <= each.timestamp]
        if valid or outer:
            version = max(reversed(valid), key=lambda one: one.timestamp).value if valid else None
            elements.append(Element(more.both(each.value, version), each.timestamp))
    function = "both_changed" if d.changing() == "True" else "both"
    text = f"{of}.key_by(key_of).temporal_join({other}.key_by(key_of)){outer}.apply({function})"
    return d.add(text, Stream(tuple(elements), ordered=False, elements_of_windows=True), of, other, stage=1)


def pattern(d: Drawing, of: str) -> Any:
    """A pattern: every event that is not late, in the order of time; equal times in the order of arrival."""
    stream = d.input_of(of)
    if not stream.ordered:
        return False
    text, within = (
        d.one_of(
            *(
                "a ~b",
                "a >b",
                "a ~~b",
                "a ~b{2} ~c",
                "a !~c ~b",
                "a !>b ~c",
                "a+ ~b",
                "a ~b? ~c",
                "(a+) !~c ~b",
                "(a{2,3}) !~c ~b",
            ),
            *("a ~b{2}t=15 ~c", "a{1,3}t=15 ~b", "a{2,}t=20", "(a ~b)+t=15"),
        ),
        d.one_of(20, 50, 500),
    )
    elements: list[Element] = []
    for key, mine in stream.by_key.items():
        events = sorted((each for each in mine if each.timestamp > each.passed), key=lambda each: each.timestamp)[:12]
        if len(events) == 12:
            return False  # the model tries all choices of events
        letters = [more.lettered(each.value) for each in events]
        found = Model(parse(text), [(event[0], each.timestamp) for event, each in zip(letters, events)], within)
        for come, named in found.matches.values():
            told = [(key, letters[number][2] + len(name), letters[number][3]) for name, number in named]
            result = key, len(named), functions.digest(told, False)
            elements.append(Element(result, events[come - 1].timestamp))
    how = d.one_of("select(matched)", "flat_select(lambda match: [matched(match)])", "process(Matched())")
    lettered = "lettered"
    if d.in_place:
        lettered, how = (
            "listed",
            how.replace("matched(match)", "matched_changed(match)").replace("(matched)", "(matched_changed)"),
        )
    how = d.one_of("", "in_event_time().") + how
    call = f"CEP.pattern({of}.map({lettered}).key_by(key_of_event), pattern({text!r}, {within})).{how}"
    return d.add(call, Stream(tuple(elements), ordered=False, elements_of_windows=True), of, stage=1)


def table(d: Drawing, of: str) -> Any:
    """Tables of streams, to their newest rows: what comes before them depends on the order between inputs."""
    other = other_of(d, of)
    if not d.streams[of].ordered or not d.streams[other].ordered:
        return False
    rows, others = (
        {key: more.number_or_none(mine[-1].value) for key, mine in d.input_of(name).by_key.items()} for name in (of, other)
    )
    rows, others = ({key: value for key, value in each.items() if value is not None} for each in (rows, others))
    history = d.one_of("", "", f"history_retention={LONG}")
    if history:  # the newest row is that with the latest timestamp
        rows, others = (newest_rows(d.input_of(name)) for name in (of, other))
    # The values are numbers, or lists of one number that functions change in place.
    value, end, joined, added, subtracted, new = "number_or_none", "", "joined({}, {})", "add", "subtract", "int"
    if boxed := d.one_of(False, True):
        value, end, joined = "boxed_or_none", ".map_values(unboxed)", "Boxed({}, {})"
        added, subtracted, new = "add_box", "subtract_box", "new_box"
    one, two = (f"KStream.of({name}, key_of, {value}).to_table({history})" for name in (of, other))
    number = "value[0]" if boxed else "value"
    inputs = [of]
    grouped = f".group_by(lambda key, value: ({number} % 2, value)).aggregate({new}, {added}, {subtracted})"
    inner = {k: v * 100 + others[k] for k, v in rows.items() if k in others}
    text, held = d.one_of(
        (f"{one}.filter(lambda key, value: {number} % 2){end}", {k: v for k, v in rows.items() if v % 2}),
        (f"{one}.filter_not(lambda key, value: {number} % 2){end}", {k: v for k, v in rows.items() if not v % 2}),
        (f"{one}{end}.map_values(lambda value: value + 1)", {k: v + 1 for k, v in rows.items()}),
        (f"{one}.join({two}, {joined.format(88, 99)}){end}", inner),
        (f"{one}.left_join({two}, {joined.format(88, 99)}){end}", {k: v * 100 + others.get(k, 99) for k, v in rows.items()}),
        (
            f"{one}.outer_join({two}, {joined.format(88, 99)}){end}",
            {k: rows.get(k, 88) * 100 + others.get(k, 99) for k in rows.keys() | others.keys()},
        ),
        (f"{one}{grouped}{end}", totals(rows)),
        (f"{one}.join({two}, {joined.format(88, 99)}){grouped}{end}", totals(inner)),
    )
    if "aggregate" in text:
        # A group that was there keeps its total of nothing: it is left out on both sides.
        text = f"{text}.filter(lambda key, total: total)"
    if "join" in text:
        inputs.append(other)
    elements = tuple(Element((key, 0, value), functions.END) for key, value in held.items())
    call = f"{text}.to_stream().to_data_stream().key_by(key_of).process(Newest())"
    return d.add(call, Stream(elements, ordered=False), *inputs, stage=1)


LONG = "Time.hours(10**5)"


def newest_rows(stream: Stream) -> dict[Any, int]:
    """The rows of a versioned table; of equal timestamps the one that came last."""
    newest = {key: max(reversed(mine), key=lambda one: one.timestamp).value for key, mine in stream.by_key.items()}
    return {key: value[2] for key, value in newest.items() if more.number_or_none(value) is not None}


def totals(rows: dict[Any, int]) -> dict[Any, int]:
    groups: dict[Any, int] = defaultdict(int)
    for value in rows.values():
        groups[value % 2] += value
    return dict(groups)


def stream_and_table(d: Drawing, of: str) -> Any:
    """A stream and the versions of a table; or any table, of which only the pairs that are kept are judged."""
    other = other_of(d, of)
    stream, versions = d.streams[of], d.input_of(other)
    pairs, mapped = f"KStream.of({of}, key_of, number_of)", "to_data_stream().map(of_pair)"
    if not versions.ordered or d.one_of(False, False, True):
        call = f"{pairs}.left_join(KStream.of({other}, key_of, number_or_none).to_table(), left_of).{mapped}"
        model = models.each(stream, lambda v: [(v[0], 0, v[2])])
        return d.add(call, replace(model, ordered=False, placed=False, elements_of_windows=True), of, other, stage=1)
    late = max((each.passed - each.timestamp for side in (stream, versions) for each in side.elements), default=0)
    grace = max(late, 0) + d.one_of(1, 10)
    how, kept = d.one_of(("join", False), ("left_join", True))
    elements = []
    for each in stream.elements:
        valid = [one for one in versions.by_key.get(each.value[0], ()) if one.timestamp <= each.timestamp]
        version = max(reversed(valid), key=lambda one: one.timestamp).value if valid else None
        held = None if version is None else more.number_or_none(version)
        if held is not None or kept:
            elements.append(replace(each, value=(each.value[0], 0, each.value[2] * 100 + (99 if held is None else held))))
    change = d.one_of("", ".map_values(lambda value: value)", ".filter(lambda key, value: True)")
    table = f"KStream.of({other}, key_of, number_or_none).to_table(history_retention={LONG}){change}"
    call = f"{pairs}.{how}({table}, joined(88, 99), grace_period={ms(grace)}).{mapped}"
    model = Stream(tuple(replace(each, passed=models.NEVER) for each in elements), ordered=False, elements_of_windows=True)
    return d.add(call, model, of, other, stage=1)


def global_table(d: Drawing, of: str) -> Any:
    """A table that is whole before the stream begins: its source is read at once."""
    name = f"{d.next_name()}rows"
    records = [(key, 0, number) for key, number in d.draw(ROWS)]
    d.sources[name] = {f"{name}-0": [list(each) if d.in_place else each for each in records]}
    boxed = d.one_of(False, True)
    value, joined = ("boxed_or_none", "Boxed(88, 99)") if boxed else ("number_or_none", "joined(88, 99)")
    source = f'env.from_source(SplitSource({name.upper()}, 0, seed), WatermarkStrategy.no_watermarks(), "{name}")'
    table = f'KStream.of({source}.uid("{name}"), key_of, {value}).to_global_table()'
    how = d.one_of("join", "left_join")
    elements = []
    for each in d.streams[of].elements:
        row = newest(records, functions.KEYS_OF_ROWS[each.value[2] % 3])
        if row is not None or how == "left_join":
            elements.append(replace(each, value=(each.value[0], 0, each.value[2] * 100 + (row or 99))))
    numbers = "boxed_number" if boxed else "number_of"
    named = "lambda key, value: KEYS_OF_ROWS[value[0] % 3]" if boxed else "lambda key, value: KEYS_OF_ROWS[value % 3]"
    text = f"KStream.of({of}, key_of, {numbers}).{how}({table}, {named}, {joined}).to_data_stream().map(of_joined)"
    return d.add(text, replace(d.streams[of], elements=tuple(elements), placed=False), of)


ROWS = st.lists(st.tuples(st.sampled_from(functions.KEYS_OF_ROWS), st.integers(1, 9)), max_size=6)


def newest(records: list[Any], key: Any) -> Any:
    """The last number of a key, if it deletes no row."""
    numbers = [more.number_or_none(each) for each in records if each[0] == key]
    return numbers[-1] if numbers else None


def running_table(d: Drawing, of: str) -> Any:
    """Running totals of a KStream, each of which is a change."""
    stream = d.input_of(of)
    if not stream.ordered:
        return False
    text, total = d.one_of(
        ("count()", lambda values: len(values)),
        ("reduce(lambda a, b: a + b)", sum),
        ("aggregate(int, lambda key, value, total: total * 2 + value)", None),
    )
    how = d.one_of(
        "to_stream().to_data_stream().map(of_pair)", "to_changes().map(of_change)", "to_changelog().map(of_changelog)"
    )
    elements = []
    for key, mine in stream.by_key.items():
        values: list[int] = []
        doubled, old = 0, None
        for each in mine:
            values.append(each.value[2])
            doubled = doubled * 2 + each.value[2]
            new = doubled if total is None else total(values)
            if "of_pair" in how:
                told = [(key, 0, new)]
            elif "of_changelog" in how:
                told = [(key, 0, new)] if old is None else [(key, 1, old), (key, 2, new)]
            else:
                told = [(key, old or 0, new)]
            old = new
            elements += [replace(each, value=value) for value in told]
    model = replace(stream, elements=tuple(elements), placed=False)
    return d.add(f"KStream.of({of}, key_of, number_of).group_by_key().{text}.{how}", model, of)


def dedup(d: Drawing, of: str) -> Any:
    stream = d.input_of(of)
    if not stream.ordered:
        return False
    elements = tuple(mine[0] for mine in stream.by_key.values())
    return d.add(f"{of}.key_by(key_of).dedup(Time.hours(10**5))", replace(stream, elements=elements, placed=True), of)


def top_n(d: Drawing, of: str) -> Any:
    stream = d.input_of(of)
    if not stream.ordered:
        return False
    n, offset = d.one_of(1, 2), d.one_of(0, 0, 1, 2)
    elements = []
    for mine in stream.by_key.values():
        ranked: list[Any] = []
        for each in mine:
            before = ranked[offset : offset + n]
            ranked = sorted([*ranked, each.value], key=lambda value: -value[2])  # stable: of equal ones, the first is better
            after = ranked[offset : offset + n]
            for kind, some, others in ((3, before, after), (0, after, before)):  # one goes, one comes
                for row in some:
                    if not any(row is other for other in others):
                        elements.append(replace(each, value=(*row[:2], row[2] * 10 + kind)))
    behind = f", offset={offset}" if offset else ""
    text = f"{of}{'.map(tuple)' if d.in_place else ''}.key_by(key_of).top_n({n}, number_of{behind}).map(of_row)"
    return d.add(text, replace(stream, elements=tuple(elements), placed=False), of)


def asked(d: Drawing, of: str) -> Any:
    stream = models.each(d.streams[of], lambda v: [(*v[:2], v[2] + 3)])
    how, more_arguments = d.one_of(
        ("ordered_wait", ""),
        ("unordered_wait", ""),
        ("ordered_wait_with_retry", ", NO_RETRY"),
        ("unordered_wait_with_retry", ", NO_RETRY"),
    )
    text = f"AsyncDataStream.{how}({of}, Asked({d.changing()}), TEN_SECONDS{more_arguments})"
    # At another parallelism, requests that were sent come to other subtasks than their keys: between two operators of them,
    # with a shuffle between them, there is no order.
    ordered = stream.ordered and how.startswith("ordered") and not any("AsyncDataStream" in line for line in d.lines)
    return d.add(text, replace(stream, ordered=ordered, placed=False), of)


def columns(d: Drawing, of: str) -> Any:
    """Aggregates of windows of columns, or of rows; functions of batches."""
    declared = d.one_of(True, False)
    # After a restart, a key without a declared type is any of its equals.
    kind = d.one_of("text", "text", "truth", "decimal") if declared else "text"
    stream = models.each(d.streams[of], lambda v: [(str(more.field_of(v, kind)), *v[1:])])
    ordered = stream.ordered and kind == "text"  # other keys have elements of several
    stream = replace(stream, ordered=ordered)
    fields = f"FIELDS[{kind!r}]"
    rows = f"{of}.map(as_row({kind!r}){f', {fields}' if declared else ''})"
    if declared and kind != "decimal" and d.one_of(True, False):  # no column has decimals
        how, function = d.one_of(
            (f"map_batch(times_two, {fields})", lambda v: [(*v[:2], v[2] * 2)]),
            ("filter_batch(above_two)", lambda v: [v] if v[2] > 2 else []),
        )
        rows, stream = f"{rows}.{how}", models.each(stream, function)
        if d.one_of(False, True):
            return d.add(f"{rows}.map(of_fields)", stream, of)
    drawn = aligned(d, stream, functions.key_of, 0, staggers=False)
    elements = []
    for key, window in drawn.windows:
        numbers = [each.value[2] for each in window.elements]
        result = sum(numbers) * 1000 + max(numbers) * 100 + min(numbers) * 10 + len(set(numbers))
        elements.append(Element((key, window.start, result), (window.end or 0) - 1))
    aggregates = 'total=batches.Sum("number"), most=batches.Max("number"), least=batches.Min("number"), '
    aggregates += 'several=batches.CountDistinct("number")'
    text = f'{rows}.key_by(batches.col("key")).window({drawn.text}).agg({aggregates}).map(of_columns)'
    ordered = stream.ordered and drawn.kind != "own"  # of these windows, several end at one time
    return d.add(text, Stream(tuple(elements), ordered=ordered, elements_of_windows=True), of, stage=1)


OPERATIONS = [
    *(connected, broadcast, window_join, interval_join, temporal_join, pattern),
    *(table, table, stream_and_table, global_table, global_table, running_table, dedup, top_n, asked, columns),
]
