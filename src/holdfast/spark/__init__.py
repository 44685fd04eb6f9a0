"""Spark's DataFrames in and out, and programs that were written for PySpark."""
