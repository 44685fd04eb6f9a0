"""The stored form of keys. Keys that are equal in Python (``1 == 1.0 == Decimal(1)``, as in a dict) share one form.

Every key is reduced to the canonical one of its equals, so storage returns 1 for True, a tuple for a named tuple, and a UTC
time for an aware datetime. Keys of a class whose equality is unknown are refused.
"""

from __future__ import annotations

import dataclasses
import io
import operator
import pickle
import sys
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from ipaddress import IPv4Address, IPv6Address
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from holdfast.common.types import Row, RowKind
from holdfast.errors import IncompatibleState
from holdfast.state.keys.key_owners import all_plain_tuples

__all__ = [
    "canonical_core",
    "comparable_keys",
    "decode_key",
    "decode_keys",
    "encode_core",
    "encode_each",
    "encode_entry",
    "encode_key",
    "encode_keys",
    "have_plain_form",
]

_PICKLED = 1
"""msgpack extension code for keys of built-in classes without an exact msgpack form."""
_FROZENSET = 2
"""... for frozensets: their elements in order of stored form."""
_FRACTION = 3
"""... for fractions that are not decimals: numerator, denominator."""
_INSTANT = 4
"""... for aware datetimes: microseconds since 1970."""
_DATACLASS = 5
"""... for dataclasses: module, name, and the fields by name."""
_ENUM = 6
"""... for enum members: module, name, and the member's name (for a flag, its value)."""
_ROW = 7
"""... for rows: kind, field names, values."""
_PLAIN = {int, str, bytes}
_LISTS, _TUPLES = {list}, {tuple}
_NESTED = {list, dict}
_CORE = {int, str, bytes, float, tuple, type(None), msgspec.msgpack.Ext}
_MOST_PLACES = 10_000
"""Limit of a decimal key's zeros or decimal places: the number is written out in full."""
_encode = msgspec.msgpack.Encoder().encode
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)

Ext = msgspec.msgpack.Ext


# ---- from a key to its stored form -----------------------------------------------------------------------------------


def _canonical(key: Any) -> Any:
    """The canonical key of all keys equal to this one, as data that msgpack can encode; tuples stay tuples."""
    kind = type(key)
    if kind is str:
        return key if _has_utf8(key) else _pickled(key)
    if kind is bytes or key is None:
        return key
    if kind is int:
        return key if -(2**63) <= key < 2**64 else _pickled(key)
    if kind is float:
        return _canonical(int(key)) if key.is_integer() else _check_equal(key)
    if kind is tuple:
        return tuple(map(_canonical, key))
    simpler = _simplifier(kind)(key)
    return simpler if type(simpler) is Ext else _canonical(simpler)


def canonical_core(key: Any) -> Any:
    """Reduce a key to an equal int, str, bytes, float, tuple or None, or else to its stored form.

    Raises:
        TypeError: the key does not equal itself, or its class has unknown equality.
    """
    core = key
    while type(core) not in _CORE:
        core = _simplifier(type(core))(core)
    return int(core) if type(core) is float and core.is_integer() else core


def _simplifier(kind: type) -> Callable[[Any], Any]:
    """The function that reduces keys of a class: to an equal key of a simpler class, or to the stored form."""
    found = _simplifiers.get(kind)
    if found is None:
        found = _simplifiers[kind] = _find_simplifier(kind)
    return found


def _find_simplifier(kind: type) -> Callable[[Any], Any]:
    if kind.__module__ == "numpy":
        return _of_numpy
    for base, simpler in _SIMPLER.items():
        if issubclass(kind, base) and _equality(kind) == _equality(base):
            return simpler
    if issubclass(kind, Enum) and _equality(kind)[0] is object.__eq__:
        _check_lasting(kind)
        return _of_enum
    names = _compared_fields(kind)
    if names is not None:
        _check_lasting(kind)
        where = [kind.__module__, kind.__qualname__]
        return lambda key: Ext(_DATACLASS, _encode([*where, {name: _canonical(getattr(key, name)) for name in names}]))
    return _refuse


def _equality(kind: type) -> tuple[Any, Any]:
    """The functions that define which objects equal one of this class; a subclass may override them."""
    return kind.__eq__, kind.__hash__


def _refuse(key: Any) -> Any:
    raise TypeError(
        f"a {type(key).__qualname__} cannot be a key, or be in one: its equality is unknown, so equal keys would have no "
        "common stored form. Use a string, a tuple of its fields, a named tuple, or a dataclass with frozen=True "
        f"whose fields are all compared: {key!r:.200}"
    )


def _check_lasting(kind: type) -> None:
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        inside = "in the main module" if kind.__module__ == "__main__" else "within a function"
        raise TypeError(
            f"a key of class {kind.__qualname__}, which is defined {inside}, has no lasting identity: "
            "use a tuple or a string, or move the class to a module of its own"
        )


def _check_equal(key: Any) -> Any:
    if key != key:
        raise TypeError(f"{key!r} cannot be a key, or be in one: it does not equal itself, so its state would not be found")
    return key


def _has_utf8(text: str) -> bool:
    """Whether the text has a UTF-8 form; lone surrogates have none."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _pickled(key: Any) -> Ext:
    """Pickle a key of a built-in class to the same bytes for equal content in every process."""
    data = io.BytesIO()
    pickler = pickle.Pickler(data, 5)
    pickler.fast = True  # no memo: the bytes must not depend on which parts are the same object
    pickler.dump(key)
    return Ext(_PICKLED, data.getvalue())


def _of_numpy(key: Any) -> Any:
    plain = key.item() if key.dtype.kind in "biufcSU" else key
    # The item of a NumPy long double is another long double; that of a time may be a number without its unit.
    return _refuse(key) if type(plain).__module__ == "numpy" else plain


def _of_complex(key: complex) -> Any:
    if key.imag == 0:
        return key.real
    return _pickled(complex(_check_equal(key).real + 0.0, key.imag))  # -0.0 == 0.0


def _of_decimal(key: Decimal) -> Any:
    if not key.is_finite():
        return float(_check_equal(key))
    if not key:
        return 0
    exact = Context(prec=len(key.as_tuple().digits), Emax=MAX_EMAX, Emin=MIN_EMIN)
    normal = key.normalize(exact)
    exponent = normal.as_tuple().exponent
    assert isinstance(exponent, int)
    _check_places(key, abs(exponent))
    return _rational(*normal.as_integer_ratio())


def _check_places(key: Any, places: int) -> None:
    if places > _MOST_PLACES:
        raise TypeError(f"a number with {places} zeros or decimal places cannot be a key, or be in one: round it first")


def _rational(numerator: int, denominator: int) -> Any:
    """Convert the number to the first exact one of int, float, Decimal and fraction."""
    if denominator == 1:
        return numerator
    try:
        nearest = numerator / denominator
        if nearest.as_integer_ratio() == (numerator, denominator):
            return nearest
    except OverflowError:
        pass  # too large for a float
    rest, places = denominator, [0, 0]
    for i, prime in enumerate((2, 5)):
        while rest % prime == 0:
            rest //= prime
            places[i] += 1
    if rest > 1:
        return Ext(_FRACTION, _encode([_canonical(numerator), _canonical(denominator)]))
    _check_places(numerator, max(places))
    digits = Decimal(abs(numerator) * 10 ** max(places) // denominator).as_tuple().digits
    return _pickled(Decimal((int(numerator < 0), digits, -max(places))))


def _of_datetime(key: datetime) -> Any:
    first = key.replace(fold=0)  # fold=0: Python's == ignores fold for repeated local times
    offset = first.utcoffset()
    local = datetime(key.year, key.month, key.day, key.hour, key.minute, key.second, key.microsecond)
    if offset is None:
        return _pickled(local)
    since = (local - _EPOCH - offset) // _MICROSECOND
    try:
        _EPOCH + timedelta(microseconds=since)
    except OverflowError:
        raise TypeError(f"{key!r} cannot be a key, or be in one: in UTC it is not in the years 1 to 9999") from None
    return Ext(_INSTANT, _encode(since))


def _of_time(key: time) -> Any:
    if key.utcoffset() is not None:
        raise TypeError(f"{key!r} cannot be a key, or be in one: make it a time without a zone (key.replace(tzinfo=None))")
    return _pickled(time(key.hour, key.minute, key.second, key.microsecond))


def _of_enum(key: Enum) -> Any:
    kind = type(key)
    member = _canonical(key.value) if isinstance(key, Flag) else key.name
    return Ext(_ENUM, _encode([kind.__module__, kind.__qualname__, member]))


def _of_row(key: Row) -> Any:
    return Ext(_ROW, _encode([key._row_kind.value, key._names(), list(map(_canonical, key._values))]))


def _compared_fields(kind: type) -> list[str] | None:
    """The names of a dataclass's fields, if its equality is generated and compares all of them."""
    owner = next((c for c in kind.__mro__ if "__eq__" in c.__dict__), object)
    code = getattr(owner.__dict__["__eq__"], "__code__", None)
    if "__dataclass_fields__" not in owner.__dict__ or code is None or code.co_filename != "<string>":
        return None
    compared = [f.name for f in dataclasses.fields(owner) if f.compare]
    return compared if compared == [f.name for f in dataclasses.fields(kind)] else None


_SIMPLER: dict[type, Callable[[Any], Any]] = {
    int: lambda key: int.__add__(key, 0),  # bypass conversions that a subclass overrides
    float: lambda key: float.__add__(key, 0.0),
    complex: _of_complex,
    str: str.__str__,
    bytes: lambda key: memoryview(key).tobytes(),
    tuple: lambda key: tuple(tuple.__iter__(key)),
    frozenset: lambda key: Ext(_FROZENSET, _encode(sorted(map(encode_key, frozenset.__iter__(key))))),
    Decimal: _of_decimal,
    Fraction: lambda key: _rational(key.numerator, key.denominator),
    datetime: _of_datetime,
    date: lambda key: _pickled(date(key.year, key.month, key.day)),
    time: _of_time,
    timedelta: lambda key: _pickled(timedelta(key.days, key.seconds, key.microseconds)),
    uuid.UUID: lambda key: _pickled(uuid.UUID(int=key.int)),
    IPv4Address: lambda key: _pickled(IPv4Address(str(key))),
    IPv6Address: lambda key: _pickled(IPv6Address(str(key))),
    Row: _of_row,
}


_simplifiers: dict[type, Callable[[Any], Any]] = {}


# ---- and back --------------------------------------------------------------------------------------------------------


def _ext(code: int, data: memoryview) -> Any:
    if code == _PICKLED:
        try:
            return pickle.loads(data)
        except Exception as error:  # pickle may raise anything
            raise ValueError(f"a stored key cannot be read: {error!r}") from error
    if code == _FROZENSET:
        return frozenset(map(decode_key, _decode(data)))
    if code == _FRACTION:
        return Fraction(*_decode(data))
    if code == _INSTANT:
        return (_EPOCH + timedelta(microseconds=_decode(data))).replace(tzinfo=timezone.utc)
    if code == _DATACLASS:
        module, name, fields = _decode(data)
        kind = _class(module, name)
        key = object.__new__(kind)
        for field, value in fields.items():
            object.__setattr__(key, field, _tuples(value))
        return key
    if code == _ENUM:
        module, name, member = _decode(data)
        kind = _class(module, name)
        try:
            return kind[member] if isinstance(member, str) else kind(member)
        except (KeyError, ValueError) as error:
            raise IncompatibleState(
                f"stored keys are {member!r} of {module}.{name}, which has no such member. Put it back, or start the job "
                "without its state"
            ) from error
    if code == _ROW:
        row_kind, names, values = _decode(data)
        return Row.of_values(list(map(_tuples, values)), names, RowKind(row_kind))
    raise ValueError(f"unknown extension {code} in a stored key")


@lru_cache(maxsize=1024)
def _class(module: str, name: str) -> Any:
    try:
        found: Any = sys.modules.get(module) or import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise IncompatibleState(
            f"stored keys are of class {module}.{name}, which is not found: {error}. Put the class back, or start the "
            "job without its state"
        ) from error
    return found


_decode = msgspec.msgpack.Decoder(ext_hook=_ext).decode


def encode_key(key: Any) -> bytes:
    """Encode a key.

    >>> encode_key(1) == encode_key(True) == encode_key(1.0) == encode_key(Decimal(1))
    True

    Raises:
        TypeError: the key does not equal itself, or its class has unknown equality.
    """
    return _encode(_canonical(key))


def encode_each(keys: Sequence[Any]) -> list[bytes]:
    """Encode several keys.

    >>> encode_each([1, True, "a"]) == [encode_key(1), encode_key(1), encode_key("a")]
    True

    Raises:
        TypeError: as `encode_key`.
    """
    if have_plain_form(keys):
        try:
            return list(map(_encode, keys))
        except (OverflowError, UnicodeEncodeError):
            pass  # an integer beyond 64 bits or a lone surrogate: encode each key in canonical form
    return list(map(encode_key, keys))


def comparable_keys(keys: list[Any]) -> list[Any]:
    """The same keys, but times in two zones that are the same instant become equal, because they share one stored form.

    In the hour that a zone's clocks show twice or skip, Python does not treat them as equal (PEP 495): such a time is
    replaced by that in UTC. A list that starts with a string or an integer is not searched.
    """
    if not keys or type(keys[0]) in _PLAIN or have_plain_form(keys):
        return keys
    kinds = set(map(type, keys))
    if kinds == _TUPLES:
        kinds = set(map(type, chain.from_iterable(keys)))
    return list(map(_comparable, keys)) if any(issubclass(kind, (datetime, tuple)) for kind in kinds) else keys


def _comparable(key: Any) -> Any:
    if isinstance(key, datetime) and key.tzinfo is not None:
        first, second = key.replace(fold=0), key.replace(fold=1)
        return key if first.utcoffset() == second.utcoffset() else first.astimezone(timezone.utc)
    if type(key) is tuple:
        parts = tuple(map(_comparable, key))
        return key if all(map(operator.is_, parts, key)) else parts
    return key


def encode_entry(key: Any) -> bytes:
    """Encode a key of a map. As in a dict, times in two zones are equal if they are the same instant.

    In the hour that a zone's clocks show twice or skip, they equal only times of their own zone (PEP 495).

    Raises:
        TypeError: as `encode_key`, or the zone of such a time has no name.
    """
    return _encode(_in_map(key)) if isinstance(key, (datetime, tuple)) else encode_key(key)


def _in_map(key: Any) -> Any:
    if isinstance(key, tuple) and _equality(type(key)) == _equality(tuple):
        return tuple(map(_in_map, tuple.__iter__(key)))
    if not isinstance(key, datetime) or key.tzinfo is None:
        return _canonical(key)
    first = key.replace(fold=0)
    if first.utcoffset() == key.replace(fold=1).utcoffset():
        return _canonical(key)
    if type(key.tzinfo) is not ZoneInfo or key.tzinfo.key is None:
        raise TypeError(f"{key!r} has no canonical form: its zone is no ZoneInfo")
    return _pickled(first)


def encode_core(core: Any) -> bytes:
    """Encode a result of `canonical_core`."""
    return _encode(core if type(core) is Ext else _canonical(core))


def have_plain_form(keys: Collection[Any]) -> bool:
    """Whether msgpack's form of these keys, if any, is canonical: not for integers beyond 64 bits or lone surrogates."""
    kinds = set(map(type, keys))
    return kinds <= _PLAIN or (kinds == _TUPLES and all_plain_tuples(list(keys)))


def encode_keys(keys: Sequence[Any]) -> bytes:
    """Encode keys as one msgpack array."""
    if have_plain_form(keys):
        try:
            return _encode(keys)
        except (OverflowError, UnicodeEncodeError):
            pass  # an integer beyond 64 bits or a lone surrogate: encode each key in canonical form
    return _encode([_canonical(key) for key in keys])


def _tuples(key: Any) -> Any:
    if type(key) is dict:
        raise ValueError("a map is no stored key")
    return tuple(map(_tuples, key)) if type(key) is list else key


def decode_key(data: bytes) -> Any:
    """Decode a key; returns the canonical key."""
    return _tuples(_decode(data))


def decode_keys(data: bytes | memoryview) -> list[Any]:
    """Decode a list of keys; returns the canonical keys.

    Raises:
        ValueError, TypeError, msgspec.MsgspecError: the data are no such list.
    """
    keys = _decode(data)
    if type(keys) is not list:
        raise ValueError("no list of stored keys")
    kinds = set(map(type, keys))
    if kinds == _LISTS and _NESTED.isdisjoint(map(type, chain.from_iterable(keys))):
        return list(map(tuple, keys))
    return keys if _NESTED.isdisjoint(kinds) else [_tuples(key) for key in keys]
