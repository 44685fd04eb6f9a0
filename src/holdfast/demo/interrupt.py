"""The handler of Ctrl-C and SIGTERM."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["Interrupt"]


class Interrupt:
    """The handler of Ctrl-C and SIGTERM.

    It raises KeyboardInterrupt, which Python drops in a weak reference's callback, as py4j has; so it notes the signal, too.
    """

    seen = False

    def __call__(self, *_: object) -> NoReturn:
        """Note the signal, and interrupt."""
        self.seen = True
        raise KeyboardInterrupt
