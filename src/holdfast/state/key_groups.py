"""Key groups: the unit in which keyed state is spread over subtasks.

Keys are equal when Python says so (``1 == 1.0 == True``, as in a dict). A key's group comes from a hash of its canonical
form, so it is the same in every process, on every host and in every Python version.

Numbers, strings, bytes, None and tuples of these (and NumPy's scalars, which become plain ones) have an exact stored
form. Any other hashable object is pickled: two of them are the same key if they have the same class and content.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import msgspec
import xxhash

__all__ = [
    "KeyGroupRange",
    "decode_key",
    "decode_keys",
    "encode_key",
    "encode_keys",
    "group_assigner",
    "key_group",
    "key_group_range",
]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_PICKLED = 1
"""msgpack extension code of keys that msgpack has no exact form for."""
_FROZENSET = 2
"""msgpack extension code of frozensets: their elements in the order of their stored forms."""
_PLAIN = {int, str, bytes}


@dataclass(frozen=True)
class KeyGroupRange:
    """The contiguous key groups ``[first, last]`` of one subtask."""

    first: int
    last: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups of a subtask: those that ``group * parallelism // max_parallelism`` maps to it.

    >>> key_group_range(128, 3, 0), key_group_range(128, 3, 2)
    (KeyGroupRange(first=0, last=42), KeyGroupRange(first=86, last=127))
    """
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def _check_lasting(key: Any) -> None:
    if type(key).__module__ == "__main__":
        raise TypeError(
            f"a key of class {type(key).__qualname__}, which is defined in the main module, has no lasting identity: "
            "use a tuple or a string, or move the class to a module of its own"
        )


def _check_equal(key: Any) -> Any:
    if key != key:
        raise TypeError(f"{key!r} cannot be a key, or be in one: it does not equal itself, so its state would not be found")
    return key


def _has_utf8(text: str) -> bool:
    """Whether the text can be written as UTF-8, which lone surrogates cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _pickled(key: Any) -> msgspec.msgpack.Ext:
    """The key by pickle, the same bytes for the same content in every process."""
    _check_lasting(key)
    data = io.BytesIO()
    pickler = pickle.Pickler(data, 5)
    pickler.fast = True  # no memo: whether two parts of a key are one object must not show
    pickler.dump(key)
    return msgspec.msgpack.Ext(_PICKLED, data.getvalue())


def _canonical(key: Any) -> Any:
    """The representative of all keys equal to this one, as msgpack-able data; tuples stay tuples."""
    kind = type(key)
    if kind is str:
        return key if _has_utf8(key) else _pickled(key)
    if kind is bytes or key is None:
        return key
    if kind is bool:
        return int(key)
    if kind is int:
        return key if -(2**63) <= key < 2**64 else _pickled(key)
    if kind is float:
        return _canonical(int(key)) if key.is_integer() else _check_equal(key)
    if kind is tuple:
        return tuple(map(_canonical, key))
    if kind.__module__ == "numpy":
        return _canonical(key.item())
    if kind is frozenset:
        return msgspec.msgpack.Ext(_FROZENSET, _encode(sorted(map(encode_key, key))))
    if kind is Decimal and key.is_finite():  # 1.50 == 1.5
        return _pickled(key.normalize(Context(prec=max(1, len(key.as_tuple().digits)))))
    return _pickled(_check_equal(key))


def _ground(key: Any) -> Any:
    """What decides on the group: as `_canonical`, but equal keys of different classes are one (named tuples, enums)."""
    _check_lasting(key)
    if isinstance(key, tuple):
        return tuple(map(_ground, key))
    if isinstance(key, int):
        return _canonical(int(key))
    if isinstance(key, float):
        return _canonical(float(key))
    if isinstance(key, str):
        return str.__str__(key)
    return _canonical(key)


def _ext(code: int, data: memoryview) -> Any:
    if code == _PICKLED:
        return pickle.loads(data)
    if code == _FROZENSET:
        return frozenset(map(decode_key, _decode(data)))
    raise ValueError(f"unknown extension {code} in a stored key")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=_ext).decode


def encode_key(key: Any) -> bytes:
    """The key's stored form.

    >>> encode_key(1) == encode_key(True) == encode_key(1.0)
    True
    """
    return _encode(_canonical(key))


def encode_keys(keys: list[Any]) -> bytes:
    """The stored form of a list of keys, as one msgpack array."""
    if set(map(type, keys)) <= _PLAIN:
        try:
            return _encode(keys)
        except (OverflowError, UnicodeEncodeError):
            pass  # an integer beyond 64 bits or a lone surrogate among them: the canonical form has a place for it
    return _encode([_canonical(key) for key in keys])


def _tuples(key: Any) -> Any:
    return tuple(map(_tuples, key)) if type(key) is list else key


def decode_key(data: bytes) -> Any:
    """The key that `encode_key` stored."""
    return _tuples(_decode(data))


def decode_keys(data: bytes) -> list[Any]:
    """The keys that `encode_keys` stored."""
    keys: list[Any] = _decode(data)
    return [_tuples(key) for key in keys] if list in set(map(type, keys)) else keys


def key_group(key: Any, max_parallelism: int) -> int:
    """The key's group in ``range(max_parallelism)``.

    >>> key_group(7, 128) == key_group(7.0, 128)
    True

    Raises:
        TypeError: the key is not hashable, does not equal itself (NaN), or its class is defined in the main module (no
            other process finds it).
    """
    kind = type(key)
    if kind is str:
        return int(xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))) % max_parallelism
    if kind is int:
        return int((((key * _GOLDEN) & _MASK) >> 32) % max_parallelism)
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"a key must be hashable, this one is a {kind.__name__}: {key!r:.200}; make it a tuple or a string"
        ) from None
    if isinstance(key, float) and key.is_integer():
        return key_group(int(key), max_parallelism)
    if kind.__module__ == "numpy":
        return key_group(key.item(), max_parallelism)
    if isinstance(key, int):
        _check_lasting(key)
        return key_group(int(key), max_parallelism)
    ground = _ground(key)
    if type(ground) is str:
        return key_group(ground, max_parallelism)
    return int(xxhash.xxh3_64_intdigest(_encode(ground))) % max_parallelism


def group_assigner(max_parallelism: int, parallelism: int, memo_size: int = 200_000) -> Callable[[list[Any]], list[int]]:
    """A function from a list of keys to the list of subtasks that own them; it remembers recent keys."""
    memo: dict[Any, int] = {}
    digest = xxhash.xxh3_64_intdigest

    def assign(keys: list[Any]) -> list[int]:
        kinds = set(map(type, keys))
        if kinds == {int}:
            return [((((key * _GOLDEN) & _MASK) >> 32) % max_parallelism) * parallelism // max_parallelism for key in keys]
        if len(memo) > memo_size:
            memo.clear()
        try:
            return [memo[key] for key in keys]
        except (KeyError, TypeError):
            pass  # some are new: compute those
        result = []
        known = memo.get
        for key in keys:
            try:
                subtask = known(key)
            except TypeError:
                subtask = None  # not hashable: `key_group` says what to do
            if subtask is None:
                try:
                    group = digest(key.encode()) % max_parallelism if type(key) is str else key_group(key, max_parallelism)
                except UnicodeEncodeError:
                    group = key_group(key, max_parallelism)
                subtask = memo[key] = group * parallelism // max_parallelism
            result.append(subtask)
        return result

    return assign
