"""Protobuf messages as elements: their binary form, and their way through a job."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("google.protobuf", reason="needs protobuf")

from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from holdfast.datastream.formats.protobuf import ProtobufDeserializationSchema, ProtobufSerializationSchema
from holdfast.errors import ConfigurationError
from holdfast.testing import InProcessEnvironment


def a_message_survives_its_binary_form() -> None:
    read, write = ProtobufDeserializationSchema(Timestamp), ProtobufSerializationSchema(Timestamp)
    read, write = pickle.loads(pickle.dumps((read, write)))
    assert read.deserialize(write.serialize(Timestamp(seconds=5, nanos=7))) == Timestamp(seconds=5, nanos=7)


def a_message_passes_shuffles_and_copies_of_a_job() -> None:
    def payment(shop: str, amount: float) -> Struct:
        made = Struct()
        made.update({"shop": shop, "amount": amount})
        return made

    env = InProcessEnvironment().set_parallelism(2)
    data = [payment("a", 1).SerializeToString(), payment("a", 2).SerializeToString()]
    messages = env.from_collection(data).map(ProtobufDeserializationSchema(Struct).deserialize)
    totals = messages.key_by(lambda m: m["shop"]).reduce(lambda a, b: payment(a["shop"], a["amount"] + b["amount"]))
    with totals.execute_and_collect() as results:
        assert [total["amount"] for total in results] == [1, 3]


def a_message_that_does_not_parse_is_reported_with_its_bytes() -> None:
    with pytest.raises(ValueError, match=r"not a Timestamp message: .*, in b'no message'"):
        ProtobufDeserializationSchema(Timestamp).deserialize(b"no message")


def a_wrong_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes a message class that protoc has generated"):
        ProtobufDeserializationSchema(dict)
    with pytest.raises(TypeError, match="writes Timestamp messages"):
        ProtobufSerializationSchema(Timestamp).serialize(Struct())  # type: ignore[arg-type]
