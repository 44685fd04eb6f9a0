"""The demo: live fraud alerts and payment totals, on generated payments, embedded or from Kafka to Kafka.

Private: it is run, not imported.
"""
