"""PaneNamespaces: the numbers of the namespaces in which panes of windows are stored. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.windowing.assigners import PeriodicWindows

__all__ = ["PaneNamespaces"]


class PaneNamespaces:
    """The namespaces of an assigner's panes: one per pane, and one for each number of its windows that do not read it."""

    def __init__(self, assigner: PeriodicWindows[Any]) -> None:
        self._pane = assigner.pane
        self._offset = assigner.offset
        self.stride = max(assigner.pane, -(-assigner.size // assigner.pane))
        """The distance between the namespaces of adjacent panes."""

    def namespace(self, pane: int, after: int) -> int:
        """The namespace of those elements in a pane that its first ``after`` windows do not read."""
        return (pane - self._offset) // self._pane * self.stride + self._offset + after

    def pane(self, namespace: int) -> tuple[int, int]:
        """The pane of a namespace, and the number of its first windows that do not read it."""
        number, after = divmod(namespace - self._offset, self.stride)
        return number * self._pane + self._offset, after
