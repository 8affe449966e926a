"""Faults that tests put into the network, the disk and the clock."""
