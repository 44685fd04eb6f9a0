"""Inputs: the enumerators of a job's sources in the driver; they plan the input of its epochs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.metadata import plain_copy
from holdfast.connectors.base import (
    Enumerator,
    EpochInput,
    JobInfo,
    LastingEnumerator,
    PausingEnumerator,
    SplitRange,
    WatchedEnumerator,
)
from holdfast.errors import ConfigurationError, ServiceUnavailable
from holdfast.metrics.job import JobMetrics
from holdfast.runtime.plan.plan import JobPlan, SourceSpec
from holdfast.runtime.protocol import events, instructions
from holdfast.runtime.protocol.events import Event, PlannedInput
from holdfast.runtime.protocol.instructions import Held

__all__ = ["Inputs"]

_SHORT_WAIT = 0.01
"""Seconds to wait for each of several sources in turn."""
_WHOLE = 1 << 40
"""A budget of records that is larger than any source."""
_NO_SOURCES: frozenset[str] = frozenset()
_NOTHING = Held(frozenset(), whole=False)


class Inputs:
    """The sources of a job, as its driver sees them."""

    def __init__(self, metrics: JobMetrics) -> None:
        self._metrics = metrics
        self._enumerators: dict[str, Enumerator] = {}
        self._held_back: set[str] = set()
        """The sources that wait for others of their watermark group, or for those to be read first, by uid."""
        self.cancelled = False
        """Whether the job is ending: a source in BATCH mode is not read any further. Any thread may set it."""

    def open(self, spec: SourceSpec, job: JobInfo, state: Any | None) -> None:
        """Start a source from the state of the restored checkpoint; an enumerator of an earlier start may be kept.

        Raises:
            ConfigurationError: its service does not answer, and the source starts anew: an address may be wrong.
            ServiceUnavailable: its service does not answer, and the source continues: a restart strategy may wait for it.
        """
        state = deepcopy(state)  # the source may go on changing it
        kept = self._enumerators.get(spec.uid)
        if isinstance(kept, LastingEnumerator) and kept.restart(job, state):
            return
        if kept is not None:
            kept.close()
        enumerator = self._enumerators[spec.uid] = spec.source.create_enumerator(job, spec.uid)
        try:
            enumerator.start(state)
        except ServiceUnavailable as error:
            if state is None:
                raise ConfigurationError(str(error)) from error
            raise

    def close(self, *, ends: bool) -> None:
        """Close the enumerators; lasting ones stay open unless the job ends in this driver."""
        for uid, enumerator in list(self._enumerators.items()):
            if ends or not isinstance(enumerator, LastingEnumerator):
                self._enumerators.pop(uid)
                enumerator.close()

    def checkpoint_completed(self, checkpoint_id: CheckpointId, states: Mapping[str, Any]) -> None:
        """Tell the enumerators that the checkpoint with these states, by uid, is complete and its output visible."""
        for uid, enumerator in self._enumerators.items():
            enumerator.checkpoint_completed(checkpoint_id, states[uid])

    def plan(self, instruction: instructions.Plan, plan: JobPlan) -> Event:
        """Plan the input of an epoch."""
        inputs = {}
        # Broadcast input is planned last and completely. So input that precedes a broadcast record is at the latest in the
        # same epoch, which processes broadcasts first.
        broadcast = plan.broadcast_sources
        for uid in sorted(instruction.sources, key=broadcast.__contains__):
            if plan.read_first.get(uid, _NO_SOURCES) & set(instruction.sources):
                self._held_back.add(uid)
                inputs[uid] = PlannedInput(EpochInput(), self._snapshot(uid))
                continue
            most = plan.settings.epoch_max_records if uid in broadcast else instruction.max_records
            held = instruction.held.get(uid, _NOTHING)
            planned = self._plan_source(uid, most, held, plan.settings.batch)
            inputs[uid] = PlannedInput(planned, self._snapshot(uid), held.splits)
        return events.Planned(inputs)

    def _snapshot(self, uid: str) -> Any:
        return plain_copy(self._enumerators[uid].snapshot(), f"the snapshot of the source with uid {uid!r}")

    def _plan_source(self, uid: str, max_records: int, held: Held, batch: bool) -> EpochInput:
        enumerator = self._enumerators[uid]
        if isinstance(enumerator, WatchedEnumerator):
            self._metrics.source_answers(uid, enumerator.silence)
        if batch:
            return self._whole_input(uid)
        self._held_back.discard(uid)
        if isinstance(enumerator, PausingEnumerator):
            enumerator.pause(held.splits)
        elif held.whole:
            self._held_back.add(uid)
            return EpochInput()
        return enumerator.plan(max_records)

    def _whole_input(self, uid: str) -> EpochInput:
        """All input of a bounded source, for the only epoch of a job in BATCH mode."""
        ranges: list[SplitRange] = []
        while True:
            planned = self._enumerators[uid].plan(_WHOLE)
            ranges += planned.ranges
            if planned.finished or self.cancelled:
                return EpochInput(tuple(ranges), finished=planned.finished)
            if not planned.ranges:
                self._enumerators[uid].wait(_SHORT_WAIT)

    def sleep(self, instruction: instructions.Sleep) -> Event:
        """Wait for input: poll several sources in turn; without sources, only let the time pass."""
        if not instruction.sources:
            time.sleep(instruction.seconds)
        seconds = instruction.seconds if len(instruction.sources) == 1 else min(instruction.seconds, _SHORT_WAIT)
        for uid in instruction.sources:
            if uid not in self._held_back:  # its input is known to have arrived
                self._enumerators[uid].wait(seconds)
        return events.Woke()
