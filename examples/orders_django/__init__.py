"""Orders with Django: `python -m examples.orders_django [postgresql://…]`.

settings    a project of one app; HOLDFAST names the database that holds the jobs
orders      the app: its model, its views, its tasks
manage      the project's commands: `python -m examples.orders_django.manage holdfast_worker`
"""
