"""Names of PyFlink that stand for objects of the JVM: importing one raises NotImplementedError with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

__all__ = ["refusing"]


def refusing(module: str, reasons: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module without these names.

    >>> refusing("holdfast.jars", {"Jar": "it is a file of the JVM"})("Jar")
    Traceback (most recent call last):
    ...
    NotImplementedError: holdfast.jars has no Jar: it is a file of the JVM
    """

    def __getattr__(name: str) -> NoReturn:
        if name in reasons:
            raise NotImplementedError(f"{module} has no {name}: {reasons[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
