"""Orders with Flask and SQLAlchemy, all of it blocking: `python -m examples.orders_flask [postgresql://…]`.

models      the shop's own table, and the session of each request
jobs        what is done in the background
web         the application
"""
