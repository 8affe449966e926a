"""Orders with FastAPI and SQLAlchemy: `python -m examples.orders_fastapi [postgresql://…]` takes some and ends.

models      the shop's own table
jobs        what is done in the background
web         the application, in whose process the worker runs
"""
