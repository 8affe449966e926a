"""Chains: start, continue, end, delete, and what waits for them."""
