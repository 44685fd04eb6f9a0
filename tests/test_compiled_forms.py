"""Compiled modules and their sources do the same."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast import compiled
from holdfast.common import Row, Types
from holdfast.common.formats import positions, scans
from holdfast.datastream.operations import ranked_rows
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from holdfast.runtime.operators import calls
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.windows import session_loop, window_calls
from holdfast.runtime.records import frame_columns
from holdfast.runtime.records.copies import copied, same
from holdfast.runtime.records.frames import Frame, decode_data, encode_data
from holdfast.state.cells import handles, typed
from holdfast.state.cells.row import TOUCHED, UNFLUSHED
from holdfast.state.keys import key_owners
from holdfast.state.keys.key_groups import group_assigner, key_group
from holdfast.state.rows import row_loading

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"


def loaded(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = {name: loaded(f"plain_{name.rsplit('.', 1)[1]}", compiled.source(str(PACKAGE), name)) for name in compiled.MODULES}
"""The modules as plain Python, beside those that are imported."""


@pytest.mark.skipif(not compiled.IN_USE, reason="needs the compiled modules")
@pytest.mark.parametrize(
    ("module", "names"),
    [
        (handles, {"CHANGED", "LARGE", "LargeList", "LargeMap", "islice"}),
        (calls, {"CHANGED"}),
        (window_calls, {"CHANGED"}),
        (session_loop, {"DIRTY"}),
        (ranked_rows, {"Row", "RowSlots", "_INSERT", "_DELETE", "_BEFORE", "_AFTER", "_NONE"}),
    ],
)
def the_names_used_for_each_record_are_variables_of_c(module: ModuleType, names: set[str]) -> None:
    """The names in the dictionary of a module are looked up at each use, from Python 3.12 on."""
    assert names <= set(vars(PLAIN[module.__name__]))
    assert not names & set(vars(module))


def outcome(state: Any, method: str, arguments: list[Any]) -> Any:
    """What a method returns, or the error that it raises; the words of the interpreter's own errors do not count."""
    try:
        result = getattr(state, method)(*copy.deepcopy(arguments))
        return list(result) if hasattr(result, "__next__") else result
    except Exception as error:
        return type(error), str(error) if "does not fit state" in str(error) else ""


def total(a: Any, b: Any) -> Any:
    return a + b


DESCRIPTORS = [
    ValueStateDescriptor("state", Types.DOUBLE()),
    ValueStateDescriptor("state", Types.TUPLE([Types.LONG(), Types.LONG()])),
    ValueStateDescriptor("state", Types.PICKLED_BYTE_ARRAY()),
    ListStateDescriptor("state", Types.DOUBLE()),
    ListStateDescriptor("state", Types.LONG()),
    ListStateDescriptor("state", Types.STRING()),
    MapStateDescriptor("state", Types.STRING(), Types.DOUBLE()),
    MapStateDescriptor("state", Types.DOUBLE(), Types.LONG()),
    ReducingStateDescriptor("state", total, Types.DOUBLE()),
]
VALUES = st.sampled_from(
    [
        *(None, 0, 1, 2.5, -0.0, True, "a", "b", (1, 2), [1.5, 2.5], [1, 2.5], ["a", "b"], {"a": 1}, b"c"),
        *([], [1, -2], [2**63 - 1, -(2**63)], [2**63], [True], (1.5,), [-0.0, float("nan")], [0.5] * 64, [0.5] * 65),
        *([7] * 64, [7] * 65),
    ]
)
METHODS = st.sampled_from(
    [
        *("value", "update", "get", "add", "add_all", "clear", "put", "put_all", "remove", "contains", "is_empty"),
        *("items", "keys", "values", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__"),
    ]
)


@settings(max_examples=examples(200))
@given(st.sampled_from(DESCRIPTORS), st.lists(st.tuples(METHODS, st.lists(VALUES, max_size=2)), max_size=12))
def the_handles_of_both_forms_do_the_same(descriptor: Any, operations: list[tuple[str, list[Any]]]) -> None:
    forms = []
    for own, types in ((handles, typed), (PLAIN["holdfast.state.cells.handles"], PLAIN["holdfast.state.cells.typed"])):
        current = own.CurrentRow()
        current.row = [0, None, None]
        forms.append((current, types.handle_class(own.HANDLES, descriptor)(current, 1, descriptor)))
    (first, one), (second, other) = forms
    for name, arguments in operations:
        if hasattr(other, name):
            mine, theirs = (outcome(form, name, arguments) for form in (one, other))
            assert repr(mine) == repr(theirs), name
        assert repr(first.row) == repr(second.row), name


RESULTS = (
    st.none() | st.lists(st.sampled_from([1, "a", (1, 2.5), (1, [2]), [3], {"a": 1}, None, ()]), max_size=4) | st.just(7)
)


@settings(max_examples=examples(50))
@given(st.lists(RESULTS, max_size=6), st.booleans())
def the_calls_of_both_forms_do_the_same(results: list[Any], reuse: bool) -> None:
    told = []
    for module, own in (
        (calls, handles),
        (PLAIN["holdfast.runtime.operators.calls"], PLAIN["holdfast.state.cells.handles"]),
    ):
        current, context, seen = own.CurrentRow(), SimpleNamespace(stamp=0), []
        out = Collector(same if reuse else copied)

        def function(value: Any, given: Any, seen: Any = seen, current: Any = current) -> Any:
            seen.append((value, given.stamp, current.key, current.row))
            return results[value]

        def fail(error: BaseException, value: Any, key: Any) -> Exception:
            return RuntimeError(f"{error} {value} {key}")

        elements = [(f"key {n}", n, n * 10, [n]) for n in range(len(results))]
        end = None
        try:
            module.call_each(function, context, elements, current, out, None, fail)
        except RuntimeError as error:
            end = str(error)
        told.append((seen, out.values, out.stamps, end))
    assert told[0] == told[1]


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2.5, "no number", (1,)])), max_size=8), st.booleans())
def the_reductions_and_maps_of_both_forms_do_the_same(given_elements: list[tuple[str, Any]], typed_values: bool) -> None:
    told = []
    for module, own in (
        (calls, handles),
        (PLAIN["holdfast.runtime.operators.calls"], PLAIN["holdfast.state.cells.handles"]),
    ):
        current = own.CurrentRow()
        rows: dict[str, list[Any]] = {"a": [0, None], "b": [0, None]}
        out, ends = Collector(copied), []

        def fail(error: BaseException, value: Any, key: Any) -> Exception:
            return RuntimeError(f"{error} {value} {key}")

        def take(out: Collector, result: Any, value: Any, stamp: int, current: Any = current) -> None:
            out.take([*result, value, current.key], stamp)

        try:
            elements = ((key, value, rows[key]) for key, value in given_elements)
            fit = float if typed_values else None
            ends.append(module.reduce_each(total, elements, current, 1, fit, copied, fail))
        except RuntimeError as error:
            ends.append(str(error))
        try:
            mapped = ((key, value, n, rows[key]) for n, (key, value) in enumerate(given_elements))
            module.take_each(
                lambda value: value if type(value) is tuple else [value], mapped, current, out, take, True, fail
            )
            module.take_each(lambda value: 7, [("a", 1, 1, rows["a"])], current, out, take, True, fail)
        except RuntimeError as error:
            ends.append(str(error))
        told.append((rows, ends, out.values, out.stamps))
    assert repr(told[0]) == repr(told[1])


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2.5, "no number"])), max_size=8), RESULTS, st.booleans()
)
def the_windows_of_both_forms_do_the_same(elements: list[tuple[str, Any]], results: Any, whole: bool) -> None:
    told = []
    for module, own in (
        (window_calls, handles),
        (PLAIN["holdfast.runtime.operators.windows.window_calls"], PLAIN["holdfast.state.cells.handles"]),
    ):
        rows: dict[str, list[Any]] = {"a": [0, None, None], "b": [1, None, None]}
        current, context, out, seen, brought = own.CurrentRow(), SimpleNamespace(bring=None), Collector(copied), [], []
        ends = []

        def function(key: str, second: Any, given: Any, current: Any = current, context: Any = context) -> Any:
            seen.append((key, second, given, current.key, current.row))  # noqa: B023
            context.bring = brought.append  # noqa: B023
            return results

        try:
            asked, values = [rows[key] for key, _ in elements], [value for _, value in elements]
            module.accumulate_each(int, total, 1, float if whole else None, asked, iter(values))
            module.reduce_rows(total, 2, None, asked, iter(values))
            held = [(key, row) for key, row in rows.items() if row[1] is not None]
            module.call_windows(
                function, "second", held, 1, whole, repr, None, context, current, out, 7, lambda error, key: ValueError(key)
            )
        except (TypeError, ValueError) as error:
            ends.append(type(error))
        told.append((rows, seen, brought, ends, out.values, out.stamps))
    assert repr(told[0]) == repr(told[1])


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), max_size=8), st.sampled_from([0, -(2**63), 2**62]))
def the_rows_and_parts_of_both_forms_are_the_same(elements: list[tuple[str, int]], first: int) -> None:
    told = []
    plain = PLAIN["holdfast.runtime.operators.windows.window_calls"], PLAIN["holdfast.state.rows.row_loading"]
    for windows, loading in ((window_calls, row_loading), plain):
        keys, times = [key for key, _ in elements], [first + at for _, at in elements]
        rows: dict[str, list[Any]] = {"a": [1, "x"], "c": [1, None]}
        noted: tuple[list[str], list[Any]] = ([], [])
        assert (loading.rows_of(rows, keys, None, [], []) is None) == ("b" in keys)
        rows = {"a": [1, "x"], "c": [1, None]}
        loaded = loading.rows_of(rows, keys, [0, None], *noted)
        assert all(row is rows[key] for key, row in zip(keys, loaded, strict=True))
        assert noted == (list(dict.fromkeys(keys)), [rows[key] for key in dict.fromkeys(keys)])
        parts = windows.cut_each(keys, elements, times, first, 10)
        for start, its_keys, values, its_times in parts:
            assert values == [each for each in elements if start <= first + each[1] < start + 10]
            assert (its_keys, its_times) == ([key for key, _ in values], [first + at for _, at in values])
        told.append((rows, loaded, parts, windows.filled_rows(rows, 1)))
    assert told[0] == told[1]


def the_tests_of_failing_functions_pass_in_plain_python(tmp_path: Path) -> None:
    chosen = "tests/engine/test_failing_functions.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-x", f"--basetemp={tmp_path / 'pytest'}", chosen]
    plain = {**os.environ, compiled.PURE: "1", "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


WHOLE = st.integers(-(2**70), 2**70) | st.integers(-9, 9)
PLAIN_FIELD = WHOLE | st.floats() | st.text(max_size=3) | st.sampled_from([True, None, "\0", "\ud800", b"a"])
FIELD = PLAIN_FIELD | st.sampled_from([(1,), [1]])
ROWS = st.lists(st.tuples(st.integers(0, 15), st.sampled_from([None, "x"]), st.sampled_from([None, "x"])), max_size=6)


@settings(max_examples=examples(50))
@given(ROWS, st.integers(0, 3), st.integers(0, 8))
def the_rows_parted_at_a_barrier_by_both_forms_are_the_same(held: list[tuple[Any, ...]], first: int, end: int) -> None:
    told: list[tuple[Any, ...]] = []
    for module in (row_loading, PLAIN["holdfast.state.rows.row_loading"]):
        rows = [[flags | TOUCHED, one, None, other] for flags, one, other in held]
        parts: list[list[Any]] = [[], [], [], []]
        module.part_rows([f"key {n}" for n in range(len(rows))], rows, first, end, True, *parts)
        told.append((rows, parts))
        assert all(row[0] < TOUCHED for row in rows[first:end])
        by_key = dict(enumerate([flags, one] for flags, one, _ in held))
        told[-1] += (module.unflushed_keys(by_key), module.untouched_keys(by_key, first))
    assert told[0] == told[1]
    assert told[0][2] == [key for key, (flags, *_) in enumerate(held) if flags & UNFLUSHED]
    assert told[0][3] == [key for key, (flags, *_) in enumerate(held) if not flags & TOUCHED][:first]


COLUMN = st.sampled_from([st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), PLAIN_FIELD, FIELD])
NAMES = st.lists(st.text(max_size=2) | st.sampled_from(["\0", "\ud800", 1]), min_size=3, max_size=3, unique=True)


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Any], list[int] | None, list[Any] | None]:
    """Values with timestamps and keys, which may be fields of the values."""
    count, kinds = draw(st.integers(1, 5)), draw(st.lists(COLUMN, min_size=1, max_size=3))
    columns = [draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    values: list[Any] = list(zip(*columns)) if draw(st.booleans()) else columns[0]
    if draw(st.booleans()):
        names = draw(NAMES)
        values = [dict(zip(names, row)) for row in zip(*columns)]
        if draw(st.booleans()):
            values[-1] = draw(st.sampled_from([{}, {"a": 1}, dict(reversed(values[-1].items())), (1,)]))
    whole = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count)
    stamps = draw(st.none() | whole | st.just([each for each in columns[-1] if type(each) is int and abs(each) < 2**63]))
    of_fields = st.lists(st.sampled_from(columns), min_size=1, max_size=3).map(lambda chosen: list(zip(*chosen)))
    others = st.lists(st.tuples(FIELD) | st.tuples(WHOLE, st.text(max_size=3)), min_size=count, max_size=count)
    keys = draw(st.none() | st.sampled_from(columns) | st.lists(FIELD, min_size=count, max_size=count) | of_fields | others)
    return values, None if stamps is None or len(stamps) < count else stamps, keys


@settings(max_examples=examples(300))
@given(records(), st.integers(-(2**63), 2**63 - 1))
def the_packed_frames_of_both_forms_hold_the_same_records(
    given_records: tuple[list[Any], list[int] | None, list[Any] | None], watermark: int
) -> None:
    plain = PLAIN["holdfast.runtime.records.frame_columns"]
    packed = frame_columns.pack_columns(watermark, *given_records)
    assert packed == plain.pack_columns(watermark, *given_records)
    frame = Frame(watermark, *given_records)
    received = decode_data(memoryview(encode_data(frame)))
    assert repr(received) == repr(frame)
    if packed is not None:
        assert packed[0] in frame_columns.PACKED
        for module in (frame_columns, plain):
            assert repr(module.unpack_columns(memoryview(packed))) == repr((watermark, *given_records))


def the_records_of_numbers_and_texts_are_packed() -> None:
    values = [(1, 2.5, "a"), (2, -0.0, ""), (3, float("inf"), "\u20ac")]
    keys, stamps = [each[0] for each in values], [5, 7, 6]
    packed = frame_columns.pack_columns(4, values, stamps, keys)
    assert packed is not None
    assert repr(frame_columns.unpack_columns(packed)) == repr((4, values, stamps, keys))
    both = [(text, each) for each, _, text in values]
    again = frame_columns.pack_columns(4, values, stamps, both)
    assert again is not None
    assert len(again) == len(packed) + 2  # the places of the keys' fields: they are not sent again
    assert repr(frame_columns.unpack_columns(again)) == repr((4, values, stamps, both))


def the_dictionaries_of_plain_values_are_packed() -> None:
    names = ("user", "amount", "note", "flag")
    values = [dict(zip(names, row)) for row in [("a", 2.5, None, True), ("b", 3, "x", False), ("a", 2**70, "\0", True)]]
    keys, stamps = [each["user"] for each in values], [5, 7, 6]
    packed = frame_columns.pack_columns(4, values, stamps, keys)
    assert packed is not None
    assert repr(frame_columns.unpack_columns(packed)) == repr((4, values, stamps, keys))
    assert frame_columns.pack_columns(4, [*values, {"user": "c"}], None, None) is None
    shared = [1]  # in two fields of a record, which must stay one object
    assert frame_columns.pack_columns(4, [{"a": shared, "b": shared}], None, None) is None


@settings(max_examples=examples(100))
@given(
    st.lists(WHOLE | st.integers(-(2**63), 2**63 - 1)), st.sampled_from([(128, 2), (128, 3), (100, 7), (1, 1), (32768, 32)])
)
def the_owners_of_integers_are_those_of_their_key_groups(keys: list[int], widths: tuple[int, int]) -> None:
    most, count = widths
    owners = [key_group(key, most) * count // most for key in keys]
    assert group_assigner(most, count)(keys) == owners
    for module in (key_owners, PLAIN["holdfast.state.keys.key_owners"]):
        with contextlib.suppress(OverflowError):
            assert module.integer_owners(keys, most, count) == owners
        assert module.integer_owners([*keys[:0], True], most, count) is None


@settings(max_examples=examples(100))
@given(st.lists(st.text(st.characters(), max_size=40)), st.sampled_from([(128, 2), (100, 7), (1, 1), (32768, 32)]))
def the_owners_of_strings_are_those_of_their_key_groups(keys: list[str], widths: tuple[int, int]) -> None:
    most, count = widths
    owners = [key_group(key, most) * count // most for key in keys]
    assert group_assigner(most, count)(keys) == owners
    assert group_assigner(most, count)([*keys, "\ud800"])[: len(keys)] == owners  # a lone surrogate is no UTF-8
    assert group_assigner(most, count)([*keys, 7])[: len(keys)] == owners
    for module in (key_owners, PLAIN["holdfast.state.keys.key_owners"]):
        if any("\ud800" <= each <= "\udfff" for key in keys for each in key):
            with pytest.raises(UnicodeEncodeError):
                module.string_owners(keys, xxhash.xxh3_64_intdigest, most, count)
            continue
        assert module.string_owners(keys, xxhash.xxh3_64_intdigest, most, count) == owners
        assert module.string_owners([*keys, 7], xxhash.xxh3_64_intdigest, most, count) is None


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 300), st.text(max_size=1), st.integers())))
def the_parts_of_both_forms_are_the_same(rows: list[tuple[int, str, int]]) -> None:
    targets, texts, numbers = [[row[field] for row in rows] for field in range(3)]
    expected = {
        target: [[text for at, text, _ in rows if at == target], [number for at, _, number in rows if at == target]]
        for target in dict.fromkeys(targets)
    }
    for module in (positions, PLAIN["holdfast.common.formats.positions"]):
        assert module.part_by(targets, [texts, numbers]) == expected


@settings(max_examples=examples(100))
@given(st.lists(st.integers(-(2**63) - 1, 2**63) | st.sampled_from([-(2**63), 2**63 - 1]), min_size=1), st.binary())
def the_scans_of_both_forms_give_the_same_answers(numbers: list[int], text: bytes) -> None:
    fits = all(-(2**63) <= number < 2**63 for number in numbers)
    for module in (scans, PLAIN["holdfast.common.formats.scans"]):
        assert module.are_timestamps(numbers) is fits
        assert not any(module.are_timestamps([*numbers, other]) for other in (True, 1.0, None, "1"))
        if fits:
            assert module.highest(numbers) == max(numbers)
        assert (module.has_none(numbers), module.has_none([*numbers, None])) == (False, True)
    assert PLAIN["holdfast.runtime.records.frame_columns"]._nuls(text) == text.count(0)


@settings(max_examples=examples(100))
@given(st.lists(st.lists(WHOLE | st.text(max_size=3) | FIELD.filter(lambda each: type(each) is not list), max_size=3)))
def the_owners_of_tuples_are_those_of_their_key_groups(given_keys: list[list[Any]]) -> None:
    keys = [tuple(key) for key in given_keys if all(each == each for each in key)]
    owners = [key_group(key, 128) * 3 // 128 for key in keys]
    assign = group_assigner(128, 3)
    assert assign(keys) == assign(keys) == owners
    for key in keys:
        assert assign([key]) == [key_group(key, 128) * 3 // 128]
    plain = PLAIN["holdfast.state.keys.key_owners"]
    assert key_owners.all_plain_tuples(keys) == plain.all_plain_tuples(keys)
    digests = [hash(key) % 2**64 for key in keys]
    assert key_owners.owners_of_digests(digests, 128, 3) == plain.owners_of_digests(digests, 128, 3)


@settings(max_examples=examples(50))
@given(
    st.lists(st.integers(0, 9), max_size=9, unique=True), st.integers(0, 10), st.booleans(), st.integers(1, 9), st.booleans()
)
def the_ranks_of_both_forms_are_the_same(orders: list[int], order: int, descending: bool, most: int, tuples: bool) -> None:
    for ranked in (True, False):
        told = []
        for module in (ranked_rows, PLAIN["holdfast.datastream.operations.ranked_rows"]):
            best = [(each, None, (each, "a") if tuples else each) for each in sorted(orders, reverse=descending)][:most]
            state = SimpleNamespace(held=best or None)
            state.value, state.update = (lambda state=state: state.held), functools.partial(setattr, state, "held")
            element = (order, "new") if tuples else order
            rows = module.enter(
                state, order, element, most, descending, ranked, lambda i, each, kind: Row.of_kind(kind, each[2], i + 1)
            )
            told.append((state.held, [(type(row), row.get_row_kind(), list(row), row._fields) for row in rows]))
        assert told[0] == told[1]
        kept = [each[0] for each in told[0][0]]
        everything = sorted(orders, reverse=descending)[:most]
        places = [n for n, each in enumerate(everything) if (order > each if descending else order < each)]
        everything.insert(min(places, default=len(everything)), order)
        assert kept == everything[:most]
