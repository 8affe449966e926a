"""The settings of the shop, on a SQLite file unless SHOP_DATABASE has the address of a PostgreSQL."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

SHOP_DATABASE = os.environ.get("SHOP_DATABASE", "shop.sqlite3")


def database(address: str) -> dict[str, Any]:
    """Write an address as Django reads it; in a project of your own, DATABASES is all that you write."""
    if not address.startswith("postgresql://"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": address, "TEST": {"NAME": f"{address}.test"}}
    parts = urlsplit(address)
    place = {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password}
    return {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path.removeprefix("/"), **place}


SECRET_KEY = "of an example"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost"]
USE_TZ = True
ROOT_URLCONF = "examples.orders_django.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": {**database(SHOP_DATABASE), "ATOMIC_REQUESTS": True}}
HOLDFAST = {"database": "default"}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "holdfast.integrations.django",
    "examples.orders_django.orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
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
]
