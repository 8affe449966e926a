"""Small programs that run, each of them tested; those in folders are run by `python -m examples.orders_fastapi`."""
