"""Kafka as a source and a sink, on confluent-kafka; no jar is needed."""
