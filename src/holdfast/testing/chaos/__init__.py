"""A fault campaign on real Spark and real Kafka: ``python -m holdfast.testing.chaos --minutes 10 --seed 7``."""
