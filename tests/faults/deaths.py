"""A process that kills itself (``kill -9``) before or after a call of a function, in tests that start programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Death"]


class Death(NamedTuple):
    """The moment at which the process dies."""

    owner: Any
    """The class or module of the function."""
    name: str
    after: bool
    """Whether it dies after the call, not before."""
    calls: int
    """In which call; calls count in all threads, and also while others last."""

    def arm(self) -> None:
        """Let this process die then."""
        original: Callable[..., Any] = getattr(self.owner, self.name)
        made = 0

        def hooked(*arguments: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            number = made
            if number == self.calls and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **named)
            if number == self.calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(self.owner, self.name, hooked)
