"""Watermark alignment: which splits are too far ahead of their group to get input in the next epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.runtime.protocol.instructions import Held
from holdfast.runtime.protocol.sources import SourceProgress

__all__ = ["held_back"]


def held_back(sources: Iterable[SourceProgress]) -> dict[str, Held]:
    """The splits that get no input, by the uid of their source.

    A split is held back while its watermark exceeds the lowest watermark in the group by more than its source's drift. Idle
    splits and finished sources do not count. Never all splits of a group are held back.

    Args:
        sources: All sources of the job.
    """
    groups: dict[str, list[SourceProgress]] = {}
    for source in sources:
        if source.alignment is not None and not source.finished:
            groups.setdefault(source.alignment.group, []).append(source)
    held: dict[str, Held] = {}
    for group in groups.values():
        held |= _held_in_group(group)
    return held


def _held_in_group(group: Sequence[SourceProgress]) -> dict[str, Held]:
    watermarks = {source.uid: source.active_watermarks() for source in group}
    lowest = min((each for splits in watermarks.values() for each in splits.values()), default=None)
    held: dict[str, Held] = {}
    for source in group:
        assert source.alignment is not None
        splits = watermarks[source.uid]
        ahead = [] if lowest is None else [n for n, each in splits.items() if each - lowest > source.alignment.max_drift_ms]
        if ahead:
            held[source.uid] = Held(frozenset(ahead), whole=len(ahead) == len(splits))
    return held
