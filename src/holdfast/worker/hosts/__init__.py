"""The host of tenants: one process that serves many of them, with a worker for each that has work."""
