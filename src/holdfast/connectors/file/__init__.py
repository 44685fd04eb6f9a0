"""Files as a source (lines, CSV, JSON lines, Parquet) and as a sink."""
