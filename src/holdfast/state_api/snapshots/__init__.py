"""Checkpoints and savepoints as a whole: listed and opened, described, compared, verified, held and pruned.

Knows stored forms, and neither a program nor Spark, which the State Processor API beside it needs.
"""
