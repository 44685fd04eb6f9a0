"""OutputTag, the name of a side output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, overload

from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.values.type_variables import T

if TYPE_CHECKING:
    from holdfast.common.types import Row

__all__ = ["OutputTag", "Tagged"]


class OutputTag(Generic[T]):
    """The name and type of a side output. A function emits to it with ``yield tag, value``.

    Two tags are equal when their ids are equal.

    Args:
        tag_id: the name, not empty.
        type_info: the records' type; a list of types stands for ``Types.ROW`` of them; None: any type.

    Raises:
        ValueError: the id is empty.
        TypeError: the id is not a string, or the type is not a TypeInformation.
    """

    __slots__ = ("tag_id", "type_info")

    @overload
    def __init__(self: OutputTag[Any], tag_id: str, type_info: None = None) -> None: ...

    @overload
    def __init__(self: OutputTag[Row], tag_id: str, type_info: list[TypeInformation]) -> None: ...

    @overload
    def __init__(self, tag_id: str, type_info: TypeInformation[T]) -> None: ...

    def __init__(self, tag_id: str, type_info: TypeInformation | list[TypeInformation] | None = None) -> None:
        if not isinstance(tag_id, str):
            raise TypeError(f"an OutputTag's id must be a string, got {tag_id!r}")
        if not tag_id:
            raise ValueError("an OutputTag's id must not be empty")
        if isinstance(type_info, list):
            type_info = RowTypeInfo(type_info)
        if type_info is not None and not isinstance(type_info, TypeInformation):
            raise TypeError(f"an OutputTag's type must be a type like Types.LONG(), got {type_info!r}")
        self.tag_id = tag_id
        self.type_info: TypeInformation | None = type_info

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OutputTag):
            return NotImplemented
        return self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"


Tagged = tuple[OutputTag[Any], Any]
"""An element for a side output: the tag and the value."""
