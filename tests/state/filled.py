"""A state with something of everything in it: rows of keys and windows, timers, over several epochs and bases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor as Value

from .backend import Backend

STATES = (Value("n", Types.LONG()), Value("text", Types.STRING()))
WINDOWS = [0, 60_000, 120_000]


class Filled(Backend):
    """A state of many keys, windows and timers over several epochs, with a base under way."""

    def fill(self, keys: Sequence[int], epochs: int) -> None:
        for epoch in range(epochs):
            for key in keys[epoch::epochs]:
                self.put(key, key)
            for key in keys[:: 5 + epoch]:
                self.put(key, key + epoch)
                self.state.timer_queue("event").register(1000 * key + epoch, key)
            for window in WINDOWS:
                for key in keys[::7]:
                    self.put(key, window + epoch, window)
            if epoch > 2:
                self.remove(keys[epoch])
            self.checkpoint()

    def put(self, key: Any, value: int, window: int | None = None) -> None:
        self.use(key, window)
        self.handles["n"].update(value)
        self.handles["text"].update("x" * 40)

    def remove(self, key: Any) -> None:
        self.use(key)
        for handle in self.handles.values():
            handle.clear()

    def content(self, keys: Sequence[int]) -> dict[Any, Any]:
        """Everything there is: of these keys by reading, of windows by scanning, and the timers."""
        found: dict[Any, Any] = {}
        for key in keys:
            self.use(key)
            if self.handles["n"].value() is not None:
                found[key] = self.handles["n"].value()
        for window in WINDOWS:
            table = self.spaces[True].table(window)
            rows = {**dict(table.stored_rows()), **table.rows} if table.in_store else dict(table.rows)
            found.update({(window, key): row[1] for key, row in rows.items() if row[1] is not None})
        self.space.row = []
        found["timers"] = sorted(self.state.timer_queue("event").all())
        return found
