"""FailurePolicy: what follows from a failure of the job. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import Fenced, HoldfastError, JobFailed, UserCodeError
from holdfast.runtime.restart import GiveUp, Restart, RestartState, RestartStrategy, decide

__all__ = ["FailurePolicy", "Hopeless", "Trace"]


@dataclass(frozen=True)
class Hopeless:
    """The job ends."""

    failure: BaseException
    """What it ends with."""


@dataclass(frozen=True)
class Trace:
    """The epoch is run once more, traced, to find the record that fails; then the job ends."""


class FailurePolicy:
    """The restart strategy, and the failures that it does not cover.

    Args:
        strategy: The job's.
        chosen: Whether the user has chosen it. Then the same record may fail as often as any other.
    """

    def __init__(self, strategy: RestartStrategy, chosen: bool) -> None:
        self._strategy = strategy
        self._chosen = chosen
        self._state = RestartState()
        self._last_record = ""

    def answer(self, failure: BaseException, traced: bool, now_ms: int) -> Restart | Trace | Hopeless:
        """What follows from a failure.

        Args:
            failure: Why the job or its epoch failed.
            traced: Whether another run could not tell more about it.
            now_ms: When, by a clock that does not jump.
        """
        if isinstance(failure, Fenced) or self._repeats(failure, traced):
            return Hopeless(failure)
        decision, self._state = decide(self._strategy, self._state, now_ms, failure)
        if isinstance(decision, Restart):
            return decision
        if isinstance(failure, UserCodeError) and not traced and not failure.record:
            return Trace()
        return Hopeless(_explained(decision, failure))

    def epoch_completed(self) -> None:
        """Forget the record that failed: the job got past it."""
        self._last_record = ""

    def _repeats(self, failure: BaseException, traced: bool) -> bool:
        """Whether the same record fails the same function again: then no restart will help."""
        if not isinstance(failure, UserCodeError) or self._chosen:
            return False
        same = traced or (bool(failure.record) and failure.record == self._last_record)
        self._last_record = failure.record
        return same


def _explained(decision: GiveUp, failure: BaseException) -> BaseException:
    if isinstance(failure, HoldfastError):
        return failure
    end = JobFailed(f"{decision.reason}. The last failure: {str(failure) or repr(failure)}")
    end.__cause__ = failure
    return end
