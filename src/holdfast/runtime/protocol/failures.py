"""FailurePolicy: decides between restart, traced rerun and the end of the job. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import Fenced, HoldfastError, JobFailed, UserCodeError
from holdfast.runtime.protocol.restart import GiveUp, Restart, RestartState, RestartStrategy, decide

__all__ = ["FailurePolicy", "Hopeless", "Trace"]


@dataclass(frozen=True)
class Hopeless:
    """The job ends."""

    failure: BaseException
    """The final error."""


@dataclass(frozen=True)
class Trace:
    """The epoch is run once more with tracing, to find the failing record; then the job ends."""


class FailurePolicy:
    """Applies the restart strategy, and ends the job on failures that a restart cannot cure.

    Args:
        strategy: The restart strategy.
        chosen: Whether the user configured it. Then a repeatedly failing record does not end the job.
    """

    def __init__(self, strategy: RestartStrategy, chosen: bool) -> None:
        self._strategy = strategy
        self._chosen = chosen
        self._state = RestartState()
        self._last_place: tuple[str, str, str] | None = None

    def answer(self, failure: BaseException, traced: bool, now_ms: int) -> Restart | Trace | Hopeless:
        """Decide about a failure.

        Args:
            failure: The failure of the job or its epoch.
            traced: Whether the epoch ran with tracing, so that a rerun would add nothing.
            now_ms: The time of the failure by a monotonic clock, in ms.
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
        """Forget the failed record: the job has passed it."""
        self._last_place = None

    def _repeats(self, failure: BaseException, traced: bool) -> bool:
        """Whether the same function has failed on the same record again, so that another restart is useless.

        For most functions only a traced run names the record. A timer has no record, only a key.
        """
        if not isinstance(failure, UserCodeError) or self._chosen:
            return False
        place = (failure.operator, failure.uid, failure.record or failure.key) if failure.record or traced else None
        same = place is not None and place == self._last_place
        self._last_place = place
        return same


def _explained(decision: GiveUp, failure: BaseException) -> BaseException:
    if isinstance(failure, HoldfastError):
        return failure
    end = JobFailed(f"{decision.reason}. The last failure: {str(failure) or repr(failure)}")
    end.__cause__ = failure
    return end
