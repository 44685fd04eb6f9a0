"""Row, a record with optional field names, and RowKind, its role in a changelog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

__all__ = ["Row", "RowKind"]


class RowKind(Enum):
    """Role of a row in a changelog: an insertion, either half of an update, or a deletion."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3


_set = object.__setattr__


class RowSlots:
    """A row in the making: its slots are set as any attributes, which those of a Row are not."""

    __slots__ = ("_fields", "_row_kind", "_values")

    _fields: Sequence[str] | None
    _values: list[Any]
    _row_kind: RowKind


class Row(RowSlots):
    """A mutable record whose fields are read by position, by name or as attributes.

    Named fields keep the order in which they were given. A row without names has no attributes. Call a row of
    strings to make rows with these field names.

    Two rows are equal when their kinds, values and names are, in their order. A row without names has Flink's
    default ones, f0, f1, and so on. A row never equals a tuple.

    Examples:
        >>> row = Row(name="Asha", age=31)
        >>> row.name, row["age"], row[0]
        ('Asha', 31, 'Asha')
        >>> row
        Row(name='Asha', age=31)
        >>> Row("Asha", 31)
        <Row('Asha', 31)>
        >>> Person = Row("name", "age")
        >>> Person("Asha", 31) == row
        True
    """

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("a Row takes either positional or named fields, not both")
        if kwargs:
            _set(self, "_fields", list(kwargs))
            _set(self, "_values", list(kwargs.values()))
        else:
            _set(self, "_fields", None)
            _set(self, "_values", list(args))
        _set(self, "_row_kind", RowKind.INSERT)

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        """Create a row of the given kind."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    @staticmethod
    def of_values(values: list[Any], names: Sequence[str] | None, kind: RowKind = RowKind.INSERT) -> Row:
        """Create a row that shares ``values`` and ``names`` (no copies): the fast path of decoders."""
        row = RowSlots()
        row._fields = names
        row._values = values
        row._row_kind = kind
        row.__class__ = Row  # half as slow as the slots' setters, four calls
        return row  # type: ignore[return-value]

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the fields as a dict from name to value.

        Args:
            recursive: also convert nested rows (in lists and dicts, too).

        Raises:
            TypeError: the row has no field names.
        """
        if self._fields is None:
            raise TypeError(f"{self!r} has no field names, so it cannot become a dict")
        values = [_as_dict(v) for v in self._values] if recursive else self._values
        return dict(zip(self._fields, values, strict=True))

    def get_row_kind(self) -> RowKind:
        """Return the kind; INSERT by default."""
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set the kind."""
        _set(self, "_row_kind", row_kind)

    def set_field_names(self, field_names: list[str]) -> None:
        """Set the field names, in order.

        Raises:
            ValueError: there are more or fewer names than fields.
        """
        if len(field_names) != len(self._values):
            raise ValueError(f"{len(field_names)} names for a Row of {len(self._values)} fields")
        _set(self, "_fields", list(field_names))

    def get_fields_by_names(self, names: list[str]) -> list[Any]:
        """Return the values of these fields; all values if the row has no names.

        Raises:
            ValueError: the row has no field with one of these names.
        """
        if self._fields is None or names == self._fields:
            return self._values
        return [self[name] for name in names]

    def _names(self) -> list[str]:
        """Return the field names, or Flink's defaults (f0, f1, ...) if the row has none."""
        return [f"f{i}" for i in range(len(self._values))] if self._fields is None else list(self._fields)

    def _index(self, name: str) -> int:
        if self._fields is None:
            raise ValueError(f"{self!r} has no field names; read it by position")
        try:
            return self._fields.index(name)
        except ValueError:
            raise ValueError(f"no field {name!r} in a Row of {', '.join(map(str, self._fields))}") from None

    def __contains__(self, item: Any) -> bool:
        return item in self._values

    def __call__(self, *args: Any) -> Row:
        """Create a row with these values and this row's values as field names."""
        if len(args) != len(self._values):
            raise ValueError(f"{self!r} names {len(self._values)} fields, got {len(args)} values: {args!r}")
        return Row.of_values(list(args), [str(name) for name in self._values], self._row_kind)

    def __getitem__(self, item: Any) -> Any:
        if type(item) is int:  # the usual case
            return self._values[item]
        return self._values[self._index(item) if isinstance(item, str) else item]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._values[self._index(key) if isinstance(key, str) else key] = value

    def __getattr__(self, item: str) -> Any:
        # Called only for unknown attributes; pickle and copy probe for dunders before the slots are set.
        if item.startswith("__") or item in RowSlots.__slots__ or self._fields is None or item not in self._fields:
            raise AttributeError(f"Row has no field {item!r}")
        return self._values[self._fields.index(item)]

    def __setattr__(self, key: str, value: Any) -> None:
        if self._fields is None or key not in self._fields:
            raise AttributeError(f"Row has no field {key!r}")
        self._values[self._fields.index(key)] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        if self._row_kind is not other._row_kind or self._values != other._values:
            return False
        return self._fields == other._fields or self._names() == other._names()

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{k}={v!r}' for k, v in zip(self._fields, self._values, strict=True))})"

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[Any, ...]]:
        # Jobs pickle millions of rows: plain values and a module function pickle far faster than enum and method.
        return _row, (self._values, self._fields, self._row_kind.value)


_KINDS = tuple(RowKind)


def _row(values: list[Any], names: Sequence[str] | None, kind: int) -> Row:
    return Row.of_values(values, names, _KINDS[kind])


def _as_dict(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(True)
    if isinstance(value, list):
        return [_as_dict(v) for v in value]
    if isinstance(value, dict):
        return {k: _as_dict(v) for k, v in value.items()}
    return value
