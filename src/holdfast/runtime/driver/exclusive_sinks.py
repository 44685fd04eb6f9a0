"""Sinks that must be the only ones with a name, such as a prefix of Kafka's transactional ids."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connectors.base import ExclusiveSink, Sink
from holdfast.errors import ConfigurationError

__all__ = ["check_exclusive"]


def check_exclusive(sinks: Sequence[tuple[str, Sink]]) -> None:
    """Refuse a job in which two sinks claim the same exclusive name.

    Args:
        sinks: The sinks with their uids.

    Raises:
        ConfigurationError: names both.
    """
    holders: dict[str, str] = {}
    for uid, sink in sinks:
        name = sink.exclusive_name if isinstance(sink, ExclusiveSink) else None
        if name is None:
            continue
        if name in holders:
            raise ConfigurationError(
                f"two sinks of the job (uids {holders[name]} and {uid}) have {name}: each needs one of its own. Give them "
                "different ones, or unite the streams and write them by one sink"
            )
        holders[name] = uid
