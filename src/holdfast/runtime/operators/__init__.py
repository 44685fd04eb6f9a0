"""The operators that transformations become. Each works on batches and pushes what it makes to its outputs."""
