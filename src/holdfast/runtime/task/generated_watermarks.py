"""GeneratedWatermarks: the watermarks that a user's own generator emits for one split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.values.pickling import dumps, loader
from holdfast.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from holdfast.runtime.plan.event_time import Deadline, GeneratorState, Run
from holdfast.runtime.records.records import whole_milliseconds
from holdfast.runtime.records.user_code import OperatorName, user_error

__all__ = ["GeneratedWatermarks"]

_LEAST_INTERVAL_MS = 1000
"""An epoch without input takes about a tenth of a second."""


class GeneratedWatermarks(WatermarkOutput):
    """A user's generator with what it has emitted. It is created when first needed.

    Args:
        supplier: Creates the generator.
        stored: Its state in the checkpoint; None for a new split.
        owner: The operator or source, for messages.
        deadlines: The deadlines of the downstream operators that drop late records.
    """

    def __init__(
        self,
        supplier: Callable[[], Any],
        stored: GeneratorState | None,
        owner: OperatorName,
        deadlines: Sequence[Deadline] = (),
    ) -> None:
        self._supplier = supplier
        self._stored = stored
        self._owner = owner
        self._deadlines = deadlines
        self._generator: WatermarkGenerator[Any] | None = None
        self._new: dict[str, tuple[Any, bytes | None]] = {}
        """The attributes of a newly created generator, with their pickles; None for one that cannot be pickled."""
        self.failed_at = 0
        """The position of the record on which `observe` failed."""
        self.watermark = MIN_TIMESTAMP if stored is None else stored.watermark
        self.idle = stored is not None and stored.idle

    def emit_watermark(self, watermark: int) -> None:
        """Advance the split's watermark."""
        self.watermark = max(self.watermark, whole_milliseconds(watermark, "emit_watermark() got", "watermark"))
        self.idle = False

    def mark_idle(self) -> None:
        """Exclude the split from the minimum."""
        self.idle = True

    def mark_active(self) -> None:
        """Include the split again."""
        self.idle = False

    def observe(self, values: Sequence[Any], stamps: Sequence[int]) -> list[Run]:
        """Pass records to the generator; returns those that were late by its watermark just before them.

        Raises:
            UserCodeError: the generator failed; `failed_at` is the position of the record.
        """
        on_event: Callable[[Any, int, WatermarkOutput], Any] = self._opened().on_event
        runs: list[Run] = []
        for position, (value, stamp) in enumerate(zip(values, stamps)):
            watermark = self.watermark
            if stamp <= watermark + 1 and any(deadline(stamp) <= watermark for deadline in self._deadlines):
                if runs and runs[-1][1:] == (position, watermark):
                    runs[-1] = (runs[-1][0], position + 1, watermark)
                else:
                    runs.append((position, position + 1, watermark))
            try:
                _check_nothing("on_event", on_event(value, stamp, self))
            except (Exception, SystemExit) as error:
                self.failed_at = position
                raise user_error(error, *self._owner, value) from error
        return runs

    def emit_periodically(self) -> None:
        """Let the generator emit a watermark without a record.

        Raises:
            UserCodeError: the generator failed.
        """
        emit: Callable[[WatermarkOutput], Any] = self._opened().on_periodic_emit
        if self._is_periodic:
            try:
                _check_nothing("on_periodic_emit", emit(self))
            except (Exception, SystemExit) as error:
                raise user_error(error, *self._owner) from error

    def next_call(self, now: int, interval: int) -> int | None:
        """The processing time, in ms, at which to call the generator without input; None: never."""
        return now + max(interval, _LEAST_INTERVAL_MS) if interval and self._is_periodic else None

    @property
    def _is_periodic(self) -> bool:
        generator = self._generator
        return generator is not None and type(generator).on_periodic_emit is not WatermarkGenerator.on_periodic_emit

    def state(self) -> GeneratorState | None:
        """The state for the checkpoint.

        Raises:
            UserCodeError: the generator's attributes cannot be pickled.
        """
        if self._generator is None:
            return self._stored
        try:
            state = _state_of(self._generator)
            if not hasattr(self._generator, "__setstate__"):
                # Constructor arguments that the program has changed take effect.
                state = {name: value for name, value in state.items() if not self._is_new(name, value)}
            stored = dumps(state)
        except Exception as error:
            refusal = TypeError(
                f"the state of the watermark generator {type(self._generator).__qualname__} cannot be stored: {error}. Keep "
                "plain data in its attributes, or leave the rest out with __getstate__"
            )
            raise user_error(refusal, *self._owner) from error
        return GeneratorState(stored, self.watermark, self.idle)

    def _is_new(self, name: str, value: Any) -> bool:
        """Whether the attribute is still as the supplier made it."""
        if name not in self._new:
            return False
        made, stored = self._new[name]
        return value is made if stored is None else stored == _dumped(value)

    def _opened(self) -> WatermarkGenerator[Any]:
        if self._generator is not None:
            return self._generator
        try:
            generator = self._supplier()
            if not isinstance(generator, WatermarkGenerator):
                raise TypeError(
                    f"the function given to for_generator() returned {generator!r:.80}; it must return a WatermarkGenerator"
                )
            if not hasattr(generator, "__setstate__"):
                self._new = {name: (value, _dumped(value)) for name, value in _state_of(generator).items()}
            if self._stored is not None:
                _restore(generator, loader()(self._stored.attributes))
        except (Exception, SystemExit) as error:
            raise user_error(error, *self._owner) from error
        self._generator = generator
        return generator


def _check_nothing(method: str, returned: Any) -> None:
    if returned is not None:
        raise TypeError(
            f"{method}() of the watermark generator returned {returned!r:.80}; it must return nothing, and pass "
            "watermarks to output.emit_watermark()"
        )


def _dumped(value: Any) -> bytes | None:
    try:
        return dumps(value)
    except Exception:
        return None


def _state_of(generator: Any) -> Any:
    """The state of an object as pickle sees it; without a ``__setstate__``, its attributes by name."""
    reduced = generator.__reduce_ex__(2)
    state = reduced[2] if len(reduced) > 2 else None
    if hasattr(generator, "__setstate__"):
        return state
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return {**(attributes or {}), **(slots or {})}


def _restore(generator: Any, state: Any) -> None:
    if hasattr(generator, "__setstate__"):
        generator.__setstate__(state)
    else:
        for name, value in state.items():
            object.__setattr__(generator, name, value)
