"""What must never be."""


class Violation(AssertionError):
    """Something that must never be."""
