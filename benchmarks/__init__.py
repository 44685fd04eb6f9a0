"""What Holdfast does in a second, and where the second goes: ``python -m benchmarks --help``."""
