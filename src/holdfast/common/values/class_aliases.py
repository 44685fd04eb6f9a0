"""Class aliases: stored pickles of classes that have moved, or have gained fields, become objects of the present classes."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from holdfast.common.values.field_defaults import default_maker

__all__ = ["aliased_loads"]

_CLOUDPICKLE = cloudpickle.cloudpickle.__name__


def aliased_loads(aliases: Mapping[str, type[Any]]) -> Callable[[bytes | memoryview], Any]:
    """Return a function like ``pickle.loads`` that replaces classes.

    Args:
        aliases: By the name of a stored class with its module, the present class. Without any, it is ``pickle.loads``.
    """
    if not aliases:
        return pickle.loads
    classes = {name: _filling(present) for name, present in aliases.items()}
    present = frozenset(aliases.values())

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = classes.get(f"{module}.{name}")
            if found is not None:
                return found
            if module == _CLOUDPICKLE and name == "_make_skeleton_class":
                return skeleton
            if module == _CLOUDPICKLE and name == "_class_setstate":
                return set_class_state
            return super().find_class(module, name)

    def skeleton(constructor: Any, name: str, bases: Any, options: Any, tracker: Any, extra: Any) -> Any:
        """A class of the main module, which pickles contain as a whole."""
        found = classes.get(f"{options.get('__module__')}.{options.get('__qualname__', name)}")
        return found or cloudpickle.cloudpickle._make_skeleton_class(constructor, name, bases, options, tracker, extra)

    def set_class_state(made: Any, state: Any) -> Any:
        if made in present or getattr(made, "_fills", None) in present:
            return made
        return cloudpickle.cloudpickle._class_setstate(made, state)

    return lambda data: Unpickler(io.BytesIO(data)).load()


def _filling(present: type[Any]) -> type[Any]:
    """The class for new objects of a present class: fields that a stored object lacks get their defaults."""
    if not dataclasses.is_dataclass(present) or issubclass(present, tuple):
        return present
    makers = {field.name: default_maker(field) for field in dataclasses.fields(present)}
    defaults = [(name, make) for name, make in makers.items() if make is not None]
    if not defaults:
        return present

    class Filling:
        _fills = present

        def __new__(cls, *args: Any) -> Any:
            made = present.__new__(present, *args)
            for name, make in defaults:
                object.__setattr__(made, name, make())
            return made

    return Filling
