"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from holdfast.cli.app import USAGE, CommandFailed

__all__ = ["Settings", "parse_settings"]

Settings = Annotated[
    list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A setting, by Flink's key; may be repeated.")
]


def parse_settings(given: Iterable[str] | None) -> dict[str, str]:
    """The settings of ``-D`` options.

    Raises:
        CommandFailed: one has no key or no value.
    """
    settings = {}
    for setting in given or ():
        key, sign, value = setting.partition("=")
        if not sign or not key.strip():
            raise CommandFailed(f"-D {setting}: write -D KEY=VALUE, e.g. -D rest.port=8082", USAGE)
        settings[key.strip()] = value.strip()
    return settings
