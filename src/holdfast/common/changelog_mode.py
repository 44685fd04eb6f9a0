"""How changes of tables become rows: the settings that sources and formats of change data share."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.errors import ConfigurationError

__all__ = ["ChangelogMode", "MissingColumns", "check_choice"]

ChangelogMode = Literal["all", "upsert"]
"""``all``: updates as two rows, with the old one. ``upsert``: updates as the new row."""
MissingColumns = Literal["fail", "null"]
"""What becomes of a declared column that a change does not have: an error, or None."""


def check_choice(name: str, given: Any, *known: str) -> None:
    """Check an argument.

    Raises:
        ConfigurationError: the argument is none of the known ones.
    """
    if given not in known:
        raise ConfigurationError(f"{name} is one of {', '.join(known)}, not {given!r:.80}")
