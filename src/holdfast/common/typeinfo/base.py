"""TypeInformation: checks values of a declared type, converts them to plain data and back, and describes itself."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar, Generic

from holdfast.common.values.type_variables import V
from holdfast.errors import IncompatibleState

__all__ = ["TypeInformation", "checked", "refuse", "shown"]

SNAPSHOT_VERSION = 1
_LATER = {"AVRO": "holdfast.common.formats.avro"}
"""Kinds whose modules are imported when a snapshot has one."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


class TypeInformation(ABC, Generic[V]):
    """The type of a stream's records or of a state's values; made by the factories of `Types`.

    An immutable value: it can be compared, hashed, pickled and, as a dict, stored in a checkpoint.

    A value takes three forms: what the program holds, e.g. a Row; that after `conform` (the right type, in range);
    and its *stored form*, plain data that msgspec writes as msgpack and reads back, given `annotation`.
    """

    is_pickled: ClassVar[bool] = False
    """Whether it takes values of any type and pickles them."""

    annotation: Any
    """The Python type of the stored form, for ``msgspec.msgpack.Decoder(annotation)``."""
    is_plain: bool
    """Whether the stored form is the value itself: `encode` and `decode` change nothing."""
    conform: Callable[[Any], Any]
    """Check one value and convert it where nothing is lost.

    Raises:
        TypeError: a value of another type.
        OverflowError: a number out of range.
        ValueError: a value that cannot be represented, e.g. 1.5 as an INT.
    """
    encode: Callable[[Any], Any]
    """Turns a conforming value into its stored form."""
    decode: Callable[[Any], Any]
    """Turns the stored form into the value."""

    _kinds: ClassVar[dict[str, Callable[[Mapping[str, Any]], TypeInformation]]] = {}
    _identity: tuple[Any, ...]

    def _seal(
        self,
        identity: tuple[Any, ...],
        annotation: Any,
        conform: Callable[[Any], Any],
        codec: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
    ) -> None:
        encode, decode = codec or (_same, _same)
        self.__dict__.update(
            _identity=identity,
            annotation=annotation,
            conform=conform,
            encode=encode,
            decode=decode,
            is_plain=codec is None,
        )

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """The type without the version, for `to_dict`."""

    def to_dict(self) -> dict[str, Any]:
        """The serializer snapshot: the type as JSON-able data, stored with the state that it describes."""
        return {"version": SNAPSHOT_VERSION, **self._describe()}

    @staticmethod
    def from_dict(snapshot: Mapping[str, Any]) -> TypeInformation:
        """Read the type from a serializer snapshot.

        Raises:
            IncompatibleState: a later release of Holdfast wrote it, or it is not a snapshot.
        """
        version = snapshot.get("version")
        if version != SNAPSHOT_VERSION:
            raise IncompatibleState(
                f"a serializer snapshot of version {version!r}; this release reads version {SNAPSHOT_VERSION}"
            )
        return _from_description(snapshot)

    def need_conversion(self) -> bool:
        """Whether the stored form differs from the value."""
        return not self.is_plain

    def to_internal_type(self, obj: Any) -> Any:
        """The stored form of a value; None stays None."""
        return None if obj is None else self.encode(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """The value of a stored form; None stays None."""
        return None if obj is None else self.decode(obj)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} is immutable")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypeInformation):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Callable[..., TypeInformation], tuple[Any, ...]]:
        return TypeInformation.from_dict, (self.to_dict(),)

    def __str__(self) -> str:
        """The text of PyFlink's type: ``Integer``, ``RowTypeInfo(name: String)``; `repr` is the call that makes it."""
        return self._text()

    def _text(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        kind, *args = self._identity
        shown_args = (repr(list(a) if isinstance(a, tuple) else a) for a in args)
        return f"Types.{kind}({', '.join(shown_args)})"


def _same(value: Any) -> Any:
    return value


def _from_description(node: Mapping[str, Any]) -> TypeInformation:
    if node.get("type") in _LATER:
        import_module(_LATER[node["type"]])
    make = TypeInformation._kinds.get(node.get("type", ""))
    if make is None:
        raise IncompatibleState(f"a serializer snapshot with the type {node.get('type')!r}, unknown to this release")
    return make(node)


def register(kind: str, make: Callable[[Mapping[str, Any]], TypeInformation]) -> None:
    """Say how a type of this kind is made from its description."""
    TypeInformation._kinds[kind] = make


def described(type_info: TypeInformation) -> dict[str, Any]:
    """The description of a type within that of another."""
    return type_info._describe()


def from_described(node: Mapping[str, Any]) -> TypeInformation:
    """The type of what `described` returned."""
    return _from_description(node)


def checked(type_info: Any, where: str) -> TypeInformation:
    """The argument, if it is a type.

    Raises:
        TypeError: it is not; most often the call's parentheses were forgotten.
    """
    if isinstance(type_info, TypeInformation):
        return type_info
    name = getattr(type_info, "__name__", "")
    hint = f": write Types.{name}()" if name and callable(type_info) and name.isupper() else ""
    raise TypeError(f"{where} must be a type like Types.LONG(), got {shown(type_info)}{hint}")


def shown(value: Any) -> str:
    """The value for an error message, shortened."""
    return _repr.repr(value)


def refuse(kind: str, value: Any, hint: str = "") -> TypeError:
    """The error for a value of a type that ``kind`` does not take."""
    return TypeError(f"{kind} does not take {shown(value)} of type {type(value).__name__}{hint and '; ' + hint}")
