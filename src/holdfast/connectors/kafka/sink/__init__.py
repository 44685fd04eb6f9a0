"""The Kafka sink: writers prepare transactions, the driver's committer ends them.

Invariant: a checkpoint names the transactions that it commits; a copy in the outbox stands in for one that the broker lost.
"""
