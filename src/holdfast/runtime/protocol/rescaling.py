"""Rescaling: how a running job gets from a request to another parallelism, or back. Pure.

requested   the epoch in flight ends
aligned     an epoch without new input processes the channel state; the request is refused if some is left
verified    the new plan fits the last checkpoint, whose files exist; otherwise the request is refused
adopted     the job takes itself over with the new plan
done        its first epoch is complete; if its tasks cannot open, the job returns to the previous plan
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.errors import ConfigurationError, Fenced, HoldfastError, IncompatibleState, UserCodeError
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.protocol import instructions, resumption
from holdfast.runtime.protocol.instructions import Instruction
from holdfast.runtime.protocol.rescale_request import RescaleRequest
from holdfast.runtime.protocol.unaligned import ALIGNMENT_SECONDS

__all__ = ["Next", "Rescaling"]


class Next(Enum):
    """The machine's next step for the request."""

    WAIT = "wait"
    ALIGN = "align"
    """Start an epoch without new input."""
    GO_ON = "go on"
    """Continue: the request is refused."""


class Rescaling:
    """The current request, if any.

    Args:
        give: Gives an instruction.
    """

    def __init__(self, give: Callable[[Instruction], None]) -> None:
        self._give = give
        self._request: RescaleRequest | None = None
        self._before: JobPlan | None = None
        """The plan to return to, from the adoption of the new one until its first complete epoch."""
        self._verified = NO_CHECKPOINT
        self.aligning = False
        """Whether the epoch in flight, or the last one, processes the channel state."""

    @property
    def waits(self) -> bool:
        """Whether a request is waiting to be adopted."""
        return self._request is not None and self._before is None

    def requested(self, request: RescaleRequest, *, ends: bool) -> None:
        """Take a request; ``ends``: the job is about to end."""
        if ends or self._request is not None:
            why = "the job is about to end" if ends else "another rescaling is under way"
            self._give(instructions.RescaleRefused(request, why))
        else:
            self._request = request

    def refuse(self, why: str) -> None:
        """Refuse the request: the job keeps its parallelism."""
        assert self._request is not None
        self._give(instructions.RescaleRefused(self._request, why))
        self._forget()

    def _forget(self) -> None:
        self._request = self._before = None
        self.aligning = False

    def verified(self, checkpoint: CheckpointId) -> None:
        """The checkpoint's files exist."""
        self._verified = checkpoint

    def restarted(self) -> None:
        """The job has opened its sources and executor anew."""
        self.aligning = False

    def next(self, plan: JobPlan, completed: CheckpointMetadata | None, *, left: bool, alone: bool) -> Next | JobPlan:
        """The next step for the request, or the plan to adopt if it is time.

        Args:
            plan: The plan of the job.
            completed: The last completed checkpoint.
            left: Whether it has channel state.
            alone: Whether the machine awaits no answer.
        """
        request = self._request
        assert request is not None
        if not alone:
            return Next.WAIT
        if left and not self.aligning:
            self.aligning = True
            return Next.ALIGN
        if left:
            self.refuse(
                f"input of earlier epochs still waits after an epoch that processed it for up to {ALIGNMENT_SECONDS:.0f} s. "
                "Try again when the job is less behind, or stop it with a savepoint and start it at the other parallelism"
            )
            return Next.GO_ON
        if completed is None or self._verified == completed.checkpoint_id:
            self._before, self.aligning = plan, False
            return request.plan
        try:
            resumption.check_resumable(request.plan, completed)
        except HoldfastError as error:
            self.refuse(str(error))
            return Next.GO_ON
        self._give(instructions.Verify(completed))
        return Next.WAIT

    def completed(self) -> None:
        """An epoch is complete: the first one with the new plan ends the rescaling."""
        if self._request is not None and self._before is not None:
            self._give(instructions.Rescaled(self._request))
            self._forget()

    def undone(self, failure: BaseException, *, final: bool) -> JobPlan | None:
        """The plan to return to if the job's first epoch with the new one has failed; None: proceed as usual.

        Args:
            failure: The failure.
            final: Whether the job would end.
        """
        before = self._before
        if before is None or isinstance(failure, Fenced) or not (final or isinstance(failure, _OF_THE_PLAN)):
            return None
        self.refuse(f"its tasks cannot run at parallelism {self._parallelism}, and it goes on as before: {failure}")
        return before

    @property
    def _parallelism(self) -> int:
        assert self._request is not None
        return self._request.parallelism


_OF_THE_PLAN = UserCodeError, IncompatibleState, ConfigurationError
"""Failures that another attempt with the same plan would probably repeat."""
