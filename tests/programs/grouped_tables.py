"""Draws aggregates of grouped streams, of one or several, with and without windows; see `drawing`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from holdfast.common.time import MAX_TIMESTAMP
from table.sliding_model import windows_of

from . import functions, models
from . import more_functions as more
from .drawing import Drawing
from .joins import LONG, other_of
from .models import Element, Stream
from .window_drawing import ms

Rows = dict[Any, int]


def grouped(d: Drawing, of: str) -> Any:
    """Totals and counts, to their newest rows: what comes before them depends on the order between inputs."""
    stream, inputs = weighed(d.input_of(of), 1), [of]
    # The values are numbers, or lists of one number that functions change in place.
    boxed = d.one_of(False, True)
    value, end = ("boxed_or_none", ".map_values(unboxed)") if boxed else ("number_or_none", "")
    new, added, tenfold, merged = (
        ("new_box", "add_box", "add_box_tenfold", "merge_boxes") if boxed else ("int", "add", "add_tenfold", "merge")
    )
    text = f"KStream.of({of}, key_of, {value}).group_by_key()"
    several = d.one_of(False, True)
    if several:
        other = other_of(d, of)
        inputs.append(other)
        text += f".cogroup({added}).cogroup(KStream.of({other}, key_of, {value}).group_by_key(), {tenfold})"
        stream = models.united(stream, weighed(d.input_of(other), 10))
    kind = d.one_of("time", "time", "session", *(["none"] if several else []))
    if kind == "session" and not stream.ordered and not stream.punctual:
        return False  # which sessions a late element meets depends on the order
    grace = d.one_of(0, 0, 10, 30)
    told = "to_stream().to_data_stream().map(of_window)"
    aggregated = [new] if several else [new, added]
    if kind == "none":
        rows, told = totals(stream), "to_stream().to_data_stream()"
    elif kind == "time":
        size, advance = d.one_of((20, 20), (20, 10), (30, 20))
        windows = f"TimeWindows.of_size_and_grace({ms(size)}, {ms(grace)}).advance_by({ms(advance)})"
        if not grace and size == advance:
            windows = f"TimeWindows.of_size_with_no_grace({ms(size)})"
        text += f".windowed_by({windows})"
        rows = in_windows(stream, size, advance, grace)
    else:
        gap = d.one_of(10, 15, 20)
        windows = f"SessionWindows.of_inactivity_gap_and_grace({ms(gap)}, {ms(grace)})"
        if not grace:
            windows = f"SessionWindows.of_inactivity_gap_with_no_grace({ms(gap)})"
        text += f".windowed_by({windows})"
        rows = in_sessions(stream, gap, grace)
        aggregated.append(merged)
    how = f"aggregate({', '.join(aggregated)}){end}"
    if not several:
        how = d.one_of(how, f"reduce({'sum_of_boxes' if boxed else 'sum_of_both'}){end}")
    elements = tuple(Element((key, 0, value), functions.END) for key, value in rows.items())
    call = f"{text}.{how}.{told}.key_by(key_of).process(Newest())"
    return d.add(call, Stream(elements, ordered=False), *inputs, stage=2)


def counted(d: Drawing, of: str) -> Any:
    """Counts of windows."""
    stream = d.input_of(of)
    stream = models.each(stream, lambda v: [] if more.number_or_none(v) is None else [(*v[:2], 1)])
    grace = d.one_of(0, 20)
    windows, rows = f"TimeWindows.of_size_and_grace({ms(20)}, {ms(grace)})", in_windows(stream, 20, 20, grace)
    if (stream.ordered or stream.punctual) and d.one_of(False, True):
        windows, rows = f"SessionWindows.of_inactivity_gap_and_grace({ms(15)}, {ms(grace)})", in_sessions(stream, 15, grace)
    elements = tuple(Element((key, 0, value), functions.END) for key, value in rows.items())
    text = f"KStream.of({of}, key_of, number_or_none).group_by_key().windowed_by({windows}).count()"
    call = f"{text}.to_stream().to_data_stream().map(of_window).key_by(key_of).process(Newest())"
    return d.add(call, Stream(elements, ordered=False), of, stage=2)


def sliding(d: Drawing, of: str) -> Any:
    """Aggregates in sliding windows, none of which is closed: their changes, or the rows of a join of two in the end."""
    other = other_of(d, of)
    stream, others = d.input_of(of), d.input_of(other)
    if not stream.ordered or not others.ordered:
        return False
    behind = max((each.passed - each.timestamp for side in (stream, others) for each in side.elements), default=0)
    of_windows = stream.elements_of_windows or others.elements_of_windows
    difference = d.one_of(0, 9, 10, 25)
    if behind < 0 and not of_windows and d.one_of(True, False):
        windows = f"SlidingWindows.of_time_difference_with_no_grace({ms(difference)})"
    else:
        grace = LONG if of_windows else d.one_of(ms(max(behind, 0) + 1), LONG)
        windows = f"SlidingWindows.of_time_difference_and_grace({ms(difference)}, {grace})"
    value, text, combine = d.one_of(
        ("number_of", "count()", len),
        ("number_of", "reduce(lambda a, b: a + b)", sum),
        ("number_of", "aggregate(int, lambda key, value, total: total + value)", sum),
        ("boxed_number", "aggregate(new_box, add_box).map_values(unboxed)", sum),
    )
    one, two = (f"KStream.of({name}, key_of, {value}).group_by_key().windowed_by({windows}).{text}" for name in (of, other))
    if d.one_of(True, True, False):
        elements = []
        for mine in stream.by_key.values():
            for number, key, start, new, _ in windows_of(map(pair_of, mine), difference, combine):
                elements.append(replace(mine[number], value=(key, start, new)))
        model = replace(stream, elements=tuple(elements), placed=False)
        return d.add(f"{one}.to_stream().to_data_stream().map(of_windowed)", model, of)
    rows, held = (
        {(key, start): new for _, key, start, new, _ in windows_of(map(pair_of, side.elements), difference, combine)}
        for side in (stream, others)
    )
    joined = tuple(Element((*row, new * 100 + held[row]), functions.END) for row, new in rows.items() if row in held)
    call = (
        f"{one}.join({two}, joined(88, 99)).to_stream().to_data_stream().key_by(key_of).process(Newest()).map(of_windowed)"
    )
    return d.add(call, Stream(joined, ordered=False), of, other, stage=1)


def pair_of(element: Element) -> tuple[Any, int, Any]:
    return element.value[0], element.timestamp, element.value[2]


def weighed(stream: Stream, weight: int) -> Stream:
    """The numbers that a stream adds; None adds nothing."""
    return models.each(stream, lambda v: [] if more.number_or_none(v) is None else [(*v[:2], v[2] * weight)])


def totals(stream: Stream) -> Rows:
    return {key: sum(each.value[2] for each in mine) for key, mine in stream.by_key.items()}


def in_windows(stream: Stream, size: int, advance: int, grace: int) -> Rows:
    """Totals of time windows: a window is closed when the watermark has reached its last moment and the grace period."""
    rows: Rows = defaultdict(int)
    for each in stream.elements:
        last = each.timestamp - each.timestamp % advance
        for start in range(last, max(each.timestamp - size, -1), -advance):
            if each.passed < start + size - 1 + grace:
                rows[f"{each.value[0]} {start} {start + size}"] += each.value[2]
    return dict(rows)


def in_sessions(stream: Stream, gap: int, grace: int) -> Rows:
    """Totals of sessions: of elements that are the gap from each other at most."""
    rows: Rows = {}
    for key, mine in stream.by_key.items():
        sessions: list[tuple[int, int, int]] = []
        for each in mine:
            its = (each.timestamp, each.timestamp, each.value[2])
            met = [
                one
                for one in sessions
                if one[1] + gap + grace > each.passed and one[0] <= its[1] + gap and one[1] >= its[0] - gap
            ]
            whole = [*met, its]
            first, last = min(one[0] for one in whole), max(one[1] for one in whole)
            if last + gap + grace > each.passed:
                sessions = [one for one in sessions if one not in met]
                sessions.append((first, last, sum(one[2] for one in whole)))
        rows.update({f"{key} {first} {last}": total for first, last, total in sessions})
    return rows


def suppressed(d: Drawing, of: str) -> Any:
    """Changes of a table that are held for a time limit; or, with a bound, the newest rows."""
    stream = d.input_of(of)
    if not stream.ordered:
        return False
    limit = d.one_of(10, 25, 40, 0)
    table = f"KStream.of({of}, key_of, number_or_none).to_table()"
    if d.one_of(False, False, True):
        bound = d.one_of("max_records(1)", "max_bytes(70)", "unbounded().with_max_records(2).emit_early_when_full()")
        newest = {key: more.number_or_none(mine[-1].value) for key, mine in stream.by_key.items()}
        elements = [Element((key, 0, value), functions.END) for key, value in newest.items() if value is not None]
        text = f"{table}.suppress(Suppressed.until_time_limit({ms(limit)}, BufferConfig.{bound}))"
        call = f"{text}.to_stream().to_data_stream().key_by(key_of).process(Newest())"
        return d.add(call, Stream(tuple(elements), ordered=False), of, stage=2)
    elements = []
    for key, mine in stream.by_key.items():
        told = seen = held = None
        for each in [*mine, None]:
            passed, stamp = (MAX_TIMESTAMP, functions.END) if each is None else (each.passed, each.timestamp)
            if held is not None and (passed >= held or stamp > held):
                elements += changes(key, told, seen, held, models.NEVER)
                told, held = seen, None
            if each is None:
                break
            new = more.number_or_none(each.value)
            if new is None and seen is None:
                continue  # the table has no change
            seen = new
            if held is None:
                held = stamp + limit - 1
            if held <= passed or limit == 0:
                elements += changes(key, told, seen, stamp, passed)
                told, held = seen, None
            elif seen is None and told is None:
                held = None
    text = f"{table}.suppress(Suppressed.until_time_limit({ms(limit)}, BufferConfig.unbounded()))"
    model = Stream(tuple(elements), elements_of_windows=True)
    return d.add(f"{text}.to_changelog().map(of_changelog)", model, of, stage=1)


def changes(key: Any, old: Any, new: Any, stamp: int, passed: int) -> list[Element]:
    """The rows of a change, with the numbers of their kinds."""
    if old is None or new is None:
        told = [] if old is new is None else [(key, 0, new) if old is None else (key, 3, old)]
    else:
        told = [(key, 1, old), (key, 2, new)]
    return [Element(value, stamp, passed) for value in told]


def final(d: Drawing, of: str) -> Any:
    """Totals of windows, each once."""
    stream = weighed(d.input_of(of), 1)
    grace = d.one_of(0, 20)
    windows, rows, after = (
        f"TimeWindows.of_size_and_grace({ms(20)}, {ms(grace)})",
        in_windows(stream, 20, 20, grace),
        grace - 1,
    )
    if (stream.ordered or stream.punctual) and d.one_of(False, True):
        windows = f"SessionWindows.of_inactivity_gap_and_grace({ms(15)}, {ms(grace)})"
        rows, after = in_sessions(stream, 15, grace), 15 + grace
    change = d.one_of("", ".map_values(lambda value: value)", ".filter(lambda key, value: True)")
    elements = tuple(Element((key, 0, value), int(key.split()[-1]) + after) for key, value in rows.items())
    text = f"KStream.of({of}, key_of, number_or_none).group_by_key().windowed_by({windows}).reduce(sum_of_both){change}"
    text += f".suppress(Suppressed.until_window_closes({d.one_of('BufferConfig.unbounded()', STRICT)}))"
    call = f"{text}.to_stream().to_data_stream().map(of_window).map(of_pair)"
    return d.add(call, Stream(elements, ordered=False, elements_of_windows=True), of, stage=2)


STRICT = "BufferConfig.max_records(1000).with_max_bytes(10**6).shut_down_when_full()"

OPERATIONS = [grouped, grouped, counted, suppressed, suppressed, final, sliding]
