"""ListedStates: an operator's non-keyed state, as lists that are redistributed when its parallelism changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.files import read_file, write_file
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.metadata import CHANNEL_STATE, SPLIT, ListedState, ListPart
from holdfast.checkpoint.storage import Storage
from holdfast.common import pickling
from holdfast.runtime.redistribution import OperatorSnapshot

__all__ = ["ListedStates", "read_part", "write_part"]

T = TypeVar("T")

_INLINE = 1 << 10
"""Lists of more bytes than this are stored in a file, so that the metadata stays small."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class ListedStates:
    """The lists of one operator in one subtask. The operator changes them in place; the barrier writes them."""

    def __init__(self, storage: Storage, stored: OperatorSnapshot | None) -> None:
        self.restored = stored is not None
        """Whether the checkpoint has state of the operator."""
        self._storage = storage
        self._listed: dict[str, ListedState] = {} if stored is None else _without(stored.listed)
        self._parts: dict[str, list[ListPart]] = {} if stored is None else _without(stored.state.lists)
        self._encoded: dict[str, list[bytes]] = {}
        """The stored form of the lists in use."""
        self._lists: dict[str, list[Any]] = {}
        self._replaced: dict[str, list[bytes]] = {}
        """Lists replaced by `store` since the last snapshot."""

    def get(self, name: str, mode: str = SPLIT) -> list[Any]:
        """The list of this name: this subtask's share of the checkpoint's elements, or empty.

        Args:
            name: The name in checkpoints.
            mode: The redistribution mode: `SPLIT`, `UNION` or `BROADCAST`.

        Raises:
            ValueError: the checkpoint has the list with another mode.
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        if name not in self._lists:
            self._of_mode(name, mode)
            self._encoded[name] = self._elements(name)
            self._lists[name] = [pickle.loads(element) for element in self._encoded[name]]
        else:
            self._of_mode(name, mode)
        return self._lists[name]

    def stored(self, name: str, mode: str) -> list[bytes]:
        """The pickled elements of a list that its owner replaces by `store` instead of changing it in place.

        Raises:
            ValueError: the checkpoint has the list with another mode.
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        return self.typed(name, mode, None)[0]

    def typed(self, name: str, mode: str, type: dict[str, Any] | None) -> tuple[list[bytes], dict[str, Any] | None]:
        """The elements of a list that its owner replaces by `store`, and the snapshot of their type; None: pickles.

        Args:
            name: The name in checkpoints.
            mode: The redistribution mode.
            type: The snapshot of the type that the owner gives to the elements from now on; None: it pickles them.

        Raises:
            ValueError: the checkpoint has the list with another mode.
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        listed = self._of_mode(name, mode)
        self._listed[name] = ListedState(mode, type)
        return self._elements(name), listed.type

    def _of_mode(self, name: str, mode: str) -> ListedState:
        listed = self._listed.setdefault(name, ListedState(mode))
        if listed.mode != mode:
            raise ValueError(f"the list {name!r} is in the checkpoint with mode {listed.mode!r}, not {mode!r}")
        return listed

    def _elements(self, name: str) -> list[bytes]:
        return [element for part in self._parts.get(name, []) for element in read_part(self._storage, part)]

    def store(self, name: str, pickles: list[bytes]) -> None:
        """Replace a list returned by `stored`; the next `snapshot` writes it."""
        self._replaced[name] = pickles

    def described(self) -> dict[str, ListedState]:
        """The description of each list, by name."""
        return dict(self._listed)

    def snapshot(self, new_path: Callable[[], str]) -> tuple[dict[str, list[ListPart]], dict[str, ListedState]]:
        """Write the changed lists; returns the parts and the description of each list, by name.

        Args:
            new_path: Returns the path of a new file for a large list.
        """
        for name, pickles in self._replaced.items():
            self._parts[name] = [write_part(self._storage, pickles, new_path)]
        self._replaced.clear()
        for name, elements in self._lists.items():
            encoded = [pickling.dumps(element) for element in elements]
            if encoded != self._encoded[name]:
                self._encoded[name] = encoded
                self._parts[name] = [write_part(self._storage, encoded, new_path)]
        return dict(self._parts), self.described()


def _without(named: Mapping[str, T]) -> dict[str, T]:
    """The operator's own lists."""
    return {name: each for name, each in named.items() if name != CHANNEL_STATE}


def read_part(storage: Storage, part: ListPart) -> Sequence[bytes]:
    """Read the elements of a part.

    Raises:
        CorruptFile: its file is missing or altered.
    """
    if part.file is None:
        return part.elements
    assert isinstance(part.file, ContainedFile)
    return _unpack(read_file(storage, part.file))[part.first : part.first + part.count]


def write_part(storage: Storage, elements: list[bytes], new_path: Callable[[], str]) -> ListPart:
    """Make a part of these elements; many bytes go to a file at ``new_path``."""
    if sum(map(len, elements)) <= _INLINE:
        return ListPart(elements)
    return ListPart(file=write_file(storage, new_path(), _pack(elements)), count=len(elements))
