"""Types of single values: numbers, strings, points of time, and pickled objects."""

from __future__ import annotations

import datetime
import operator
import struct
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import Annotated, Any, ClassVar

import msgspec

from holdfast.common.time import Instant
from holdfast.common.typeinfo.base import TypeInformation, refuse, register, shown
from holdfast.common.values import pickling
from holdfast.common.values.type_variables import V

__all__ = ["BasicType", "BasicTypeInfo", "ByteTypeInfo", "InstantTypeInfo", "PickledBytesTypeInfo", "SqlTimeTypeInfo"]

Conform = Callable[[Any], Any]


class BasicType(Enum):
    """The basic types, by the names of Java's."""

    STRING = "String"
    BYTE = "Byte"
    BOOLEAN = "Boolean"
    SHORT = "Short"
    INT = "Integer"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    CHAR = "Char"
    BIG_INT = "BigInteger"
    BIG_DEC = "BigDecimal"
    INSTANT = "Instant"


_NUMBERS: tuple[Any, ...] = (Real, Decimal)


def _to_int(kind: str, value: Any) -> int:
    number: int | None
    try:
        return operator.index(value)
    except TypeError:
        if not isinstance(value, _NUMBERS):
            raise refuse(kind, value) from None
    try:
        number = int(value)
    except (ValueError, OverflowError):  # nan, inf
        number = None
    if number is None or number != value:
        raise ValueError(f"{kind} cannot hold {value!r} without loss: round it first, or declare DOUBLE")
    return number


def _integer(kind: str, bits: int) -> Conform:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def conform(value: Any) -> int:
        number = value if type(value) is int else _to_int(kind, value)
        if low <= number <= high:
            return number
        raise OverflowError(f"{kind} holds {low} to {high}, got {number}")

    return conform


def _bounded(bits: int) -> Any:
    """The annotation of an integer of this many bits, so that decoding checks it, too."""
    return Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]


def _big_int(value: Any) -> int:
    return value if type(value) is int else _to_int("BIG_INT", value)


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise refuse("BOOLEAN", value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise refuse("STRING", value)
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise ValueError(f"STRING cannot hold {shown(value)}: a lone surrogate at index {e.start}") from None
    return text


def _char(value: Any) -> str:
    if isinstance(value, str) and len(value) == 1:
        return _string(value)
    raise refuse("CHAR", value, "it holds exactly one character")


def _real(kind: str, value: Any) -> float:
    if not isinstance(value, _NUMBERS):
        raise refuse(kind, value)
    try:
        return float(value)
    except OverflowError:
        raise OverflowError(f"{kind} cannot hold {shown(value)}: too large") from None


def _double(value: Any) -> float:
    return value if type(value) is float else _real("DOUBLE", value)


_FLOAT = struct.Struct("<f")


def _float(value: Any) -> float:
    number = value if type(value) is float else _real("FLOAT", value)
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    except OverflowError:
        raise OverflowError(f"FLOAT holds up to 3.4e38, got {number!r}") from None
    return rounded


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        number = Decimal(value)
    elif isinstance(value, int):
        number = Decimal(int(value))
    else:
        raise refuse("BIG_DEC", value, "convert it with decimal.Decimal(...)")
    if not number.is_finite():
        raise ValueError(f"BIG_DEC holds finite numbers only, got {number}")
    return number


def _int_to_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _int_from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _instant(value: Any) -> Instant:
    if isinstance(value, Instant):
        return value if type(value) is Instant else Instant(value.seconds, value.nanos)
    raise refuse("INSTANT", value)


_BASIC: dict[BasicType, tuple[Any, Conform, tuple[Conform, Conform] | None]] = {
    BasicType.STRING: (str, _string, None),
    BasicType.BOOLEAN: (bool, _boolean, None),
    BasicType.BYTE: (_bounded(8), _integer("BYTE", 8), None),
    BasicType.SHORT: (_bounded(16), _integer("SHORT", 16), None),
    BasicType.INT: (_bounded(32), _integer("INT", 32), None),
    BasicType.LONG: (_bounded(64), _integer("LONG", 64), None),
    BasicType.FLOAT: (float, _float, (_float, _double)),
    BasicType.DOUBLE: (float, _double, None),
    BasicType.CHAR: (Annotated[str, msgspec.Meta(min_length=1, max_length=1)], _char, None),
    BasicType.BIG_INT: (bytes, _big_int, (_int_to_bytes, _int_from_bytes)),
    BasicType.BIG_DEC: (str, _decimal, (str, Decimal)),
    BasicType.INSTANT: (tuple[int, int], _instant, (lambda i: (i.seconds, i.nanos), lambda s: Instant(*s))),
}


class BasicTypeInfo(TypeInformation[V]):
    """The type of single values.

    Whole numbers take floats (and anything that acts as a number) only where nothing is lost; DOUBLE and FLOAT take
    whole numbers; FLOAT rounds to 32 bits.
    """

    basic_type: BasicType

    def __init__(self, basic_type: BasicType) -> None:
        self.__dict__["basic_type"] = basic_type
        self._seal((basic_type.name,), *_BASIC[basic_type])

    def _describe(self) -> dict[str, Any]:
        return {"type": self.basic_type.name}

    def _text(self) -> str:
        return self.basic_type.value

    @staticmethod
    def STRING_TYPE_INFO() -> BasicTypeInfo[str]:
        """Same as ``Types.STRING()``."""
        return BasicTypeInfo(BasicType.STRING)

    @staticmethod
    def BOOLEAN_TYPE_INFO() -> BasicTypeInfo[bool]:
        """Same as ``Types.BOOLEAN()``."""
        return BasicTypeInfo(BasicType.BOOLEAN)

    @staticmethod
    def BYTE_TYPE_INFO() -> ByteTypeInfo:
        """Same as ``Types.BYTE()``."""
        return ByteTypeInfo(BasicType.BYTE)

    @staticmethod
    def SHORT_TYPE_INFO() -> BasicTypeInfo[int]:
        """Same as ``Types.SHORT()``."""
        return BasicTypeInfo(BasicType.SHORT)

    @staticmethod
    def INT_TYPE_INFO() -> BasicTypeInfo[int]:
        """Same as ``Types.INT()``."""
        return BasicTypeInfo(BasicType.INT)

    @staticmethod
    def LONG_TYPE_INFO() -> BasicTypeInfo[int]:
        """Same as ``Types.LONG()``."""
        return BasicTypeInfo(BasicType.LONG)

    @staticmethod
    def FLOAT_TYPE_INFO() -> BasicTypeInfo[float]:
        """Same as ``Types.FLOAT()``."""
        return BasicTypeInfo(BasicType.FLOAT)

    @staticmethod
    def DOUBLE_TYPE_INFO() -> BasicTypeInfo[float]:
        """Same as ``Types.DOUBLE()``."""
        return BasicTypeInfo(BasicType.DOUBLE)

    @staticmethod
    def CHAR_TYPE_INFO() -> BasicTypeInfo[str]:
        """Same as ``Types.CHAR()``."""
        return BasicTypeInfo(BasicType.CHAR)

    @staticmethod
    def BIG_INT_TYPE_INFO() -> BasicTypeInfo[int]:
        """Same as ``Types.BIG_INT()``."""
        return BasicTypeInfo(BasicType.BIG_INT)

    @staticmethod
    def BIG_DEC_TYPE_INFO() -> BasicTypeInfo[Decimal]:
        """Same as ``Types.BIG_DEC()``."""
        return BasicTypeInfo(BasicType.BIG_DEC)

    @staticmethod
    def INSTANT_TYPE_INFO() -> InstantTypeInfo:
        """Same as ``Types.INSTANT()``."""
        return InstantTypeInfo(BasicType.INSTANT)


class ByteTypeInfo(BasicTypeInfo[int]):
    """The type of whole numbers of 8 bits. A class of its own, as an array of them is ``bytes``, not a list."""


class InstantTypeInfo(BasicTypeInfo[Instant]):
    """The type of `Instant` values."""


class SqlTimeTypeInfo(TypeInformation[V]):
    """The type of ``datetime.date``, ``time`` or ``datetime`` values without a time zone; times keep milliseconds."""

    kind: str

    def __init__(self, kind: str) -> None:
        self.__dict__["kind"] = kind
        conform, codec = _SQL[kind]
        self._seal((kind,), int, conform, codec)

    def _describe(self) -> dict[str, Any]:
        return {"type": self.kind}

    def _text(self) -> str:
        return f"{self.kind.removeprefix('SQL_').capitalize()}TypeInfo"

    @staticmethod
    def DATE() -> SqlTimeTypeInfo[datetime.date]:
        """Same as ``Types.SQL_DATE()``."""
        return SqlTimeTypeInfo("SQL_DATE")

    @staticmethod
    def TIME() -> SqlTimeTypeInfo[datetime.time]:
        """Same as ``Types.SQL_TIME()``."""
        return SqlTimeTypeInfo("SQL_TIME")

    @staticmethod
    def TIMESTAMP() -> SqlTimeTypeInfo[datetime.datetime]:
        """Same as ``Types.SQL_TIMESTAMP()``."""
        return SqlTimeTypeInfo("SQL_TIMESTAMP")


_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_MS = datetime.timedelta(milliseconds=1)


def _date(value: Any) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value if type(value) is datetime.date else datetime.date(value.year, value.month, value.day)
    raise refuse("SQL_DATE", value)


def _time(value: Any) -> datetime.time:
    if not isinstance(value, datetime.time):
        raise refuse("SQL_TIME", value)
    if value.tzinfo is not None:
        raise ValueError(f"SQL_TIME holds times without a time zone, got {value!r}")
    if type(value) is not datetime.time:
        value = datetime.time(value.hour, value.minute, value.second, value.microsecond)
    time: datetime.time = value.replace(microsecond=value.microsecond // 1000 * 1000, fold=0)
    return time


def _timestamp(value: Any) -> datetime.datetime:
    if not isinstance(value, datetime.datetime):
        raise refuse("SQL_TIMESTAMP", value)
    if value.tzinfo is not None:
        raise ValueError(
            f"SQL_TIMESTAMP holds times without a time zone, got {value!r}; "
            "convert it with value.astimezone(datetime.timezone.utc).replace(tzinfo=None), or declare INSTANT"
        )
    if type(value) is not datetime.datetime:
        value = datetime.datetime.combine(_date(value.date()), _time(value.time()))
    moment: datetime.datetime = value.replace(microsecond=value.microsecond // 1000 * 1000, fold=0)
    return moment


def _time_to_ms(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


_SQL: dict[str, tuple[Conform, tuple[Conform, Conform]]] = {
    "SQL_DATE": (
        _date,
        (lambda v: v.toordinal() - _EPOCH_DAY, lambda s: datetime.date.fromordinal(s + _EPOCH_DAY)),
    ),
    "SQL_TIME": (_time, (_time_to_ms, lambda s: (_EPOCH + s * _MS).time())),
    "SQL_TIMESTAMP": (_timestamp, (lambda v: (v - _EPOCH) // _MS, lambda s: _EPOCH + s * _MS)),
}


class PickledBytesTypeInfo(TypeInformation[Any]):
    """The type of any picklable object, used where no type is declared."""

    is_pickled: ClassVar[bool] = True

    def __init__(self) -> None:
        self._seal(("PICKLED_BYTE_ARRAY",), bytes, lambda value: value, (pickling.dumps, pickling.loads))

    def _describe(self) -> dict[str, Any]:
        return {"type": "PICKLED_BYTE_ARRAY"}

    def _text(self) -> str:
        return "PickledByteArrayTypeInfo"


for _basic in BasicType:
    _cls = InstantTypeInfo if _basic is BasicType.INSTANT else BasicTypeInfo
    register(_basic.name, lambda node, cls=_cls, basic=_basic: cls(basic))  # type: ignore[misc]
for _kind in _SQL:
    register(_kind, lambda node: SqlTimeTypeInfo(node["type"]))
register("PICKLED_BYTE_ARRAY", lambda node: PickledBytesTypeInfo())
