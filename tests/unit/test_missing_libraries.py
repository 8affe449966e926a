"""A part of Holdfast whose library is not installed says which one it needs, and how to install it (FINDINGS B6)."""

from __future__ import annotations

import importlib
import sys

import pytest

from holdfast import Holdfast, MissingLibrary, UsageError

NEEDED = [  # what is given to pip: Holdfast itself is not on a package index yet
    ("holdfast.database.postgres", "psycopg", ".[postgres]"),
    ("holdfast.http", "starlette", ".[http]"),
    ("holdfast.integrations.alembic", "alembic", "alembic"),
    ("holdfast.integrations.django", "django", ".[django]"),
    ("holdfast.integrations.fastapi", "fastapi", "fastapi"),
    ("holdfast.integrations.sqlalchemy", "sqlalchemy", "sqlalchemy>=2.0"),
    ("holdfast.integrations.starlette", "starlette", ".[http]"),
]


@pytest.mark.parametrize(("module", "library", "install"), NEEDED, ids=[module for module, *_ in NEEDED])
def test_a_part_without_its_library_says_what_to_install(
    module: str, library: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # for Python it is not installed then
    monkeypatch.delitem(sys.modules, module, raising=False)

    with pytest.raises(MissingLibrary) as refused:
        importlib.import_module(module)

    assert isinstance(refused.value, UsageError)
    assert isinstance(refused.value, ImportError)
    assert (refused.value.library, refused.value.install) == (library, install)
    assert f"needs {library}, which is not installed; run `pip install " in str(refused.value)
    assert install in str(refused.value)


def test_an_address_of_postgresql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "holdfast.database.postgres", raising=False)

    with pytest.raises(MissingLibrary, match="PostgreSQL needs psycopg, which is not installed; run `pip install "):
        Holdfast("postgresql://app@db/shop")
