"""One program by three object mappers: it pays an order, and completes its job in the same commit.

Each file is an application for a worker, `holdfast worker tests.acceptance.paying.with_django:hf`. The orders are in
the table that `order_table` makes, and are paid by adding one: whoever pays twice is seen.
"""
