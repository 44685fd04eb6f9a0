"""Flink's REST API over the jobs of this driver.

Private: other programs ask it by HTTP.
"""
