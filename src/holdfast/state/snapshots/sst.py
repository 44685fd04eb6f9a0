"""Bases of RocksDB files: fetches the parts with certain key groups, opens a store from them, and clips it.

A base's contents file lists the sections with content. So a reader knows the key ranges that it needs: it leaves out files
without such keys, and reads only the needed blocks of the others. One edit of the manifest lets the store open without the
files left out. Range deletes then remove all keys between the ranges, not only those of other key groups: without some of
its files, a store may show rows again that those files deleted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.files import fetch_raw, link_raw, read_raw, write_raw
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.in_parallel import in_parallel
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.snapshots.blob_parts import fetch_chunks
from holdfast.state.snapshots.lazy_files import LazyFiles
from holdfast.state.snapshots.linked_files import LinkedFiles
from holdfast.state.snapshots.manifest import without_files
from holdfast.state.snapshots.sst_parts import KeyRange, KeyRanges, fetch_parts
from holdfast.state.store.blob_file import SUFFIX
from holdfast.state.store.ordered import OrderedStore
from holdfast.state.store.store import RocksDBStore
from holdfast.state.stored.damage import naming
from holdfast.state.stored.layout import END, FIRST, META, after, group_range, section_of
from holdfast.state.stored.schema import OperatorSchema

__all__ = [
    "BASE_PREFIX",
    "Sliced",
    "clip_store",
    "copy_base",
    "fetch",
    "sections_in",
    "shared",
    "slicing",
    "verified_files",
    "write_contents",
]

BASE_PREFIX = "base-"
"""Prefix of the directories of temporary stores."""
_BATCH = 10_000
_CONTENTS = "CONTENTS"
_AT_ONCE, _ENDS_AT_ONCE = 4, 16
"""Files fetched concurrently: whole ones, and those that start with their end only."""

Sliced = Callable[[int], bool]
"""Whether the state of this id has namespaces."""


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a base."""

    first: int
    last: int
    """The last key group of the subtask that wrote it."""
    sections: list[bytes]
    """The prefixes of the sections with content, in order."""


class Fetched(NamedTuple):
    """A base, or parts of one, in a local directory."""

    files: list[RawFile]
    """The SST and blob files, whether linked, fetched or fetched in part, and the other files."""
    ranges: list[KeyRange] | None
    """The wanted keys; None: the base has no contents file, and was fetched whole."""
    lacking: list[RawFile]
    """The SST files that were left out or fetched in part."""


class _Wanted(NamedTuple):
    """The parts of a base that a restore of some key groups needs."""

    files: list[RawFile]
    """All files of the base except the contents file."""
    ranges: list[KeyRange] | None
    """As in `Fetched`."""
    keys: KeyRanges
    """The ranges and the keys of the store's metadata; or everything."""
    clipped: bool
    """Whether the base also has other key groups."""

    def at_all(self, file: RawFile) -> bool:
        """Whether a file has content that is needed."""
        return not shared(file.name) or self.keys.overlap(file.first_key, file.last_key)

    def in_part(self, file: RawFile) -> bool:
        """Whether most of a needed file may be other content."""
        other = shared(file.name) and (file.foreign or self.clipped)
        return other and not self.keys.contain(file.first_key, file.last_key)


def shared(name: str) -> bool:
    """Whether a base's file of this name is immutable, so that later bases may share it."""
    return name.endswith((".sst", SUFFIX))


def slicing(schema: OperatorSchema | None) -> Sliced:
    """Return a predicate for the ids of states with namespaces."""
    ids = {state.id for state in schema.states.values() if state.slices} if schema is not None else set()
    return ids.__contains__


def sections_in(store: OrderedStore, sliced: Sliced) -> list[bytes]:
    """The prefixes of the sections with content in a store, found with one seek each."""
    found, at = [], FIRST
    while (key := store.first_key(at, END)) is not None:
        found.append(section_of(key, sliced).prefix)
        at = after(found[-1])
    return found


def write_contents(storage: Storage, path: str, groups: KeyGroupRange, sections: list[bytes]) -> RawFile:
    """Store a base's contents file.

    Raises:
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    data = msgspec.msgpack.encode(_Contents(groups.first, groups.last, sections))
    return msgspec.structs.replace(write_raw(storage, path, data), name=_CONTENTS)


def fetch(storage: Storage, handle: KeyedHandle, path: str, groups: KeyGroupRange, lazy: LazyFiles | None = None) -> Fetched:
    """Fetch a base's rows of these key groups into a directory, where a store can then be opened.

    Args:
        storage: The storage with the base.
        handle: The base.
        path: The directory.
        groups: The key groups.
        lazy: Takes the SST files that are not fetched in part; None: they are fetched now.

    Raises:
        CorruptFile: a file is missing or altered.
    """
    wanted = _wanted(storage, handle, groups)
    partial: set[str] = set()

    def fetch_one(file: RawFile) -> RawFile:
        target = os.path.join(path, file.name)
        if not shared(file.name):
            fetch_raw(storage, file, target)
            return file
        partly = wanted.in_part(file)
        if link_raw(storage, file, target):
            return msgspec.structs.replace(file, foreign=partly)
        if partly and file.name.endswith(SUFFIX) and fetch_chunks(storage, file, target, wanted.keys):
            return msgspec.structs.replace(file, foreign=True)
        if partly and file.name.endswith(".sst") and fetch_parts(storage, file, target, wanted.keys):
            partial.add(file.name)
            return msgspec.structs.replace(file, foreign=True)
        if partly or lazy is None or not lazy.take(file):
            fetch_raw(storage, file, target)
        return file

    needed = [file for file in wanted.files if wanted.at_all(file)]
    left_out = [file for file in wanted.files if file.name.endswith(".sst") and not wanted.at_all(file)]
    fetched = list(in_parallel(fetch_one, needed, _AT_ONCE if lazy is None else _ENDS_AT_ONCE))
    if left_out:
        manifest = next(file.name for file in needed if file.name.startswith("MANIFEST-"))
        _leave_out(os.path.join(path, manifest), left_out)
    parts = [file for file in fetched if file.name in partial]
    if parts:
        RocksDBStore.expect_parts(path)
    return Fetched(fetched, wanted.ranges, left_out + parts)


def verified_files(storage: Storage, handle: KeyedHandle, groups: KeyGroupRange) -> list[RawFile]:
    """The files of a base that a restore of these key groups verifies: those of which it needs more than a few rows.

    Raises:
        CorruptFile: the contents file is missing or altered.
    """
    wanted = _wanted(storage, handle, groups)
    return [file for file in wanted.files if wanted.at_all(file) and not wanted.in_part(file)]


def _wanted(storage: Storage, handle: KeyedHandle, groups: KeyGroupRange) -> _Wanted:
    every = [each for each in handle.base if isinstance(each, RawFile)]
    files = [file for file in every if file.name != _CONTENTS]
    contents = next((_read_contents(storage, file) for file in every if file.name == _CONTENTS), None)
    if contents is None:
        return _Wanted(files, None, KeyRanges([(b"", END + b"\0")]), False)
    ranges = [group_range(prefix, groups) for prefix in contents.sections]
    clipped = (contents.first, contents.last) != (groups.first, groups.last)
    return _Wanted(files, ranges, KeyRanges([(META, FIRST), *ranges]), clipped)


def _read_contents(storage: Storage, file: RawFile) -> _Contents:
    with parsing(storage.locate(file.path), "a list of a base's contents"):
        return msgspec.msgpack.decode(read_raw(storage, file), type=_Contents)


def _overlap(files: Sequence[RawFile], start: bytes, end: bytes) -> bool:
    return any(start <= file.last_key and end > file.first_key for file in files)


def _leave_out(manifest: str, files: Sequence[RawFile]) -> None:
    with open(manifest, "r+b") as file:
        edited = without_files(file.read(), [(each.level, int(each.name.removesuffix(".sst"))) for each in files])
        file.seek(0)
        file.write(edited)


def copy_base(
    storage: Storage,
    handle: KeyedHandle,
    directory: str,
    groups: KeyGroupRange,
    sliced: Sliced,
    settings: Mapping[str, str],
    into: OrderedStore,
    where: str = "",
) -> None:
    """Copy a base's rows and entries of these key groups into a store, through a temporary store in ``directory``.

    Raises:
        CorruptFile: a file is missing or altered.
    """
    path = tempfile.mkdtemp(prefix=BASE_PREFIX, dir=directory)
    try:
        base = fetch(storage, handle, path, groups)
        explain = LinkedFiles(storage, path, base.files, naming(where, lambda: None)).explain
        store = RocksDBStore(path, settings, explain=explain)
        try:
            rows = chain.from_iterable(store.scan(*each) for each in _ranges(store, base, groups, sliced))
            while batch := list(islice(rows, _BATCH)):
                into.write(batch)
        finally:
            store.close()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def clip_store(store: OrderedStore, base: Fetched, groups: KeyGroupRange, sliced: Sliced) -> None:
    """Delete everything except the rows and entries of these key groups.

    Where parts of files are missing, also delete the ranges without visible rows: a later base of this store refers to the
    whole files, whose other rows would come back.
    """
    low = FIRST
    for start, end in [*_ranges(store, base, groups, sliced), (END, END)]:
        if low < start and (_overlap(base.lacking, low, start) or store.first_key(low, start) is not None):
            store.delete_range(low, start)
        low = end


def _ranges(store: OrderedStore, base: Fetched, groups: KeyGroupRange, sliced: Sliced) -> list[KeyRange]:
    if base.ranges is not None:
        return base.ranges
    return [group_range(prefix, groups) for prefix in sections_in(store, sliced)]
