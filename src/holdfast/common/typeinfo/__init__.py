"""The types that streams, keys and states are declared with: `Types` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

from holdfast.common.system.jvm_only import refusing
from holdfast.common.typeinfo.base import TypeInformation
from holdfast.common.typeinfo.basic import (
    BasicType,
    BasicTypeInfo,
    ByteTypeInfo,
    InstantTypeInfo,
    PickledBytesTypeInfo,
    SqlTimeTypeInfo,
)
from holdfast.common.typeinfo.composite import (
    BasicArrayTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
)
from holdfast.common.typeinfo.pojo import PojoTypeInfo
from holdfast.common.values.type_variables import S, V

if TYPE_CHECKING:
    import datetime
    from decimal import Decimal

    from holdfast.common.time import Instant

__all__ = [
    "BasicArrayTypeInfo",
    "BasicType",
    "BasicTypeInfo",
    "ByteTypeInfo",
    "InstantTypeInfo",
    "ListTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PojoTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "SqlTimeTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
]


class Types:
    """The factories of types.

    Examples:
        >>> Types.TUPLE([Types.STRING(), Types.LONG()]).conform(("a", 1.0))
        ('a', 1)
        >>> Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.DOUBLE()]).conform((7, 2))
        Row(id=7, amount=2.0)
    """

    @staticmethod
    def STRING() -> TypeInformation[str]:
        """The type of str."""
        return BasicTypeInfo(BasicType.STRING)

    @staticmethod
    def BYTE() -> ByteTypeInfo:
        """The type of whole numbers of 8 bits."""
        return ByteTypeInfo(BasicType.BYTE)

    @staticmethod
    def BOOLEAN() -> TypeInformation[bool]:
        """The type of bool."""
        return BasicTypeInfo(BasicType.BOOLEAN)

    @staticmethod
    def SHORT() -> TypeInformation[int]:
        """The type of whole numbers of 16 bits."""
        return BasicTypeInfo(BasicType.SHORT)

    @staticmethod
    def INT() -> TypeInformation[int]:
        """The type of whole numbers of 32 bits."""
        return BasicTypeInfo(BasicType.INT)

    @staticmethod
    def LONG() -> TypeInformation[int]:
        """The type of whole numbers of 64 bits."""
        return BasicTypeInfo(BasicType.LONG)

    @staticmethod
    def FLOAT() -> TypeInformation[float]:
        """The type of floating point numbers of 32 bits."""
        return BasicTypeInfo(BasicType.FLOAT)

    @staticmethod
    def DOUBLE() -> TypeInformation[float]:
        """The type of floating point numbers of 64 bits, Python's float."""
        return BasicTypeInfo(BasicType.DOUBLE)

    @staticmethod
    def CHAR() -> TypeInformation[str]:
        """The type of a str of one character."""
        return BasicTypeInfo(BasicType.CHAR)

    @staticmethod
    def BIG_INT() -> TypeInformation[int]:
        """The type of whole numbers of any size."""
        return BasicTypeInfo(BasicType.BIG_INT)

    @staticmethod
    def BIG_DEC() -> TypeInformation[Decimal]:
        """The type of ``decimal.Decimal``; all digits are kept."""
        return BasicTypeInfo(BasicType.BIG_DEC)

    @staticmethod
    def INSTANT() -> TypeInformation[Instant]:
        """The type of `Instant`."""
        return InstantTypeInfo(BasicType.INSTANT)

    @staticmethod
    def SQL_DATE() -> TypeInformation[datetime.date]:
        """The type of ``datetime.date``."""
        return SqlTimeTypeInfo("SQL_DATE")

    @staticmethod
    def SQL_TIME() -> TypeInformation[datetime.time]:
        """The type of ``datetime.time`` without a time zone, to the millisecond."""
        return SqlTimeTypeInfo("SQL_TIME")

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation[datetime.datetime]:
        """The type of ``datetime.datetime`` without a time zone, to the millisecond."""
        return SqlTimeTypeInfo("SQL_TIMESTAMP")

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation[Any]:
        """The type of any value that can be pickled."""
        return PickledBytesTypeInfo()

    @staticmethod
    def ROW(field_types: list[TypeInformation]) -> RowTypeInfo:
        """The type of a Row with the fields f0, f1, ..."""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: list[str], field_types: list[TypeInformation]) -> RowTypeInfo:
        """The type of a Row with these fields."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def POJO(pojo_class: type[V], field_types: Mapping[str, TypeInformation[Any]] | None = None) -> PojoTypeInfo[V]:
        """The type of a dataclass or a named tuple, stored by the names of its fields.

        Args:
            pojo_class: The class. Fields get their types from its annotations.
            field_types: By name: the types of fields that need another one.
        """
        return PojoTypeInfo(pojo_class, field_types)

    @staticmethod
    def TUPLE(field_types: list[TypeInformation]) -> TupleTypeInfo:
        """The type of a tuple with these fields."""
        return TupleTypeInfo(field_types)

    @overload
    @staticmethod
    def PRIMITIVE_ARRAY(element_type: ByteTypeInfo) -> TypeInformation[bytes]: ...  # type: ignore[overload-overlap]
    @overload
    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation[V]) -> TypeInformation[list[V]]: ...
    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation[Any]) -> TypeInformation[Any]:
        """The type of a list of numbers, booleans or characters; of bytes when the element type is BYTE."""
        return PrimitiveArrayTypeInfo(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation[V]) -> TypeInformation[list[V]]:
        """The type of a list of basic values."""
        return BasicArrayTypeInfo(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation[V]) -> TypeInformation[list[V]]:
        """The type of a list of any type."""
        return ObjectArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation[S], value_type_info: TypeInformation[V]) -> TypeInformation[dict[S, V]]:
        """The type of a dict."""
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation[V]) -> TypeInformation[list[V]]:
        """The type of a list."""
        return ListTypeInfo(element_type_info)


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "DateTypeInfo": "it converts values for the Table API; use Types.SQL_DATE()",
            "TimeTypeInfo": "it converts values for the Table API; use Types.SQL_TIME()",
            "TimestampTypeInfo": "it converts values for the Table API; use Types.SQL_TIMESTAMP()",
            "LocalTimeTypeInfo": "it converts values for the Table API; use Types.SQL_TIMESTAMP()",
            "ExternalTypeInfo": "it converts values for the Table API; use Types.ROW(...)",
        },
    )
