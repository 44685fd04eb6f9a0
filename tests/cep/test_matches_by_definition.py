"""Random pattern sequences and inputs: the matcher finds the matches that the definition gives, when they are complete."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.cep import AfterMatchSkipStrategy

from .model import Event, Model
from .patterns import Piece, Run, build

END = 1 << 40
LETTERS = st.sampled_from(["a", "b", "c", "ab"])
HOW = st.sampled_from([">", "~", "~~"])
GAPS = st.sampled_from([None, None, 2, 3])


@st.composite
def simple(draw: Any, number: int, first: bool) -> Piece:
    """A pattern that is no group."""
    least, most = draw(st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 2), (1, None), (2, None), (1, 2), (1, 3), (2, 3)]))
    letters = draw(LETTERS)
    repeats = (least, most) != (1, 1)
    return Piece(
        how="" if first else draw(HOW),
        letters=letters,
        name=f"{letters}{number}",
        least=least,
        most=most,
        optional=draw(st.integers(0, 3)) == 0,
        greedy=repeats and draw(st.integers(0, 2)) == 0,
        inner=draw(HOW) if repeats else "~",
        until=draw(st.sampled_from(["", "", "c", "u"])) if most is None else "",
        gap=draw(st.sampled_from([None, None, None, 3])),
        inner_gap=draw(GAPS) if repeats else None,
    )


@st.composite
def sequences(draw: Any) -> tuple[Piece, ...]:
    """A sequence of up to four patterns."""
    pieces: list[Piece] = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["simple", "simple", "simple", "not", "group"]))
        if kind == "not" and pieces and not pieces[-1].optional:
            letters = draw(LETTERS)
            pieces.append(Piece(how=draw(st.sampled_from(["!>", "!~"])), letters=letters, name=f"{letters}{number}"))
        elif kind == "group":
            content = [draw(simple(10 * number + n + 10, n == 0)) for n in range(draw(st.integers(1, 2)))]
            if all(each.optional for each in content):  # the group must take an event, to be counted
                content[0] = Piece(how="", letters=content[0].letters, name=content[0].name)
            least, most = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, None), (1, 2)]))
            repeats = (least, most) != (1, 1)
            pieces.append(
                Piece(
                    how=draw(HOW) if pieces else "",
                    group=tuple(content),
                    least=least,
                    most=most,
                    optional=draw(st.integers(0, 3)) == 0,
                    inner=draw(HOW) if repeats else "~",
                    until=draw(st.sampled_from(["", "u"])) if most is None else "",
                    inner_gap=draw(GAPS) if repeats else None,
                )
            )
        else:
            pieces.append(draw(simple(number, not pieces)))
    return tuple(pieces)


events = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "ab", "bc", "cu", "x"]), st.integers(0, 3)), min_size=1, max_size=5
)


def timed(drawn: list[tuple[str, int]]) -> list[Event]:
    timed, time = [], 0
    for letters, later in drawn:
        time += later
        timed.append((letters, time))
    return timed


def needs_time(pieces: tuple[Piece, ...]) -> bool:
    return pieces[-1].how == "!~"


def named(match: dict[str, list[Any]]) -> list[tuple[str, int]]:
    """A match as names and numbers of events, in the order of the events."""
    return sorted(((name, event[1]) for name, events in match.items() for event in events), key=lambda each: each[1])


def check_gaps(pieces: tuple[Piece, ...], within: int | None) -> bool:
    """Whether the sequence is one that may be built."""
    gaps = [gap for piece in pieces for each in (piece, *piece.group) for gap in (each.gap, each.inner_gap)]
    return within is None or all(gap is None or gap <= within for gap in gaps)


LIMITS = settings(
    deadline=None,
    max_examples=examples(100),
    phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than to look at it
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


TWO_LIMITS = (
    Piece("", "c", name="c0", most=2, greedy=True, inner="~~"),
    Piece(">", "c", name="c1", least=2, most=None, greedy=True, until="c", gap=3),
    *(Piece("~", "c", name=name) for name in ("c2", "c3")),
)
"""A partial match of the first pattern waits for its repetition and for the second pattern, which must come sooner."""


REPEATED_IN_GROUP = tuple(
    (
        Piece(how="", group=(Piece("", "a", name="a0", most=None, inner="~"),)),
        Piece(how, "b", name="b1"),
        Piece("~", "c", name="c2"),
    )
    for how in ("!~", "!>")
)
"""What ends a repetition, also if that is in a group."""
GREEDY = (
    Piece("", "a", name="a0", most=None, greedy=True, inner="~"),
    Piece("!>", "ab", name="ab1"),
    Piece("~", "c", name="c2"),
)
"""What the greedy pattern takes is not what must not come next."""
NOT_BEFORE_OPTIONAL = (
    Piece("", "a", name="a0", least=2, most=2),
    Piece("!~", "c", name="c1"),
    Piece("~", "b", name="b2", most=2, optional=True, greedy=True),
)
"""The match is complete without an event of the last pattern: also with one that it would take."""


@LIMITS
@given(pieces=sequences(), drawn=events, within=st.sampled_from([None, None, 3, 6]))
@example(pieces=REPEATED_IN_GROUP[0], drawn=[("a", 1), ("b", 1), ("a", 1), ("c", 1)], within=None)
@example(pieces=REPEATED_IN_GROUP[1], drawn=[("a", 1), ("b", 1), ("a", 1), ("c", 1)], within=None)
@example(pieces=GREEDY, drawn=[("a", 1), ("a", 1), ("x", 1), ("c", 1)], within=None)
@example(pieces=NOT_BEFORE_OPTIONAL, drawn=[("ab", 1), ("ab", 1), ("c", 1), ("b", 1)], within=None)
@example(pieces=TWO_LIMITS, drawn=[("c", 0), ("c", 0), ("x", 3), ("bc", 3), ("x", 0)], within=6)
def the_matches_are_those_of_the_definition(pieces, drawn, within):
    if needs_time(pieces) and within is None:
        within = 5
    if not check_gaps(pieces, within):
        return
    data = timed(drawn)
    run = Run(build(pieces, within=within))
    found: Counter[Any] = Counter()
    for number, (letters, time) in enumerate(data):
        run.matches = []
        run.advance(time)
        found.update((number, tuple(named(match))) for match in run.matches)
        run.matches = []
        run.feed((letters, number), time)
        found.update((number + 1, tuple(named(match))) for match in run.matches)
    run.matches = []
    run.advance(END)
    found.update((len(data) + 1, tuple(named(match))) for match in run.matches)
    model = Model(pieces, data, within)
    assert found == Counter((when, tuple(match)) for when, match in model.matches.values())
    if model.tells_time_outs:
        assert Counter(tuple(named(each.match)) for each in run.timed_out) == Counter(model.timed_out)
    if within is not None:
        assert not run.state
        assert run.nodes == run.events == {}


@LIMITS
@given(
    pieces=sequences(),
    drawn=events,
    within=st.sampled_from([3, 6, 20]),
    how=st.sampled_from(["skip_to_next", "skip_past_last_event", "skip_to_first", "skip_to_last"]),
    which=st.integers(0, 3),
)
def a_skip_strategy_drops_what_the_definition_drops(pieces, drawn, within, how, which):
    if not check_gaps(pieces, within):
        return
    names = [each.name for piece in pieces for each in (piece.group or (piece,))]
    skip = getattr(AfterMatchSkipStrategy, how)(
        *([names[which % len(names)]] if how.startswith("skip_to_") and how != "skip_to_next" else [])
    )
    data = timed(drawn)
    run = Run(build(pieces, skip, within))
    for number, (letters, time) in enumerate(data):
        run.feed((letters, number), time)
    run.advance(END)
    model = Model(pieces, data, within)
    assert [named(match) for match in run.matches] == model.skipping(skip.first_kept)
    assert not run.state
    assert run.nodes == run.events == {}
