"""StreamFormat: the formats of files, under PyFlink's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from holdfast.common.formats.avro import AvroSchema
from holdfast.common.serialization import DeserializationSchema
from holdfast.common.types import Row
from holdfast.common.values.type_variables import R
from holdfast.connectors.file.avro_files import AvroFormat
from holdfast.connectors.file.formats import CsvFormat, FileFormat, JsonLinesFormat, TextFormat
from holdfast.connectors.file.parquet import ArrowFormat, ParquetFormat

__all__ = ["StreamFormat"]


class StreamFormat:
    """The format of files."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> FileFormat[str]:
        """Read every line as a str.

        Raises:
            ConfigurationError: the charset is unknown, or does not extend ASCII.
        """
        return TextFormat(charset_name)

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: Literal[False] = False,
        charset_name: str = "UTF-8",
        schema: None = None,
    ) -> FileFormat[tuple[str, ...]]: ...

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",", quote: str = '"', *, header: Literal[True], charset_name: str = "UTF-8", schema: None = None
    ) -> FileFormat[dict[str, str]]: ...

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        *,
        schema: DeserializationSchema[R],
    ) -> FileFormat[R]: ...

    @overload
    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        schema: DeserializationSchema | None = None,
    ) -> FileFormat[Any]: ...

    @staticmethod
    def csv(
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        charset_name: str = "UTF-8",
        schema: DeserializationSchema | None = None,
    ) -> FileFormat[Any]:
        """Read every line as a tuple of str, or with ``header`` as a dict by the names in the file's first line.

        Args:
            delimiter: The separator of values.
            quote: The quote character of values with delimiters; doubled, it stands for itself. Line feeds within quotes
                are not supported.
            header: Whether the first line of each file names the columns.
            charset_name: The files' charset.
            schema: Deserializes a line's bytes instead; its None skips the line.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        return CsvFormat(delimiter, quote, header, charset_name, schema)

    @overload
    @staticmethod
    def json_lines(schema: None = None) -> FileFormat[Any]: ...

    @overload
    @staticmethod
    def json_lines(schema: DeserializationSchema[R]) -> FileFormat[R]: ...

    @staticmethod
    def json_lines(schema: DeserializationSchema | None = None) -> FileFormat[Any]:
        """Read every line as a JSON value, e.g. a dict; blank lines are skipped.

        Args:
            schema: Deserializes a line's bytes instead, e.g. a JsonRowDeserializationSchema.
        """
        return JsonLinesFormat(schema)

    @overload
    @staticmethod
    def parquet(
        columns: Sequence[str] | None = None, as_tuples: Literal[False] = False, as_batches: Literal[False] = False
    ) -> FileFormat[dict[str, Any]]: ...

    @overload
    @staticmethod
    def parquet(
        columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False
    ) -> FileFormat[Any]: ...

    @staticmethod
    def parquet(columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False) -> FileFormat[Any]:
        """Read every row of a Parquet file as a dict by column name, or as a tuple.

        Args:
            columns: The columns to read; None: all.
            as_tuples: Return tuples instead of dicts.
            as_batches: Return ``pyarrow.RecordBatch`` objects of many rows.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return ParquetFormat(columns, as_tuples, as_batches)

    @overload
    @staticmethod
    def arrow(
        columns: Sequence[str] | None = None, as_tuples: Literal[False] = False, as_batches: Literal[False] = False
    ) -> FileFormat[dict[str, Any]]: ...

    @overload
    @staticmethod
    def arrow(
        columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False
    ) -> FileFormat[Any]: ...

    @staticmethod
    def arrow(columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False) -> FileFormat[Any]:
        """Read every row of an Arrow IPC file (Feather); the arguments are those of `parquet`."""
        return ArrowFormat(columns, as_tuples, as_batches)

    @overload
    @staticmethod
    def avro(schema: AvroSchema | None = None, as_rows: Literal[False] = False) -> FileFormat[dict[str, Any]]: ...

    @overload
    @staticmethod
    def avro(schema: AvroSchema | None = None, *, as_rows: Literal[True]) -> FileFormat[Row]: ...

    @overload
    @staticmethod
    def avro(schema: AvroSchema | None = None, as_rows: bool = False) -> FileFormat[Any]: ...

    @staticmethod
    def avro(schema: AvroSchema | None = None, as_rows: bool = False) -> FileFormat[Any]:
        """Read every record of an Avro container file as a dict.

        Args:
            schema: The reader's schema, to which records of other schemas are converted; None: each file's own.
            as_rows: Return Rows instead of dicts.

        Raises:
            ConfigurationError: fastavro is not installed.
        """
        return AvroFormat(schema, as_rows)
