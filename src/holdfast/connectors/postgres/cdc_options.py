"""The arguments of a PostgresCdcSource, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns, check_choice
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.connectors.postgres.values import accepted_types
from holdfast.errors import ConfigurationError

__all__ = ["OnTruncate", "PostgresCdcOptions"]

OnTruncate = Literal["fail", "skip", "emit"]
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True)
class PostgresCdcOptions:
    """The arguments of a `PostgresCdcSource`."""

    url: str = field(repr=False)
    password: str | None = field(repr=False)
    tables: Mapping[str, RowTypeInfo]
    slot_name: str
    publication: str
    changelog_mode: ChangelogMode
    snapshot: bool
    on_truncate: OnTruncate
    missing_columns: MissingColumns
    chunk_size: int
    deserializer: Callable[[Any], Any] | None
    failover: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not re.match(r"postgres(ql)?://", self.url):
            raise ConfigurationError("the url of a PostgresCdcSource is postgresql://user@host:port/database")
        if not isinstance(self.slot_name, str) or not _SLOT.fullmatch(self.slot_name):
            raise ConfigurationError(
                f"{self.slot_name!r} is no slot_name: PostgreSQL takes 1 to 63 lower-case letters, digits and underscores"
            )
        if not isinstance(self.tables, Mapping) or not self.tables:
            raise ConfigurationError(
                "a PostgresCdcSource needs tables: {'public.orders': Types.ROW_NAMED([columns], [types])}"
            )
        for table, row in self.tables.items():
            _check_table(table, row)
        check_choice("changelog_mode", self.changelog_mode, "all", "upsert")
        check_choice("on_truncate", self.on_truncate, "fail", "skip", "emit")
        check_choice("missing_columns", self.missing_columns, "fail", "null")
        if not isinstance(self.failover, bool):
            raise ConfigurationError(f"failover is True or False, not {self.failover!r:.80}")
        size = self.chunk_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigurationError(f"chunk_size is a number of rows from 1, not {size!r:.80}")
        if self.deserializer is not None and not callable(self.deserializer):
            raise ConfigurationError(f"the deserializer is a callable from a Change, not {self.deserializer!r:.80}")


def _check_table(table: str, row: RowTypeInfo) -> None:
    if not isinstance(table, str) or table.count(".") != 1 or not all(table.split(".")):
        raise ConfigurationError(f"name the table {table!r} with its schema: 'public.orders'")
    if not isinstance(row, RowTypeInfo):
        raise ConfigurationError(f"the columns of {table} are a Types.ROW_NAMED([columns], [types]), not {row!r:.80}")
    for column, declared in zip(row.get_field_names(), row.get_field_types()):
        try:
            accepted_types(declared)
        except ValueError as error:
            raise ConfigurationError(f"{table}, column {column!r}: {error}") from None
