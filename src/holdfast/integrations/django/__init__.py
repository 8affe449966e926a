"""Holdfast in a Django project: one app, `holdfast.integrations.django`, that reads `settings.HOLDFAST`.

    project      the project's one Holdfast, and its registry of tasks
    addresses    DATABASES says where the database is; nobody writes it twice
    provider     `atomic()` as the transaction of blocks
    connections  Django's connections around jobs
    operations   our migrations inside Django's
    models       our tables for the admin, which shows them and changes nothing

`holdfast()` is the project's one Holdfast: `holdfast().sync.start(charge(order_id=7), connection="default")`.
"""

from importlib.util import find_spec

from holdfast.errors import MissingLibrary

if find_spec("django") is None:
    raise MissingLibrary("holdfast.integrations.django", "django", ".[django]")

from holdfast.integrations.django.connections import tidy_connections
from holdfast.integrations.django.project import holdfast, tasks
from holdfast.integrations.django.provider import Django

__all__ = ["Django", "holdfast", "tasks", "tidy_connections"]
