"""The one Holdfast of a Django project: built from DATABASES, or the project's own."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast, InvalidSettings, Misuse
from holdfast.database.tx import Row, Tx
from holdfast.integrations.django import holdfast
from holdfast.integrations.django.addresses import address_of
from holdfast.integrations.django.project import table
from tests.integrations.django_site import forget, greet, on_postgres, on_sqlite
from tests.support.databases import django_project

OWN = Holdfast("own.db")
"""The object of a project that makes its own."""
OTHERS = Holdfast("own.db", schema_name="jobs")


def test_it_is_built_once_and_leads_to_djangos_database(site: Holdfast) -> None:
    with transaction.atomic():
        site.sync.start(greet(name="Ada"), connection="default")

    assert holdfast() is site
    assert [job.task for job in site.sync.list_jobs()] == ["greet"]


@on_sqlite
def test_a_test_runner_that_puts_another_database_in_its_place_is_followed(site: Holdfast) -> None:
    before = site.settings.database
    connections["default"].settings_dict["NAME"] = f"{before}.test"

    other = holdfast()

    assert (other is site, other.settings.database) == (False, f"{before}.test")
    connections["default"].settings_dict["NAME"] = before


@on_sqlite
def test_while_modules_are_imported_not_all_tasks_are_known_so_it_is_refused(
    site: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps, "ready", False)

    with pytest.raises(Misuse, match="inside a function, after Django has started"):
        holdfast()


@on_sqlite
def test_other_keys_are_settings_of_holdfast(site: Holdfast) -> None:
    with override_settings(HOLDFAST={"deadline_seconds": 1.5, "require_connection": True}):
        made = holdfast().settings

    assert (made.deadline_seconds, made.require_connection) == (1.5, True)
    with override_settings(HOLDFAST={"deadline": 1.5}), pytest.raises(InvalidSettings, match="deadline"):
        holdfast()


@on_sqlite
def test_where_django_expects_a_transaction_pooler_holdfast_does_too(site: Holdfast) -> None:
    connections["default"].settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = True

    assert holdfast().settings.transaction_pooler is True


def test_a_project_may_have_an_object_of_its_own() -> None:
    with override_settings(HOLDFAST={"app": f"{__name__}:OWN"}):
        assert holdfast() is OWN


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"app": f"{__name__}:OWN", "pool_size": 3}, "give other settings where you create hf"),
        ({"app": f"{__name__}:OTHERS"}, "has the schema 'jobs'"),
        (["default"], "HOLDFAST must be a dictionary"),
        ({"database": "nowhere"}, "names the database 'nowhere', but DATABASES has only"),
    ],
)
def test_what_is_wrong_with_the_setting_is_said(options: object, told: str) -> None:
    with override_settings(HOLDFAST=options), pytest.raises(ImproperlyConfigured, match=told):
        holdfast()


def test_an_object_in_a_schema_of_its_own_is_named_with_it() -> None:
    with override_settings(HOLDFAST={"app": f"{__name__}:OTHERS", "schema_name": "jobs"}):
        assert holdfast() is OTHERS


# ---- addresses


@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_a_database_in_memory_is_refused_with_what_tests_need(name: str) -> None:
    with django_project.databases(default=django_project.database(name)):
        with pytest.raises(ImproperlyConfigured, match=r'"TEST": \{"NAME": BASE_DIR / "test.sqlite3"\}'):
            address_of("default")


def test_a_file_address_is_refused() -> None:
    with django_project.databases(default=django_project.database("file:shop.db?mode=ro")):
        with pytest.raises(ImproperlyConfigured, match="write only the path"):
            address_of("default")


def test_another_kind_of_database_is_refused() -> None:
    with django_project.databases(default={"ENGINE": "django.db.backends.dummy"}):
        with pytest.raises(ImproperlyConfigured, match="Holdfast needs PostgreSQL or SQLite"):
            address_of("default")


def test_an_address_has_all_that_django_would_connect_with_and_nothing_that_is_djangos() -> None:
    entry = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "a shop", "USER": "ada", "PASSWORD": "p@ss w/rd%", "HOST": "/run/postgresql", "PORT": 5433,
        "OPTIONS": {"sslmode": "require", "options": "-c work_mem=8MB", "assume_role": "the owner",
                    "server_side_binding": True, "isolation_level": 2},
    }  # fmt: skip

    with django_project.databases(default=entry):
        address = address_of("default")

    assert conninfo_to_dict(address) == {
        "dbname": "a shop", "user": "ada", "password": "p@ss w/rd%", "host": "/run/postgresql", "port": "5433",
        "sslmode": "require", "options": r"-c work_mem=8MB -c role=the\ owner",
    }  # fmt: skip


@on_postgres
def test_holdfast_has_the_role_that_django_assumes(site: Holdfast) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE ROLE the_owner; GRANT ALL ON ALL TABLES IN SCHEMA public TO the_owner")
    connections["default"].settings_dict["OPTIONS"]["assume_role"] = "the_owner"

    hf = holdfast()

    async def role(tx: Tx) -> list[Row]:
        return await tx.fetch_all("SELECT CAST(current_user AS text)")

    assert hf.store.read_sync(role) == [("the_owner",)]
    forget()
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP OWNED BY the_owner; DROP ROLE the_owner")


@on_postgres
def test_models_name_their_schema_unless_it_is_public(site: Holdfast) -> None:
    assert table("job") == "holdfast_job"
    with override_settings(HOLDFAST={"schema_name": "jobs"}):
        assert connections["default"].ops.quote_name(table("job")) == '"jobs"."holdfast_job"'
