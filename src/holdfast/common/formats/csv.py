"""CSV schemas: lines of separated values to Rows and back."""

from __future__ import annotations

import base64
import csv
import datetime
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.common.formats.columns import Columns
from holdfast.common.formats.csv_syntax import CsvSyntax
from holdfast.common.formats.parsed_columns import CsvColumns
from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.typeinfo import BasicTypeInfo, RowTypeInfo, SqlTimeTypeInfo, TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.typeinfo.composite import SequenceTypeInfo
from holdfast.common.types import Row
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CsvRowDeserializationSchema", "CsvRowSerializationSchema"]


_LINE_ENDS = "\r\n"
_Schema = TypeVar("_Schema", bound="CsvRowDeserializationSchema | CsvRowSerializationSchema")
_PARSE_ERRORS = (ValueError, OverflowError, TypeError, csv.Error)


class _Builder:
    """Settings shared by the builders of both schemas."""

    def __init__(self, type_info: TypeInformation) -> None:
        self._format = CsvSyntax(cast(RowTypeInfo, type_info))  # which checks it

    def _with(self, **changes: Any) -> Self:
        self._format = replace(self._format, **changes)
        return self

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        """Set the separator of array elements or nested Row fields within a field; ``;`` by default."""
        return self._with(array_delimiter=delimiter)

    def set_quote_character(self, c: str) -> Self:
        """Set the character that quotes fields; ``"`` by default."""
        return self._with(quote=_required("quote character", c))

    def set_escape_character(self, c: str) -> Self:
        """Set the escape character; by default there is none, and quotes are doubled."""
        return self._with(escape=_required("escape character", c))


def _required(what: str, c: str) -> str:
    if c is None:
        raise ConfigurationError(f"CSV: the {what} must be one character that ends no line, got None")
    return c


def _opened(kind: type[_Schema], line_format: CsvSyntax) -> _Schema:
    """A schema of a checked format."""
    schema = kind.__new__(kind)
    schema._open(line_format)
    return schema


class CsvRowDeserializationSchema(DeserializationSchema[Row]):
    """Deserializes CSV lines to Rows. Build one with `Builder`.

    Examples:
        >>> from holdfast.common import Types
        >>> row_type = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.DOUBLE()])
        >>> CsvRowDeserializationSchema.Builder(row_type).build().deserialize(b"7,2.5")
        Row(id=7, amount=2.5)

    Args:
        type_info: The records' type, ``Types.ROW`` or ``Types.ROW_NAMED``.
        field_delimiter: The separator of fields.
        array_element_delimiter: The separator of array elements or nested Row fields within a field.
        quote_character: Quotes fields.
        escape_character: By default there is none, and quotes are doubled.
        null_literal: The text of None. By default an empty field is None, unless its type is STRING.
        allow_comments: Skip lines that begin with ``#``.
        ignore_parse_errors: Drop lines that cannot be parsed.

    Raises:
        ConfigurationError: the type is not a row type, CSV cannot hold one of its fields, or a character has two meanings.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        *,
        field_delimiter: str = ",",
        array_element_delimiter: str = ";",
        quote_character: str = '"',
        escape_character: str | None = None,
        null_literal: str | None = None,
        allow_comments: bool = False,
        ignore_parse_errors: bool = False,
    ) -> None:
        characters = (field_delimiter, "\n", array_element_delimiter, quote_character, escape_character)
        self._open(CsvSyntax(type_info, *characters, null_literal, allow_comments, ignore_parse_errors).checked())

    def _open(self, line_format: CsvSyntax) -> None:
        self._format = line_format
        types = line_format.type_info.get_field_types()
        self._names = line_format.type_info.get_field_names()
        self._parsers = [_parser(t, line_format) for t in types]
        self._dialect = line_format.dialect()
        simple = line_format.escape is None and line_format.null_literal is None and not line_format.comments
        self._columns: CsvColumns | None = None
        if simple and CsvColumns.takes(line_format.type_info):
            self._columns = CsvColumns(line_format.type_info, line_format.field_delimiter, line_format.quote)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (type(self), self._format)

    class Builder(_Builder):
        """Builds a `CsvRowDeserializationSchema`.

        Args:
            type_info: the records' type, ``Types.ROW`` or ``Types.ROW_NAMED``.

        Raises:
            ConfigurationError: the type is not a row type, or CSV cannot hold one of its fields.
        """

        def set_field_delimiter(self, delimiter: str) -> CsvRowDeserializationSchema.Builder:
            """Set the field delimiter; ``,`` by default."""
            return self._with(field_delimiter=delimiter)

        def set_null_literal(self, null_literal: str) -> CsvRowDeserializationSchema.Builder:
            """Set the text of None. By default an empty field is None, unless its type is STRING."""
            return self._with(null_literal=null_literal)

        def set_allow_comments(self, allow_comments: bool) -> CsvRowDeserializationSchema.Builder:
            """Skip lines that begin with ``#``."""
            return self._with(comments=allow_comments)

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> CsvRowDeserializationSchema.Builder:
            """Drop lines that cannot be parsed."""
            return self._with(ignore_parse_errors=ignore_parse_errors)

        def build(self) -> CsvRowDeserializationSchema:
            """Build the schema.

            Raises:
                ConfigurationError: a character has two meanings.
            """
            return _opened(CsvRowDeserializationSchema, self._format.checked())

    def get_produced_type(self) -> TypeInformation:
        """The records' type."""
        return self._format.type_info

    def deserialize(self, data: bytes) -> Row | None:
        """Parse a line to a Row; return None for a comment or an ignored parse error.

        Raises:
            ValueError: the line does not fit the type; names the field.
        """
        try:
            text = str(data, "utf-8")
            if self._format.comments and text.startswith("#"):
                return None
            line = text.rstrip("\r\n")
            if len(line) > csv.field_size_limit():
                csv.field_size_limit(len(line))  # the limit guards against unclosed quotes; here the line ends them
            lines = list(csv.reader([line], **self._dialect))
            return self._row(lines[0] if lines else [])
        except _PARSE_ERRORS as e:
            if self._format.ignore_parse_errors:
                return None
            raise ValueError(f"not a CSV line of the declared type: {e}, in {shown(bytes(data))}") from e

    def columns_of_lines(self, text: bytes) -> Columns | None:
        """Parse a text of whole lines to columns; None if its lines must be parsed one by one."""
        return None if self._columns is None else self._columns.of_text(text)

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Parse each line to a Row; None for a comment or an ignored parse error."""
        if self._format.comments:
            return [self.deserialize(line) for line in data]
        columns = None if self._columns is None else self._columns.columns(data)
        if columns is not None:
            return columns.as_list()
        try:
            rows = list(csv.reader([str(line, "utf-8").rstrip("\r\n") for line in data], **self._dialect))
            # An unclosed quote swallows the next line, which leaves fewer rows than lines.
            if len(rows) == len(data):
                return [self._row(row) for row in rows]
        except _PARSE_ERRORS:
            pass  # one by one below: drops the bad lines or names the first
        return [self.deserialize(line) for line in data]

    def _row(self, texts: list[str]) -> Row:
        parsers = self._parsers
        if len(texts) != len(parsers):
            raise ValueError(f"expected {len(parsers)} fields, got {len(texts)}")
        try:
            return Row.of_values([parse(text) for parse, text in zip(parsers, texts, strict=True)], self._names)
        except (ValueError, OverflowError, TypeError):
            for parse, text, name in zip(parsers, texts, self._names, strict=True):
                try:
                    parse(text)
                except (ValueError, OverflowError, TypeError) as e:
                    raise ValueError(f"field {name}: {e}") from e
            raise


class CsvRowSerializationSchema(SerializationSchema):
    r"""Serializes Rows to CSV lines. Build one with `Builder`.

    Examples:
        >>> from holdfast.common import Row, Types
        >>> row_type = Types.ROW([Types.LONG(), Types.STRING()])
        >>> CsvRowSerializationSchema.Builder(row_type).build().serialize(Row(7, "a,b"))
        b'7,"a,b"\n'

    Args:
        type_info: The records' type, ``Types.ROW`` or ``Types.ROW_NAMED``.
        field_delimiter: The separator of fields.
        array_element_delimiter: The separator of array elements or nested Row fields within a field.
        quote_character: Quotes fields; None: never, and a delimiter within a field needs an escape character.
        escape_character: By default there is none, and quotes are doubled.
        null_literal: The text of None. By default an empty field.
        line_delimiter: ``\n``, ``\r``, ``\r\n`` or nothing.

    Raises:
        ConfigurationError: the type is not a row type, CSV cannot hold one of its fields, or a character has two meanings.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        *,
        field_delimiter: str = ",",
        array_element_delimiter: str = ";",
        quote_character: str | None = '"',
        escape_character: str | None = None,
        null_literal: str | None = None,
        line_delimiter: str = "\n",
    ) -> None:
        characters = (field_delimiter, line_delimiter, array_element_delimiter, quote_character, escape_character)
        self._open(CsvSyntax(type_info, *characters, null_literal).checked())

    def _open(self, line_format: CsvSyntax) -> None:
        self._format = line_format
        self._conform = line_format.type_info.conform
        self._names = line_format.type_info.get_field_names()
        self._formatters = [_formatter(t, line_format) for t in line_format.type_info.get_field_types()]

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (type(self), self._format)

    class Builder(_Builder):
        """Builds a `CsvRowSerializationSchema`.

        Args:
            type_info: the records' type, ``Types.ROW`` or ``Types.ROW_NAMED``.

        Raises:
            ConfigurationError: the type is not a row type, or CSV cannot hold one of its fields.
        """

        def set_field_delimiter(self, c: str) -> CsvRowSerializationSchema.Builder:
            """Set the field delimiter; ``,`` by default."""
            return self._with(field_delimiter=c)

        def set_null_literal(self, s: str) -> CsvRowSerializationSchema.Builder:
            """Set the text of None; by default an empty field."""
            return self._with(null_literal=s)

        def set_line_delimiter(self, delimiter: str) -> CsvRowSerializationSchema.Builder:
            r"""Set the line delimiter: ``\n`` (the default), ``\r``, ``\r\n`` or nothing."""
            return self._with(line_delimiter=delimiter)

        def disable_quote_character(self) -> CsvRowSerializationSchema.Builder:
            """Never quote fields; a delimiter within a field then needs an escape character."""
            return self._with(quote=None)

        def build(self) -> CsvRowSerializationSchema:
            """Build the schema.

            Raises:
                ConfigurationError: a character has two meanings.
            """
            return _opened(CsvRowSerializationSchema, self._format.checked())

    def serialize(self, value: Any) -> bytes:
        """Format a Row as a line.

        Raises:
            TypeError: the record is not of the declared type.
            ValueError: the same, or a field cannot be written without a quote or escape character.
        """
        row = self._conform(value)
        try:
            return self._line([write(field) for write, field in zip(self._formatters, row, strict=True)])
        except (ValueError, OverflowError, csv.Error) as e:
            for write, field, name in zip(self._formatters, row, self._names, strict=True):
                self._check(write, field, name)
            raise ValueError(f"{shown(value)} is no CSV line: {e}; set a quote or an escape character") from e

    def _line(self, texts: list[str]) -> bytes:
        out = io.StringIO()
        # The writer quotes fields with its own line ends, of which these two are all.
        csv.writer(out, lineterminator=_LINE_ENDS, **self._format.dialect()).writerow(texts)
        line = out.getvalue()[: -len(_LINE_ENDS)]
        if line.startswith("#"):  # a reader may take it for a comment
            line = self._not_a_comment(texts[0], line)
        return (line + self._format.line_delimiter).encode()

    def _not_a_comment(self, first: str, line: str) -> str:
        quote, escape = self._format.quote, self._format.escape
        if "#" in (quote, escape, self._format.field_delimiter):
            return line  # whose reader has no comments
        if quote is not None:
            return f"{quote}{first}{quote}{line[len(first) :]}"
        return line if escape is None else escape + line

    def _check(self, write: Callable[[Any], str], field: Any, name: str) -> None:
        try:
            self._line([write(field), "0"])  # another field, because a line of one empty field needs quotes
        except csv.Error as e:
            raise ValueError(f"field {name}: {shown(field)}: {e}; set a quote or an escape character") from e
        except (ValueError, OverflowError) as e:
            raise ValueError(f"field {name}: {e}") from e


def _number(kind: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            if "_" in text:
                raise ValueError  # Python accepts underscores in numbers; other CSV writers and readers do not
            return parse(text.strip())
        except (ValueError, InvalidOperation):
            raise ValueError(f"expected {kind}, got {text!r}") from None

    return convert


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"expected true or false, got {text!r}")
    return lowered == "true"


_PARSE: dict[str, Callable[[str], Any]] = {
    "STRING": str,
    "CHAR": str,
    "BOOLEAN": _boolean,
    "BYTE": _number("BYTE", int),
    "SHORT": _number("SHORT", int),
    "INT": _number("INT", int),
    "LONG": _number("LONG", int),
    "BIG_INT": _number("BIG_INT", int),
    "FLOAT": _number("FLOAT", float),
    "DOUBLE": _number("DOUBLE", float),
    "BIG_DEC": _number("BIG_DEC", Decimal),
    "SQL_DATE": _number("a date like 2026-01-31", datetime.date.fromisoformat),
    "SQL_TIME": _number("a time like 12:30:00", datetime.time.fromisoformat),
    "SQL_TIMESTAMP": _number("a timestamp like 2026-01-31 12:30:00", datetime.datetime.fromisoformat),
}


def _kind(type_info: TypeInformation) -> str:
    if isinstance(type_info, BasicTypeInfo):
        return type_info.basic_type.name
    return type_info.kind if isinstance(type_info, SqlTimeTypeInfo) else ""


def _parser(type_info: TypeInformation, line_format: CsvSyntax, nested: bool = False) -> Callable[[str], Any]:
    kind, null = _kind(type_info), line_format.null_literal
    if kind in _PARSE:
        parse, conform, empty_is_none = _PARSE[kind], type_info.conform, kind != "STRING"

        def field(text: str) -> Any:
            if text == null or (not text and empty_is_none):
                return None
            return conform(parse(text))

        return field
    if isinstance(type_info, SequenceTypeInfo) and type_info.annotation is bytes:
        if null:
            return lambda text: None if text == null else base64.b64decode(text, validate=True)
        return lambda text: base64.b64decode(text, validate=True) if text else None
    if nested or not isinstance(type_info, (SequenceTypeInfo, RowTypeInfo)):
        raise ConfigurationError(f"{type_info!r} has no form in a CSV field")
    delimiter = line_format.array_delimiter
    if isinstance(type_info, SequenceTypeInfo):
        element = _parser(type_info.element_type, line_format, nested=True)
        return lambda text: None if text == null else [element(part) for part in text.split(delimiter)] if text else []
    names = type_info.get_field_names()
    parsers = [_parser(t, line_format, nested=True) for t in type_info.get_field_types()]

    def row(text: str) -> Row | None:
        if text == null or not text:
            return None
        parts = text.split(delimiter)
        if len(parts) != len(parsers):
            raise ValueError(f"expected {len(parsers)} parts separated by {delimiter!r}, got {text!r}")
        return Row.of_values([parse(part) for parse, part in zip(parsers, parts, strict=True)], names)

    return row


def _formatter(type_info: TypeInformation, line_format: CsvSyntax, nested: bool = False) -> Callable[[Any], str]:
    kind, null = _kind(type_info), line_format.null_literal or ""
    if kind in _PARSE:
        write: Callable[[Any], str] = str
        if kind == "BOOLEAN":
            write = lambda value: "true" if value else "false"  # noqa: E731
        elif kind == "DOUBLE" or kind == "FLOAT":
            write = repr
    elif isinstance(type_info, SequenceTypeInfo) and type_info.annotation is bytes:
        write = lambda value: base64.b64encode(value).decode()  # noqa: E731
    elif nested or not isinstance(type_info, (SequenceTypeInfo, RowTypeInfo)):
        raise ConfigurationError(f"{type_info!r} has no form in a CSV field")
    elif isinstance(type_info, SequenceTypeInfo):
        element = _formatter(type_info.element_type, line_format, nested=True)
        write = lambda values: _joined([element(v) for v in values], line_format, "an empty array")  # noqa: E731
    else:
        fields = [_formatter(t, line_format, nested=True) for t in type_info.get_field_types()]
        write = lambda row: _joined(  # noqa: E731
            [f(v) for f, v in zip(fields, row, strict=True)], line_format, "None"
        )

    def field(value: Any) -> str:
        if value is None:
            return null
        text = write(value)
        if text == null and text:
            raise ValueError(f"{shown(value)} would be read back as None: its text is the null literal {null!r}")
        return text

    return field


def _joined(parts: list[str], line_format: CsvSyntax, empty: str) -> str:
    """The elements of an array, or the fields of a nested Row, in one field, which has no escapes for them."""
    delimiter = line_format.array_delimiter
    if parts == [""]:
        raise ValueError(f"one empty element would be read back as {empty}")
    for part in parts:
        if delimiter in part:
            raise ValueError(f"{part!r} contains the array element delimiter {delimiter!r}: set another one")
    return delimiter.join(parts)
