"""Declared types of states: what handles do with a value when it is written.

A state holds a value as a later read returns it: of the classes of its declared type. A value of other classes is converted
if nothing is lost (a tuple becomes the Row that it stands for, a NumPy integer an int, a named tuple a tuple; a FLOAT is
rounded to 32 bits), or refused. If values were converted at the barrier instead, what a function reads would depend on when
epochs end. Ranges of numbers and the text of strings are checked only at the barrier, which costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.composite import MapTypeInfo, SequenceTypeInfo, TupleTypeInfo
from holdfast.state.cells.packed import UNPACKED

__all__ = ["checker", "container_of", "content_type", "fit_of", "fitter", "handle_class", "has_one_form", "plain_class"]

_Fit = Callable[[Any], Any]
_SINGLE = (int, str, bool, float, bytes)


def handle_class(handles: Mapping[str, type[Any]], descriptor: Any) -> type[Any]:
    """The class of the descriptor's handle.

    Args:
        handles: The classes by kind.
        descriptor: The state's descriptor.
    """
    kind: str = descriptor.kind
    packed = kind == "list" and "packed list" in handles and fit_of(descriptor.element_type_info, "")[0] in UNPACKED
    return handles["packed list" if packed else kind]


def content_type(descriptor: Any) -> TypeInformation | None:
    """The declared type of a state's value, elements, or values of its entries."""
    by_kind = {"list": "element_type_info", "map": "value_type_info"}
    declared: TypeInformation | None = getattr(descriptor, by_kind.get(descriptor.kind, "type_info"))
    return declared


def fit_of(declared: TypeInformation | None, name: str) -> tuple[type | None, _Fit | None]:
    """What a state does at the write: the class whose objects it takes as they are, if any, and the converter of others.

    Returns:
        ``(None, None)`` for a state that takes any object.
    """
    if declared is None or declared.is_pickled:
        return None, None
    check = checker(declared, name)
    if not declared.is_plain:
        return None, check
    form = _form(declared)
    if type(form) is type:
        return form, check
    return None, lambda value: value if _has_form(value, form) else check(value)


def fitter(declared: TypeInformation | None, name: str) -> _Fit | None:
    """A function that converts contents of this type at the write; None: they stay unchanged until the barrier.

    A content that is a single integer, string or boolean stays, because it is converted when it leaves the operator.
    """
    kind, fit = fit_of(declared, name)
    if fit is None or kind in (int, str, bool, bytes):
        return None
    return fit if kind is None else lambda value: value if type(value) is kind else fit(value)


def checker(declared: TypeInformation | None, name: str) -> _Fit:
    """A function that converts or refuses values at the write, for a state of this type and name."""
    if declared is None or declared.is_pickled:
        return lambda value: value
    conform = declared.conform

    def check(value: Any) -> Any:
        try:
            return conform(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"the value {value!r:.200} does not fit state {name!r} of {declared!r}: {error}") from None

    return check


def plain_class(declared: TypeInformation | None) -> type | None:
    """The class of this type's values if equal values are always the same value: int, str or bytes; else None."""
    found = None if declared is None or declared.is_pickled else container_of(declared)
    return found if found in (int, str, bytes) else None


def has_one_form(declared: TypeInformation | None) -> bool:
    """Whether equal values of this type are always the same value, unlike 1.0 and 1, or 0.0 and -0.0.

    False without a declared type.
    """
    if isinstance(declared, TupleTypeInfo):
        return all(map(has_one_form, declared.get_field_types()))
    return plain_class(declared) is not None


def container_of(declared: TypeInformation) -> type | None:
    """The class of a plain type's values."""
    return getattr(declared.annotation, "__origin__", declared.annotation) if declared.is_plain else None


def _form(declared: TypeInformation) -> Any:
    """The classes of a plain type's values: a class, or that of a container with those of its content."""
    container = container_of(declared)
    if container in _SINGLE:
        return container
    if isinstance(declared, TupleTypeInfo):
        return tuple, list(map(_form, declared.get_field_types()))
    if isinstance(declared, SequenceTypeInfo):
        return list, _form(declared.element_type), declared.has_nulls
    if isinstance(declared, MapTypeInfo):
        return dict, _form(declared.key_type), _form(declared.value_type)
    return None, None  # other types convert each value


def _has_form(value: Any, form: Any) -> bool:
    """Whether a value and its content are of these classes."""
    if type(form) is type:
        return type(value) is form
    container = form[0]
    if type(value) is not container:
        return False
    if container is tuple:
        held: tuple[Any, ...] = value
        forms: list[Any] = form[1]
        if len(held) != len(forms):
            return False
        for n in range(len(forms)):
            if type(held[n]) is not forms[n] and not _has_form(held[n], forms[n]):
                return False
    elif container is list:
        elements: list[Any] = value
        element, nulls = form[1], form[2]
        for each in elements:
            if type(each) is not element and not (each is None and nulls) and not _has_form(each, element):
                return False
    elif container is dict:
        to_key, to_value = form[1], form[2]
        for key, each in value.items():
            if type(key) is not to_key and not _has_form(key, to_key):
                return False
            if type(each) is not to_value and each is not None and not _has_form(each, to_value):
                return False
    else:
        return False
    return True
