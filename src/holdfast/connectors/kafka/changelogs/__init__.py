"""Changelogs of keyed state in compacted Kafka topics."""
