"""Protobuf schemas: the binary form of messages to objects of their generated class, and back."""

from __future__ import annotations

from typing import Any, Generic

from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.typeinfo.base import shown
from holdfast.common.values.type_variables import V
from holdfast.errors import ConfigurationError

__all__ = ["ProtobufDeserializationSchema", "ProtobufSerializationSchema"]


def _check_class(message_class: Any, where: str) -> None:
    if not isinstance(message_class, type) or not hasattr(message_class, "FromString"):
        raise ConfigurationError(f"{where} takes a message class that protoc has generated, not {message_class!r}")


class ProtobufDeserializationSchema(DeserializationSchema[V], Generic[V]):
    """Deserializes messages to objects of a class that protoc has generated. The module of the class must reach the workers.

    Args:
        message_class: The class.

    Raises:
        ConfigurationError: it is no such class.
    """

    def __init__(self, message_class: type[V]) -> None:
        _check_class(message_class, "ProtobufDeserializationSchema")
        self._class: Any = message_class

    def deserialize(self, data: bytes) -> V:
        """Decode a message.

        Raises:
            ValueError: the bytes are not such a message.
        """
        try:
            return self._class.FromString(data)  # type: ignore[no-any-return]
        except Exception as error:  # protobuf's DecodeError has no base of its own
            raise ValueError(f"not a {self._class.__name__} message: {error}, in {shown(data)}") from error


class ProtobufSerializationSchema(SerializationSchema[V], Generic[V]):
    """Serializes messages of a class that protoc has generated.

    Args:
        message_class: The class.

    Raises:
        ConfigurationError: it is no such class.
    """

    def __init__(self, message_class: type[V]) -> None:
        _check_class(message_class, "ProtobufSerializationSchema")
        self._class: Any = message_class

    def serialize(self, value: V) -> bytes:
        """Encode a message.

        Raises:
            TypeError: it is of another class.
            Exception: a required field is missing.
        """
        if not isinstance(value, self._class):
            raise TypeError(f"ProtobufSerializationSchema writes {self._class.__name__} messages, got {shown(value)}")
        return value.SerializeToString(deterministic=True)  # type: ignore[no-any-return]
