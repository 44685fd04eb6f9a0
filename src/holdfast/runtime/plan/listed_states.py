"""ListedStates: an operator's non-keyed state, as lists that are redistributed when its parallelism changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.files import read_file, write_file
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.metadata import BROADCAST, CHANNEL_STATE, SPLIT, UNION, WHOLE, ListedState, ListPart
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo.text import type_text
from holdfast.common.values import pickling
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.state.stored.elements import ElementForm
from holdfast.state.stored.schema import AsIs, Incompatible, Verdict, refusal

__all__ = ["ListedStates", "judge_list", "list_text", "read_part", "write_part"]

T = TypeVar("T")

_INLINE = 1 << 10
"""Larger lists, in bytes, are stored in a file to keep the metadata small."""

_KINDS = {
    SPLIT: "an operator list state",
    WHOLE: "a list state of each subtask",
    UNION: "a union list state",
    BROADCAST: "a broadcast state",
}

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class ListedStates:
    """The lists of one operator in one subtask. The operator changes them in place; the barrier stores them."""

    def __init__(self, storage: Storage, stored: OperatorSnapshot | None, where: str = "") -> None:
        """``where``: the operator, for messages."""
        self.restored = stored is not None
        """Whether the checkpoint has state for the operator."""
        self.moved = stored is not None and stored.moved
        """Whether the state was stored at another parallelism."""
        self._storage = storage
        self._where = where
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
            IncompatibleState: the checkpoint has the list with another mode.
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        self._declare(name, mode)
        if name not in self._lists:
            self._encoded[name] = self._elements(name)
            self._lists[name] = [pickle.loads(element) for element in self._encoded[name]]
        return self._lists[name]

    def stored(self, name: str, mode: str) -> list[bytes]:
        """The pickled elements of a list that its owner replaces through `store` instead of changing it in place.

        Raises:
            IncompatibleState: the checkpoint has the list with another mode.
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        self._declare(name, mode)
        return self._elements(name)

    def typed(self, name: str, mode: str, form: ElementForm) -> tuple[list[bytes], dict[str, Any] | None]:
        """The elements of a list that its owner replaces through `store`, and the snapshot of their type; None: pickles.

        Args:
            name: The name in checkpoints.
            mode: The redistribution mode.
            form: The form in which the owner stores elements from now on.

        Raises:
            IncompatibleState: the checkpoint has the list with another mode, or with a type that cannot become the form's.
            CorruptFile: a file of the checkpoint is missing or altered.
        """
        before = self._declare(name, mode, form)
        return self._elements(name), None if before is None else before.type

    def _declare(self, name: str, mode: str, form: ElementForm | None = None) -> ListedState | None:
        """Describe a list as the program declares it; returns the previous description."""
        before = self._listed.get(name)
        declared = ListedState(mode, None if form is None else form.snapshot)
        if before is not None:
            self._judge(name, before, declared, judge_list(before, mode, form))
        self._listed[name] = declared
        return before

    def _judge(self, name: str, stored: ListedState, declared: ListedState, verdict: Verdict) -> None:
        if isinstance(verdict, Incompatible):
            where = f"state {name!r} of operator {self._where}"
            raise refusal(where, verdict, list_text(stored), list_text(declared))

    def _elements(self, name: str) -> list[bytes]:
        return [element for part in self._parts.get(name, []) for element in read_part(self._storage, part)]

    def parts(self, name: str, mode: str) -> list[ListPart]:
        """The parts of a list whose owner reads and writes each part itself, and sets them by `set_parts`.

        Raises:
            IncompatibleState: the checkpoint has the list with another mode.
        """
        self._declare(name, mode)
        return list(self._parts.get(name, ()))

    def set_parts(self, name: str, parts: Sequence[ListPart]) -> None:
        """Set the parts of a list returned by `parts`."""
        self._parts[name] = list(parts)

    @property
    def storage(self) -> Storage:
        """The storage with the files of parts."""
        return self._storage

    def store(self, name: str, pickles: list[bytes]) -> None:
        """Replace a list that `stored` returned; the next `snapshot` writes it."""
        self._replaced[name] = pickles

    def described(self) -> dict[str, ListedState]:
        """The description of each list, by name."""
        return dict(self._listed)

    def snapshot(self, new_path: Callable[[], str]) -> tuple[dict[str, list[ListPart]], dict[str, ListedState]]:
        """Write the changed lists; returns the parts and the description of each list, by name.

        Args:
            new_path: Returns a unique storage path for the file of a large list.
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


def judge_list(stored: ListedState, mode: str, form: ElementForm | None) -> Verdict:
    """Judge whether a stored list fits a new declaration of the same name; ``form`` is None for lists of pickles."""
    if stored.mode != mode and (stored.mode, mode) != (SPLIT, WHOLE):  # a list that was split may stay whole from now on
        return Incompatible("a state cannot change its kind")
    return AsIs() if form is None else form.judge(stored.type)


def list_text(listed: ListedState) -> str:
    """The kind and type of a list, for messages."""
    kind = _KINDS.get(listed.mode, listed.mode)
    return f"{kind} without declared type" if listed.type is None else f"{kind} of {type_text(listed.type)}"


def _without(named: Mapping[str, T]) -> dict[str, T]:
    """The lists that the operator itself uses."""
    return {name: each for name, each in named.items() if name != CHANNEL_STATE}


def read_part(storage: Storage, part: ListPart) -> Sequence[bytes]:
    """Read the elements of a part.

    Raises:
        CorruptFile: its file is missing or altered.
    """
    if part.file is None:
        return part.elements
    assert isinstance(part.file, ContainedFile)
    with parsing(storage.locate(part.file.path), "a file of listed state"):
        return _unpack(read_file(storage, part.file))[part.first : part.first + part.count]


def write_part(storage: Storage, elements: list[bytes], new_path: Callable[[], str], inline: int = _INLINE) -> ListPart:
    """Create a part with these elements; more than ``inline`` bytes go to a file at ``new_path``."""
    if sum(map(len, elements)) <= inline:
        return ListPart(elements)
    return ListPart(file=write_file(storage, new_path(), _pack(elements)), count=len(elements))
