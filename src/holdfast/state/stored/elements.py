"""ElementForm: the stored form of operator state, whose elements are stored one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.common.typeinfo import MapTypeInfo, TypeInformation
from holdfast.common.typeinfo.evolution import Unfit, evolution, same_type
from holdfast.common.typeinfo.text import type_text
from holdfast.common.values import pickling
from holdfast.errors import HoldfastError, IncompatibleState
from holdfast.state.stored.schema import AfterMigration, AsIs, Incompatible, Verdict, refusal

__all__ = ["ElementForm", "unreadable"]

_pack = msgspec.msgpack.Encoder().encode
Read = Callable[[bytes], Any]


def unreadable(what: str, error: Exception, types: str = "") -> HoldfastError:
    """The error for stored content that does not read as the program declares its state.

    Declared types are compared before any input is read. So this is about pickles, and about single values that the new type
    would change.

    Args:
        what: The content and its place.
        error: The error that reading raised.
        types: The stored and the declared type, one per line.
    """
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, (AttributeError, ImportError)):
        remedy = "If the class has moved or has another name now: env.add_class_alias(former_name, present_class)."
    else:
        remedy = "Restore the old declaration, or repair the value with the State Processor API."
    return IncompatibleState(f"a stored {what} cannot be read ({type(error).__name__}: {error}).{types}\n{remedy}")


class ElementForm:
    """The stored form of elements: msgpack if their type is declared, else a pickle."""

    def __init__(self, declared: TypeInformation[Any] | None) -> None:
        self._declared = None if declared is None or declared.is_pickled else declared
        self.snapshot: dict[str, Any] | None = None if self._declared is None else self._declared.to_dict()
        """The snapshot of the element type, for the checkpoint's metadata."""

    @staticmethod
    def of_entries(key: TypeInformation[Any] | None, value: TypeInformation[Any] | None) -> ElementForm:
        """The form of map entries, each stored as a map of one entry. Unless both types are declared, it pickles pairs."""
        if key is None or value is None or key.is_pickled or value.is_pickled:
            return ElementForm(None)
        return ElementForm(MapTypeInfo(key, value))

    def encode(self, element: Any) -> bytes:
        """Encode a conforming element.

        Raises:
            TypeError: the element cannot be pickled.
        """
        return pickling.dumps(element) if self._declared is None else _pack(self._declared.encode(element))

    def keeps(self, stored: Mapping[str, Any] | None) -> bool:
        """Whether elements stored with this type need not be written again."""
        if stored is None or self.snapshot is None:
            return stored is self.snapshot
        return same_type(stored, self.snapshot)

    def judge(self, stored: Mapping[str, Any] | None) -> Verdict:
        """Judge whether elements of a stored type (None: pickles) can become elements of this form's type."""
        if self.keeps(stored):
            return AsIs()
        if stored is None:
            return AfterMigration("pickled values are checked against the declared type and stored in its form")
        if self.snapshot is None:
            return AfterMigration("values in their type's form are pickled")
        try:
            changes = evolution(stored, self.snapshot).changes
        except Unfit as error:
            return Incompatible(str(error))
        return AfterMigration("; ".join(changes)) if changes else AsIs()

    def reader(self, stored: Mapping[str, Any] | None, where: str) -> Read:
        """Return a function that decodes elements of a stored type. It raises IncompatibleState for one that does not fit.

        Args:
            stored: The snapshot of the type; None: pickles.
            where: The state and its operator, for the message.

        Raises:
            IncompatibleState: elements of the stored type cannot become elements of this form's type.
        """
        read = self._reader(stored, where)

        def named(data: bytes) -> Any:
            try:
                return read(data)
            except Exception as error:  # pickle and users' classes may raise anything
                raise unreadable(f"element of {where}", error) from error

        return named

    def _reader(self, stored: Mapping[str, Any] | None, where: str) -> Read:
        verdict = self.judge(stored)
        if isinstance(verdict, Incompatible):
            raise refusal(where, verdict, type_text(stored), type_text(self.snapshot))
        declared = self._declared
        if stored is None:
            loads = pickling.loader()
            return loads if declared is None else lambda data: _fitted(declared, loads(data))
        former = TypeInformation.from_dict(stored)
        read = msgspec.msgpack.Decoder(former.annotation).decode
        if declared is None:
            return lambda data: former.decode(read(data))
        convert = evolution(stored, declared.to_dict()).convert
        if convert is None:
            return lambda data: declared.decode(read(data))
        return lambda data: declared.decode(convert(read(data)))


def _fitted(declared: TypeInformation[Any], element: Any) -> Any:
    """A pickled element as one of a declared type; map entries are pickled as pairs."""
    return declared.conform(dict([element]) if isinstance(declared, MapTypeInfo) and type(element) is tuple else element)
