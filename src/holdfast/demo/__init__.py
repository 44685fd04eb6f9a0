"""The demo: live fraud alerts and payment totals, on generated payments, embedded or from Kafka to Kafka."""
