"""Routes columns to the same subtasks as the same records one by one, computed on whole columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import ColumnKeys, numpy
from holdfast.state.keys.key_groups import integer_groups

__all__ = ["members", "plain_keys", "subtasks"]

Assign = Callable[[list[Any]], list[int]]
"""Returns the subtasks of keys."""
_CLOSE = 1 << 12
"""Range of numbers up to which they are counted, because that is faster than sorting or hashing."""


def plain_keys(keys: ColumnKeys) -> bool:
    """Whether all keys are integers or strings, which every subtask accepts without a check."""
    (array, *more) = keys.arrays
    types = pyarrow().types
    return not more and not array.null_count and (types.is_integer(array.type) or types.is_string(array.type))


def subtasks(keys: ColumnKeys, assign: Assign, max_parallelism: int, parallelism: int) -> Any:
    """The subtasks that own the keys, as an array of numbers.

    Args:
        keys: The keys.
        assign: Returns the subtasks of keys that are not plain, and of the distinct strings.
        max_parallelism: The number of key groups.
        parallelism: The number of subtasks.

    Raises:
        TypeError: a key is not hashable, or does not equal itself.
    """
    library = numpy()
    if not plain_keys(keys):
        return library.array(assign(keys.keys()), dtype=library.int64)
    array = keys.arrays[0]
    if pyarrow().types.is_string(array.type):
        encoded = array.dictionary_encode()
        owners = library.array(assign(encoded.dictionary.to_pylist()), dtype=library.int64)
        return owners[encoded.indices.to_numpy()]
    return integer_groups(array.to_numpy(), max_parallelism) * parallelism // max_parallelism


def members(targets: Any) -> Iterator[tuple[int, Any]]:
    """The positions of each target, as arrays.

    >>> import numpy
    >>> [(target, positions.tolist()) for target, positions in members(numpy.array([1, 0, 1]))]
    [(0, [1]), (1, [0, 2])]
    """
    library = numpy()
    targets = library.asarray(targets)
    least = int(targets.min())
    if int(targets.max()) - least < _CLOSE:
        different = least + library.flatnonzero(library.bincount(targets - least))
    else:
        different = library.unique(targets)
    for target in different.tolist():
        yield target, library.flatnonzero(targets == target)
