"""The jobs under test, each with its model in plain Python, which computes the expected output."""
