"""The same workloads on other engines, each in its own environment."""
