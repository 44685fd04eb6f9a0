"""Flink's REST API over the jobs of this driver."""
