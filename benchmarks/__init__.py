"""Benchmarks: Holdfast's throughput, latency and resources, and where the time goes. ``python -m benchmarks --help``."""
