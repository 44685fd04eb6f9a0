"""Names of PyFlink that stand for objects of the JVM: importing one raises NotImplementedError with the reason.

To other code, such a name is an attribute that the module does not have (`hasattr`, `getattr` with a default).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

__all__ = ["NotHere", "refusing"]

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class NotHere(AttributeError, NotImplementedError):
    """A module does not have a name of PyFlink, and the text says why."""


def refusing(module: str, reasons: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module without these names.

    >>> refusing("holdfast.jars", {"Jar": "it is a file of the JVM"})("Jar")
    Traceback (most recent call last):
    ...
    holdfast.common.system.jvm_only.NotHere: holdfast.jars has no Jar: it is a file of the JVM
    """

    def __getattr__(name: str) -> NoReturn:
        if name in reasons:
            reason = f"{module} has no {name}: {reasons[name]}"
            if _imports(sys._getframe(1)):  # an AttributeError would lose the reason: "cannot import name"
                raise NotImplementedError(reason)
            raise NotHere(reason)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def _imports(frame: FrameType) -> bool:
    """Whether the frame is at a ``from module import name``."""
    return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
