"""Texts of a declared type as columns: JSON objects by way of structs, CSV lines by Arrow's own parser."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import Columns, as_rows, column_schema, columns_available
from holdfast.common.typeinfo import BasicTypeInfo, RowTypeInfo, SqlTimeTypeInfo, TypeInformation, Types
from holdfast.common.types import Row

__all__ = ["CsvColumns", "ParsedColumns", "can_parse"]


def can_parse(declared: TypeInformation) -> bool:
    """Whether texts of a type can be columns: Rows of numbers, strings, booleans and bytes, none of them rounded."""
    if not columns_available() or not isinstance(declared, RowTypeInfo) or column_schema(declared) is None:
        return False
    types = declared.get_field_types()
    return Types.FLOAT() not in types and not any(isinstance(each, SqlTimeTypeInfo) for each in types)


class ParsedColumns(Columns):
    """Structs with a field for each column, which become rows or columns when either are asked for.

    Args:
        structs: The structs, of a class of msgspec.
        declared: The type of the records, with as many fields.
    """

    def __init__(self, structs: list[Any], declared: RowTypeInfo) -> None:
        super().__init__(None)
        self._structs = structs
        self._declared = declared

    @property
    def batch(self) -> Any:
        """The record batch, made on the first use."""
        if self._batch is None:
            library, schema = pyarrow(), column_schema(self._declared)
            fields = self._structs[0].__struct_fields__ if self._structs else ()
            lists = [list(map(attrgetter(name), self._structs)) for name in fields] or [[] for _ in schema]
            arrays = [library.array(values, field.type) for values, field in zip(lists, schema, strict=True)]
            self._batch = library.RecordBatch.from_arrays(arrays, schema=schema)
        return self._batch

    def rows(self) -> list[Any]:
        """The records, made on the first call."""
        if self._rows is None:
            names, astuple, of_values = self._declared.get_field_names(), msgspec.structs.astuple, Row.of_values
            self._rows = [of_values(list(astuple(each)), names) for each in self._structs]
        return self._rows

    def part(self, first: int, end: int) -> Columns:
        """The records from ``first`` up to ``end``."""
        return ParsedColumns(self._structs[first:end], self._declared)

    def __len__(self) -> int:
        return len(self._structs)


class CsvColumns:
    """Parses CSV lines into columns. What Arrow might read otherwise than Python is left to Python.

    Args:
        declared: The type of the lines.
        delimiter: Between fields.
        quote: The quote character; None: there is none.
    """

    def __init__(self, declared: RowTypeInfo, delimiter: str, quote: str | None) -> None:
        self._schema = column_schema(declared)
        self._delimiter = delimiter
        self._quote = None if quote is None else quote.encode()
        # Arrow reads hexadecimal integers and nan(...), and ends lines at carriage returns.
        types = declared.get_field_types()
        hexadecimal = (b"0x", b"0X") if Types.STRING() in types else (b"x", b"X")  # one byte is found much faster
        self._strange = [b"\r", *hexadecimal, *([b"("] if Types.DOUBLE() in types else [])]

    @staticmethod
    def takes(declared: RowTypeInfo) -> bool:
        """Whether Arrow parses lines of this type."""
        return can_parse(declared) and all(isinstance(each, BasicTypeInfo) for each in declared.get_field_types())

    def columns(self, lines: Sequence[bytes]) -> Columns | None:
        """The columns of some lines; None if they must be parsed one by one."""
        text = b"\n".join(lines)
        return self.of_text(text) if text.count(b"\n") == len(lines) - 1 else None

    def of_text(self, text: bytes) -> Columns | None:
        """The columns of the lines of a text without blank ones; None if they must be parsed one by one."""
        if self._quote is not None and self._quote in text:
            return None
        if any(strange in text for strange in self._strange) or text.startswith(codecs.BOM_UTF8):  # Arrow drops the mark
            return None
        from pyarrow import csv

        library, schema = pyarrow(), self._schema
        try:
            table = csv.read_csv(
                library.py_buffer(text),
                csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=len(text) + 1),
                csv.ParseOptions(delimiter=self._delimiter, quote_char=False),
                csv.ConvertOptions(
                    column_types=schema,
                    null_values=[""],
                    true_values=["true", "True", "TRUE"],
                    false_values=["false", "False", "FALSE"],
                    strings_can_be_null=False,
                ),
            )
        except library.ArrowInvalid:
            return None  # a line does not fit, or only Python can read it
        batches = table.combine_chunks().to_batches()
        if table.num_rows != text.count(b"\n") + 1 or len(batches) != 1:  # there is a blank line
            return None
        return Columns(batches[0], as_rows)
