"""Kafka source and sink, on confluent-kafka; no jar is needed."""
