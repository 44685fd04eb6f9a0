"""The same workloads on other engines, in environments of their own."""
