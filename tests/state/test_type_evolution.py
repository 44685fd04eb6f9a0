"""Evolution of types: random pairs of types against a plain model of their values."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Row, Types
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.evolution import Unfit, evolution, same_type

Model = Callable[[Any], Any]


class Case(NamedTuple):
    """A stored type, the declared one, a value of the first, and the same value as the second must show it."""

    stored: TypeInformation
    declared: TypeInformation
    value: Any
    expected: Any


INTEGERS = [("BYTE", 7), ("SHORT", 15), ("INT", 31), ("LONG", 63)]


@st.composite
def numbers(draw):
    n = draw(st.integers(0, 3))
    kind, bits = INTEGERS[n]
    value = draw(st.integers(-(2**bits), 2**bits - 1))
    to = draw(st.sampled_from([each for each, _ in INTEGERS[n:]] + ["BIG_INT", "BIG_DEC", "DOUBLE"]))
    declared = getattr(Types, to)()
    if to == "DOUBLE":
        value = min(int(float(value)), 2 ** (bits - 1))  # not rounded
    return Case(getattr(Types, kind)(), declared, value, declared.conform(value))


@st.composite
def texts(draw):
    value = draw(st.characters(exclude_categories=["Cs"]))
    return Case(Types.CHAR(), draw(st.sampled_from([Types.CHAR(), Types.STRING()])), value, value)


def lists(inner):
    @st.composite
    def make(draw):
        case = draw(inner)
        return Case(Types.LIST(case.stored), Types.LIST(case.declared), [case.value, None], [case.expected, None])

    return make()


def tuples(inner):
    @st.composite
    def make(draw):
        fields = draw(st.lists(inner, min_size=1, max_size=3))
        stored, declared = Types.TUPLE([f.stored for f in fields]), Types.TUPLE([f.declared for f in fields])
        return Case(stored, declared, tuple(f.value for f in fields), tuple(f.expected for f in fields))

    return make()


def maps(inner):
    @st.composite
    def make(draw):
        case = draw(inner)
        key, keyed = draw(st.sampled_from([(Types.LONG(), 7), (Types.TUPLE([Types.BIG_INT()]), (7,))]))
        stored, declared = Types.MAP(key, case.stored), Types.MAP(key, case.declared)
        return Case(stored, declared, {keyed: case.value}, {keyed: case.expected})

    return make()


def rows(inner):
    @st.composite
    def make(draw):
        kept = draw(st.lists(inner, min_size=1, max_size=3))
        removed, added = draw(st.lists(inner, max_size=2)), draw(st.lists(inner, max_size=2))
        renamed = [draw(st.booleans()) for _ in kept]
        old = [(f"k{n}", case.stored, case.value) for n, case in enumerate(kept)]
        old += [(f"r{n}", case.stored, case.value) for n, case in enumerate(removed)]
        new = [(f"n{n}" if to else f"k{n}", case.declared, case.expected) for (n, case), to in zip(enumerate(kept), renamed)]
        with_default = [draw(st.booleans()) for _ in added]
        new += [
            (f"a{n}", case.declared, case.expected if default else None)
            for (n, case), default in zip(enumerate(added), with_default)
        ]
        old, new = draw(st.permutations(old)), draw(st.permutations(new))
        stored = Types.ROW_NAMED([name for name, _, _ in old], [each for _, each, _ in old])
        declared = Types.ROW_NAMED([name for name, _, _ in new], [each for _, each, _ in new])
        declared = declared.with_aliases({f"n{n}": f"k{n}" for n, to in enumerate(renamed) if to})
        declared = declared.with_defaults({f"a{n}": added[n].expected for n, given in enumerate(with_default) if given})
        return Case(
            stored,
            declared,
            Row(**{name: value for name, _, value in old}),
            Row(**{name: value for name, _, value in new}),
        )

    return make()


cases = st.recursive(
    numbers() | texts(), lambda inner: lists(inner) | tuples(inner) | maps(inner) | rows(inner), max_leaves=6
)


def as_stored(form: Any, declared: TypeInformation) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(form), type=declared.annotation)


@given(cases)
def a_value_reads_as_the_model_says(case: Case):
    found = evolution(case.stored.to_dict(), case.declared.to_dict())
    form = as_stored(case.stored.encode(case.stored.conform(case.value)), case.stored)
    form = form if found.convert is None else found.convert(form)
    assert case.declared.decode(as_stored(form, case.declared)) == case.expected
    assert case.declared.decode(form) == case.expected
    again = evolution(case.declared.to_dict(), case.declared.to_dict())
    assert again == ((), None)


@given(cases)
def test_what_does_not_change_costs_nothing(case: Case):
    assert evolution(case.stored.to_dict(), pickle.loads(pickle.dumps(case.stored)).to_dict()) == ((), None)
    if not evolution(case.stored.to_dict(), case.declared.to_dict()).changes:
        assert same_type(case.stored.to_dict(), case.declared.to_dict())


ID = Types.ROW_NAMED(["id"], [Types.LONG()])


@pytest.mark.parametrize(
    ("stored", "declared", "reason"),
    [
        (Types.LONG(), Types.INT(), "LONG cannot become INT"),
        (Types.DOUBLE(), Types.LONG(), "DOUBLE cannot become LONG"),
        (Types.STRING(), Types.LONG(), "STRING cannot become LONG"),
        (Types.MAP(Types.INT(), Types.INT()), Types.MAP(Types.LONG(), Types.INT()), "key type INT cannot become LONG"),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.INT(), Types.INT()]), "keeps its number of fields"),
        (Types.ROW([Types.INT()]), Types.ROW([Types.INT(), Types.INT()]), "without names keeps its number of fields"),
        (Types.LIST(Types.STRING()), Types.LIST(Types.LONG()), "element: STRING cannot become LONG"),
        (ID, Types.ROW_NAMED(["key"], [Types.LONG()]), "no field is common"),
        (ID, Types.ROW_NAMED(["id"], [Types.STRING()]), "field id: LONG cannot become STRING"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.PRIMITIVE_ARRAY(Types.INT()), "array of bytes"),
    ],
    ids=repr,
)
def test_an_evolution_that_would_lose_or_guess_values_is_refused(stored, declared, reason):
    with pytest.raises(Unfit, match=reason):
        evolution(stored.to_dict(), declared.to_dict())


@dataclass
class Item:
    name: str
    count: int = 1


@dataclass(frozen=True)
class Order:
    id: int
    items: list[Item] = field(default_factory=list)
    note: str | None = None


class Point(NamedTuple):
    x: float
    y: float = 0.5


def a_dataclass_of_the_main_file_has_the_defaults_that_it_declares():
    """It reaches the workers by value, with a copy of `dataclasses.MISSING`."""
    main: dict[str, Any] = {"__name__": "__main__"}
    exec("from dataclasses import dataclass\n@dataclass\nclass Paid:\n    shop: str\n    amount: int = 3", main)
    worker = (
        "import pickle, sys\nfrom holdfast.common import Types\npaid = pickle.load(sys.stdin.buffer)\n"
        "declared = Types.POJO(paid)\nprint(declared.encode(paid('tea')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", worker], input=cloudpickle.dumps(main["Paid"]), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "tea" in done.stdout.decode()


@pytest.mark.parametrize(
    "value",
    [Item("a", 2), Order(1, [Item("b")], None), Order(2**40), Point(1.0, 2.0)],
    ids=lambda value: type(value).__name__,
)
def a_dataclass_or_named_tuple_is_stored_by_the_names_of_its_fields(value):
    declared = pickle.loads(cloudpickle.dumps(Types.POJO(type(value))))
    assert declared.conform(value) == value
    read = declared.decode(as_stored(declared.encode(value), declared))
    assert read == value
    assert type(read) is type(value)
    assert declared == TypeInformation.from_dict(msgspec.msgpack.decode(msgspec.msgpack.encode(declared.to_dict())))


def a_value_of_another_class_or_field_type_is_refused():
    with pytest.raises(TypeError, match="POJO"):
        Types.POJO(Item).conform(Point(1.0))
    with pytest.raises(TypeError, match="field name"):
        Types.POJO(Item).conform(Item(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a dataclass or a NamedTuple"):
        Types.POJO(int)


def test_fields_that_a_class_has_gained_lost_renamed_and_widened_are_migrated():
    @dataclass
    class Before:
        total: int
        gone: str
        x: float

    @dataclass
    class After:
        x: float
        amount: float
        tags: list[str] = field(default_factory=lambda: ["new"])
        place: Point = Point(3.0)  # noqa: RUF009

    stored, declared = Types.POJO(Before), Types.POJO(After).with_aliases({"amount": "total"})
    found = evolution(stored.to_dict(), declared.to_dict())
    assert found.changes == (
        "field total is renamed to amount",
        "field amount: LONG becomes DOUBLE",
        "field tags is added",
        "field place is added",
        "field gone is removed",
    )
    assert declared.decode(found.convert(stored.encode(Before(7, "x", 1.5)))) == After(1.5, 7.0, ["new"], Point(3.0))
    row = Types.ROW_NAMED(["x", "amount"], [Types.DOUBLE(), Types.DOUBLE()])
    to_row = evolution(declared.to_dict(), row.to_dict())
    assert row.decode(to_row.convert(declared.encode(After(1.5, 7.0)))) == Row(x=1.5, amount=7.0)


def test_one_old_field_does_not_become_two_new_ones():
    stored = Types.ROW_NAMED(["a"], [Types.LONG()])
    both = Types.ROW_NAMED(["b", "a"], [Types.LONG(), Types.LONG()]).with_aliases({"b": "a"})
    with pytest.raises(Unfit, match="field a would become both b and a"):
        evolution(stored.to_dict(), both.to_dict())
    with pytest.raises(ValueError, match="'a' is an alias of both 'b' and 'c'"):
        Types.ROW_NAMED(["b", "c"], [Types.LONG(), Types.LONG()]).with_aliases({"b": "a", "c": "a"})
    renamed = Types.ROW_NAMED(["b"], [Types.LONG()])
    found = evolution(renamed.to_dict(), both.to_dict())  # once it is renamed, its old name is free
    assert both.decode(found.convert(renamed.encode(Row(b=7)))) == Row(b=7, a=None)


@pytest.mark.parametrize("aliases", [{"a": "b", "b": "a"}, {"a": "b", "b": ["x", "c"], "c": "a"}])
def test_fields_that_exchange_their_names_are_refused(aliases):
    declared = Types.ROW_NAMED(["a", "b", "c"], [Types.LONG()] * 3)
    with pytest.raises(ValueError, match="exchange their names"):
        declared.with_aliases(aliases)
    assert declared.with_aliases({"a": "b", "b": "x"}) == declared


@pytest.mark.parametrize(("declared", "number"), [(Types.DOUBLE(), (1 << 53) + 1), (Types.FLOAT(), (1 << 24) + 1)])
def a_whole_number_is_not_rounded_when_its_type_changes(declared, number):
    found = evolution(Types.LONG().to_dict(), declared.to_dict())
    assert found.convert(number - 1) == number - 1
    with pytest.raises(ValueError, match=f"{declared.to_dict()['type']} would round {number} to"):
        found.convert(number)


def a_new_field_of_a_class_needs_a_default():
    @dataclass
    class Old:
        x: int

    @dataclass
    class New:
        x: int
        y: int

    with pytest.raises(Unfit, match="field y is new and has no default"):
        evolution(Types.POJO(Old).to_dict(), Types.POJO(New).to_dict())


def a_snapshot_of_a_class_that_is_gone_reads_rows():
    snapshot = Types.POJO(Item).to_dict() | {"class": "no.such.module:Item"}
    declared = TypeInformation.from_dict(snapshot)
    assert declared.decode(Types.POJO(Item).encode(Item("a", 2))) == Row(name="a", count=2)


def test_aliases_and_defaults_are_for_fields_that_exist():
    with pytest.raises(ValueError, match="no field"):
        ID.with_aliases({"other": "id"})
    with pytest.raises(ValueError, match="no field"):
        ID.with_defaults({"other": 1})
    with pytest.raises(TypeError, match="default of field id"):
        ID.with_defaults({"id": "text"})
    with pytest.raises(ValueError, match="no field names"):
        Types.ROW([Types.LONG()]).with_defaults({"f0": 1})
    assert pickle.loads(pickle.dumps(Types.LIST(ID.with_defaults({"id": 5})))).to_dict()["element"]["defaults"] == {"id": 5}
