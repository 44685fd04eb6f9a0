"""Real surroundings for tests and development: a Kafka broker, sources that fail on cue."""
