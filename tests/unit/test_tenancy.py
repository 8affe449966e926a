"""Names of tenants and hosts: whatever comes from outside, only what is plain becomes part of SQL or of a path."""

from __future__ import annotations

import re
from pathlib import PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import InvalidInput
from holdfast.settings import Settings
from holdfast.tenancy import (
    LONGEST_CONTROL,
    LONGEST_PLACE,
    check_host,
    check_tenant_name,
    directory_of,
    file_of,
    schema_of,
)

PLAIN = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)
NASTY = st.text(st.sampled_from("ab09_'\"\\;-./ $%\0\nÄßé\u0131\u0130\uff41\u202e"), max_size=70)


@given(st.one_of(st.text(max_size=80), NASTY, st.from_regex(r"[a-z][a-z0-9_]{25,40}", fullmatch=True)))
@example("../x")
@example("acme\n")
@example("Acme")
@example('a"; DROP SCHEMA public; --')
@example("a" * 32)
@example("\uff41cme")
@example("pg_acme")
@example("public")
@example("information_schema")
@example("acme.db")
def test_a_name_is_plain_or_refused(name: str) -> None:
    """S-14."""
    is_plain = PLAIN.fullmatch(name) is not None
    is_plain = is_plain and not name.startswith("pg_") and name not in ("public", "information_schema")
    if not is_plain:
        for use in (check_tenant_name, file_of, lambda each: schema_of("control", each)):
            with pytest.raises(InvalidInput):
                use(name)
        return
    assert check_tenant_name(name) == name
    assert PurePath(file_of(name)).name == f"{name}.db"
    assert len(schema_of("c" * LONGEST_CONTROL, name).encode()) <= LONGEST_PLACE
    assert len(f"holdfast_{schema_of('c' * LONGEST_CONTROL, name)}".encode()) <= 63


@given(st.from_regex(r"[a-z][a-z0-9_]{0,19}", fullmatch=True), st.from_regex(r"[a-z][a-z0-9_]{0,19}", fullmatch=True))
def test_two_names_have_two_places(one: str, other: str) -> None:
    if one == other or {one, other} & {"public"} or "pg_" in (one[:3], other[:3]):
        return
    assert schema_of("control", one) != schema_of("control", other)
    assert file_of(one) != file_of(other)


@pytest.mark.parametrize("name", [None, 7, b"acme", ["acme"], True])
def test_what_is_no_text_is_no_name(name: object) -> None:
    with pytest.raises(InvalidInput, match="the name of a tenant begins with a letter"):
        check_tenant_name(name)


@pytest.mark.parametrize(
    ("given_as", "stored"),
    [
        ("acme.example.com", "acme.example.com"),
        ("ACME.Example.COM:8443", "acme.example.com"),
        ("acme.example.com.", "acme.example.com"),
        ("localhost:8000", "localhost"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("10.1.2.3:80", "10.1.2.3"),
    ],
)
def test_a_host_is_stored_in_lower_case_and_without_a_port(given_as: str, stored: str) -> None:
    assert check_host(given_as) == stored


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "a b",
        "bücher.example",
        "-a.example",
        "a..b",
        "a" * 64 + ".example",
        "a." * 127 + "aa",
        "a/b",
        "x:y",
        "[::1]:80",
        None,
        7,
    ],
)
def test_what_is_no_host_is_refused(host: object) -> None:
    with pytest.raises(InvalidInput, match="host must be a host name"):
        check_host(host)


@given(st.one_of(st.text(max_size=80), NASTY))
def test_a_host_is_plain_or_refused(host: str) -> None:
    try:
        stored = check_host(host)
    except InvalidInput:
        return
    assert re.fullmatch(r"[a-z0-9.-]{1,253}", stored, re.ASCII)
    assert check_host(stored) == stored


def test_the_directory_is_beside_the_file() -> None:
    assert directory_of("/var/lib/jobs.db") == "/var/lib/jobs.db.tenants"
    assert directory_of("/var/lib/jobs") == "/var/lib/jobs.tenants"
    assert directory_of("/var/lib.d/jobs.old.db") == "/var/lib.d/jobs.old.db.tenants"


def test_the_address_for_migrations_is_shown_nowhere() -> None:
    assert "hunter2" not in repr(Settings(migrations_url="postgresql://owner:hunter2@host/app"))
