"""The demo: live fraud alerts and payment totals, on an embedded generator or from Kafka to Kafka."""
