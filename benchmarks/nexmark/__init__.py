"""Nexmark: an online auction's persons, auctions and bids, and the benchmark's queries as DataStream programs."""
