"""Tables of guarantees and faults, made from the docstrings of the tests for the docs."""
