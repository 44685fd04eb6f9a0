"""Real surroundings for tests and development: Kafka brokers, a Spark cluster, storage that fails, a fault campaign."""
