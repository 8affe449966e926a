"""Follows the log: one feed a process, and those who read it."""
