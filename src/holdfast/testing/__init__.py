"""Real infrastructure for tests and development: Kafka brokers, a Spark cluster, faulty storage, a fault campaign."""
