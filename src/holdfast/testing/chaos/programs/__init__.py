"""The jobs under test, each with its model: what it must have written, in plain Python."""
