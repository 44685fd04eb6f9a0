"""Formats of records: Avro, CSV, JSON, Protobuf and Arrow, and columns of them."""
