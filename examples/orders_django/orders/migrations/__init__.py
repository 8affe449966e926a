"""The history of the shop's own table."""
