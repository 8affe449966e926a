"""The one Holdfast of a Django project, and the registry that its apps put their tasks into.

    HOLDFAST = {"database": "default"}       built here, from DATABASES; more keys are settings of Holdfast
    HOLDFAST = {"app": "shop.jobs:hf"}       or the project's own object
    HOLDFAST = {…, "http": {"proxies": …}}   keywords of `asgi`, if the project serves the HTTP API

It is built when it is first asked for, and anew if the database is another by then: a test runner puts its own in the
place of the project's after all modules have been imported.
"""

from __future__ import annotations

import threading
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from holdfast.app import Holdfast
from holdfast.errors import Misuse, got
from holdfast.integrations.django.addresses import address_of, connection_of
from holdfast.integrations.django.provider import Django
from holdfast.settings import Settings
from holdfast.supervisor.launch import import_app
from holdfast.tasks.registry import Tasks

tasks = Tasks()
"""The project's tasks: `@tasks.task(name="shop.charge")` in any app's `tasks.py`."""

_LOCK = threading.Lock()
_BUILT: tuple[dict[str, Any], Holdfast] | None = None


def holdfast() -> Holdfast:
    """Give the project's Holdfast, as `settings.HOLDFAST` says; in a function, not while modules are imported."""
    global _BUILT
    options = _options()
    if "app" in options:
        return _own_app(options["app"])
    if not apps.ready:
        raise Misuse(
            "holdfast() was called before Django has loaded all tasks; call it inside a function, after Django has "
            "started"
        )
    wanted = _wanted(options)
    with _LOCK:
        if _BUILT is None or _BUILT[0] != wanted:
            before = _BUILT
            _BUILT = (wanted, Holdfast(**wanted, tasks=[tasks], transactions=Django(alias())))
            if before is not None:
                before[1].sync.close()
        return _BUILT[1]


def alias() -> str:
    """Name the database of DATABASES that holds our tables."""
    return str(_options().get("database", "default"))


def schema_name() -> str:
    """Name the schema that holds our tables, on PostgreSQL; nothing is connected, nor built."""
    options = _options()
    return str(options.get("schema_name") or Settings.from_environment().schema_name)


def table(name: str) -> str:
    """Name a table of ours as `db_table` takes it: Django puts quotes around it, so those inside end one name."""
    schema = schema_name()
    if schema == "public" or connection_of(alias()).vendor == "sqlite":
        return f"holdfast_{name}"
    return f'{schema}"."holdfast_{name}'


def http_options() -> dict[str, Any]:
    """Give the keywords for the HTTP API."""
    options = _options().get("http", {})
    if not isinstance(options, dict):
        raise ImproperlyConfigured(f'HOLDFAST["http"] must be a dictionary, {got(options)}; write {{"proxies": […]}}')
    return options


def _options() -> dict[str, Any]:
    options = getattr(settings, "HOLDFAST", {})
    if not isinstance(options, dict):
        raise ImproperlyConfigured(
            f'HOLDFAST must be a dictionary, {got(options)}; write HOLDFAST = {{"database": "default"}}'
        )
    if "app" in options and not options.keys() <= {"app", "database", "schema_name", "http"}:
        raise ImproperlyConfigured(
            'HOLDFAST with "app" takes only "database", "schema_name" and "http"; give other settings where you create '
            "hf"
        )
    return options


def _own_app(path: str) -> Holdfast:
    hf = import_app(path)
    if hf.settings.schema_name != schema_name():  # models know their tables before hf can be imported
        raise ImproperlyConfigured(
            f"{path} has the schema {hf.settings.schema_name!r}, but HOLDFAST has {schema_name()!r}; write the same "
            'one: HOLDFAST = {"app": …, "schema_name": …}'
        )
    return hf


def _wanted(options: dict[str, Any]) -> dict[str, Any]:
    """Say how the project's Holdfast is to be made; two that are equal are the same one."""
    name = alias()
    own = {key: value for key, value in options.items() if key != "http"}
    # Django has this where a pooler hands connections out for a transaction each
    pooler = bool(connection_of(name).settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))
    return {"transaction_pooler": pooler, **own, "database": address_of(name)}
