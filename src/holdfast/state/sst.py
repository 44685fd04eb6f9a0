"""Bases of RocksDB files: selects the files with certain key groups, opens a store from them, and clips it.

A file is fetched if its key range may contain the wanted key groups. The store opens without the other files, and range
deletes remove the other key groups' content of the fetched files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from holdfast.checkpoint.files import fetch_raw
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.in_parallel import in_parallel
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.storage import Storage
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.layout import END, FIRST, Section, after, group_range, section_of
from holdfast.state.manifest import without_files
from holdfast.state.ordered import OrderedStore
from holdfast.state.schema import OperatorSchema
from holdfast.state.store import RocksDBStore

__all__ = ["BASE_PREFIX", "clip_store", "copy_base", "fetch", "needed", "rows_of", "slicing"]

BASE_PREFIX = "base-"
"""Prefix of the directories of temporary stores."""
_BATCH = 10_000

Sliced = Callable[[int], bool]
"""Whether the state of this id has slices."""


def slicing(schema: OperatorSchema | None) -> Sliced:
    """Return a predicate for the state ids with slices."""
    ids = {state.id for state in schema.states.values() if state.slices} if schema is not None else set()
    return ids.__contains__


def needed(file: RawFile, groups: KeyGroupRange, sliced: Sliced) -> bool:
    """Whether a file may hold rows of these key groups. A file that spans several sections may."""
    first, last = file.first_key, file.last_key
    if first < FIRST and last >= FIRST and not sliced(1):
        first = FIRST  # only the store's metadata precedes FIRST
    if first < FIRST:
        return True
    at = section_of(first, sliced)
    if not last.startswith(at.prefix):
        return True
    start, end = group_range(at.prefix, groups)
    return last >= start and first < end


def fetch(storage: Storage, handle: KeyedHandle, path: str, groups: KeyGroupRange, sliced: Sliced) -> list[RawFile]:
    """Fetch a base's files with these key groups into a directory, in which a store can then be opened; returns the files.

    Raises:
        CorruptFile: a file is missing or altered.
    """
    files = [each for each in handle.base if isinstance(each, RawFile)]
    wanted = [file for file in files if not file.name.endswith(".sst") or needed(file, groups, sliced)]
    left_out = [(file.level, int(file.name.removesuffix(".sst"))) for file in files if file not in wanted]

    def fetch_one(file: RawFile) -> None:
        target = os.path.join(path, file.name)
        fetch_raw(storage, file, target)
        if left_out and file.name.startswith("MANIFEST-"):
            with open(target, "r+b") as manifest:
                edited = without_files(manifest.read(), left_out)
                manifest.seek(0)
                manifest.write(edited)

    for _ in in_parallel(fetch_one, wanted):
        pass
    return wanted


def copy_base(
    storage: Storage,
    handle: KeyedHandle,
    directory: str,
    groups: KeyGroupRange,
    sliced: Sliced,
    settings: Mapping[str, str],
    into: OrderedStore,
) -> None:
    """Copy a base's rows and entries of these key groups into a store, through a temporary store in ``directory``.

    Raises:
        CorruptFile: a file is missing or altered.
    """
    path = tempfile.mkdtemp(prefix=BASE_PREFIX, dir=directory)
    try:
        fetch(storage, handle, path, groups, sliced)
        store = RocksDBStore(path, settings)
        try:
            rows = rows_of(store, groups, sliced)
            while batch := list(islice(rows, _BATCH)):
                into.write(batch)
        finally:
            store.close()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def clip_store(store: OrderedStore, groups: KeyGroupRange, sliced: Sliced) -> None:
    """Delete all rows and entries of other key groups."""
    for at in _sections(store, sliced):
        start, end = group_range(at.prefix, groups)
        for low, high in ((at.prefix, start), (end, after(at.prefix))):
            if next(store.scan(low, high), None) is not None:
                store.delete_range(low, high)


def rows_of(store: OrderedStore, groups: KeyGroupRange, sliced: Sliced) -> Iterator[tuple[bytes, bytes]]:
    """All rows and entries of these key groups."""
    for at in _sections(store, sliced):
        yield from store.scan(*group_range(at.prefix, groups))


def _sections(store: OrderedStore, sliced: Sliced) -> Iterator[Section]:
    """The sections with content in a store, found with one seek each."""
    at = FIRST
    while (found := next(store.scan(at, END), None)) is not None:
        here = section_of(found[0], sliced)
        yield here
        at = after(here.prefix)
