"""CsvSyntax: how a record is written as a line of separated values."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

from holdfast.common.typeinfo import RowTypeInfo
from holdfast.errors import ConfigurationError

__all__ = ["CsvSyntax"]

_LINE_ENDS = ("\n", "\r")


@dataclass(frozen=True)
class CsvSyntax:
    """The type of a record, and the syntax of its CSV line.

    Raises:
        ConfigurationError: the type is not a row type, or a character or a delimiter cannot be used.
    """

    type_info: RowTypeInfo
    field_delimiter: str = ","
    line_delimiter: str = "\n"
    array_delimiter: str = ";"
    quote: str | None = '"'
    escape: str | None = None
    null_literal: str | None = None
    comments: bool = False
    ignore_parse_errors: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.type_info, RowTypeInfo):
            raise ConfigurationError(f"a CSV schema takes Types.ROW or Types.ROW_NAMED, got {self.type_info!r}")
        for what, c in self._characters().items():
            if c is not None and (not isinstance(c, str) or len(c) != 1 or c in _LINE_ENDS):
                raise ConfigurationError(f"CSV: the {what} must be one character that ends no line, got {c!r}")
        if not isinstance(self.array_delimiter, str) or not self.array_delimiter:
            raise ConfigurationError(f"CSV: the array element delimiter must not be empty, got {self.array_delimiter!r}")
        if self.line_delimiter not in ("\n", "\r", "\r\n", ""):
            raise ConfigurationError(f"CSV: a line ends with \\n, \\r, \\r\\n or nothing, not with {self.line_delimiter!r}")

    def _characters(self) -> dict[str, str | None]:
        return {
            "field delimiter": self.field_delimiter,
            "quote character": self.quote,
            "escape character": self.escape,
        }

    def checked(self) -> CsvSyntax:
        """The format itself, if its characters have one meaning each.

        Raises:
            ConfigurationError: one has two.
        """
        meanings = dict[str, str]()
        comment = "#" if self.comments else None
        for what, c in {**self._characters(), "first character of comments": comment}.items():
            if c is not None and meanings.setdefault(c, what) != what:
                raise ConfigurationError(f"CSV: the {meanings[c]} and the {what} must differ, both are {c!r}")
        return self

    def dialect(self) -> dict[str, Any]:
        """The arguments of the csv library."""
        return {
            "delimiter": self.field_delimiter,
            "quotechar": self.quote,
            "quoting": csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            "escapechar": self.escape,
            "doublequote": self.escape is None,
            "strict": True,
        }
