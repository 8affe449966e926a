"""A Django project for tests: configured once in a process, with databases that come and go."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from psycopg.conninfo import conninfo_to_dict

APPS = (
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "holdfast.integrations.django",
)


def configure() -> None:
    """Configure Django, unless that has been done."""
    if settings.configured:
        return
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # our tests run in an event loop, also those of blocking code
    settings.configure(
        SECRET_KEY="of tests",
        ALLOWED_HOSTS=["testserver"],
        USE_TZ=True,
        DATABASES={},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=APPS,
        ROOT_URLCONF="tests.integrations.django_urls",
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
    )
    django.setup()
    # now, as its models: both name their tables by the settings of the moment, which some tests change
    MigrationLoader(None, ignore_no_migrations=True)
    # a connection for each thread, as in blocking code; in an event loop Django would have one for each task
    connections._connections = threading.local()


def database(address: str, **options: Any) -> dict[str, Any]:
    """Write a PostgreSQL address, or the path of a SQLite file, as an entry of DATABASES."""
    if not address.startswith("postgresql://"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": address, "OPTIONS": options}
    given = conninfo_to_dict(address)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    known = {key: str(given.pop(name, None) or "") for key, name in names.items()}
    return {"ENGINE": "django.db.backends.postgresql", **known, "OPTIONS": {**given, **options}}


def add(alias: str, entry: dict[str, Any]) -> None:
    """Put an entry into DATABASES, with all that Django adds to it."""
    whole = connections.configure_settings({"default": {}, alias: entry})
    connections.settings[alias] = whole[alias]


def remove(alias: str) -> None:
    """Close this thread's connection of an alias, and take it out of DATABASES."""
    drop(alias)
    del connections.settings[alias]


def drop(alias: str) -> None:
    """Close this thread's connection of an alias."""
    connections[alias].close()
    del connections[alias]


@contextmanager
def databases(**entries: dict[str, Any]) -> Iterator[None]:
    """Have DATABASES be these, for as long as the block lasts."""
    before = dict(connections.settings)
    for alias in before:
        if hasattr(connections._connections, alias):
            del connections[alias]
    connections.settings.clear()
    for alias, entry in entries.items():
        add(alias, entry)
    try:
        yield
    finally:
        for alias in entries:
            remove(alias)
        connections.settings.update(before)


configure()
