"""Settings come as keywords or from the environment, and wrong ones are named."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidSettings
from holdfast.settings import Settings


def test_keywords_go_before_the_environment() -> None:
    environment = {"HOLDFAST_DATABASE": "env.db", "HOLDFAST_POOL_SIZE": "3", "HOLDFAST_SYNCHRONOUS": "normal"}

    settings = Settings.from_environment(environment, database="own.db")

    assert (settings.database, settings.pool_size, settings.synchronous) == ("own.db", 3, "normal")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("synchronous", "off"),
        ("deadline_seconds", 0),
        ("pool_size", 0),
        ("schema_name", 'a"; DROP'),
        ("schema_name", "pg_mine"),
        ("nonsense", 1),
        ("webhook_secrets", "{"),
        ("webhook_secrets", {"default": "hunter2"}),
        ("webhook_secrets", {"default": ["whsec_" + "A" * 32, "whsec_"]}),
        ("webhook_secrets", {"default": []}),
        ("webhook_secrets", ["whsec_" + "A" * 32]),
        ("webhook_secret", "whsec_" + "A" * 32),
        ("webhook_ports", [0]),
        ("webhook_ports", "443 and 80"),
        ("webhook_private_addresses", ["10.0.0.0/99"]),
        ("webhook_attempts", 0),
        ("webhook_retry_seconds", 0),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidSettings, match=name):
        Settings.of(**{name: value})


def test_an_address_with_a_password_is_not_shown() -> None:
    assert "hunter2" not in repr(Settings.of(database="postgresql://app:hunter2@db/shop"))


@pytest.mark.parametrize(
    ("database", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/shop", "postgresql://app:***@db:5432/shop"),
        ("postgresql://app@db/shop", "postgresql://app@db/shop"),
        ("postgresql://db/shop?password=hunter2", "postgresql://db/shop"),
        ("postgresql://app:hun@ter?2/hunter2@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql://app:hunter2@db/shop?user=a@b", "postgresql://app:***@b"),
        ("/var/lib/jobs.db", "/var/lib/jobs.db"),
    ],
)
def test_the_database_is_shown_without_its_password(database: str, shown: str) -> None:
    assert Settings.of(database=database).shown_database == shown


def test_a_file_is_shown_with_its_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert Settings.of(database="jobs.db").shown_database == str(tmp_path / "jobs.db")


@pytest.mark.parametrize("database", [None, ""])
def test_without_a_database_nothing_is_made_and_the_error_says_where_to_name_it(
    database: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOLDFAST_DATABASE", raising=False)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidSettings, match=r"no database is given; pass its address.*HOLDFAST_DATABASE"):
        Holdfast(database)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("database", "is_postgres"),
    [("postgresql://x", True), ("postgres://x", True), ("jobs.db", False), ("/var/postgresql.db", False)],
)
def test_the_address_says_which_database_it_is(database: str, is_postgres: bool) -> None:
    assert Settings.of(database=database).is_postgres is is_postgres


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_what_has_parts_is_json_in_the_environment() -> None:
    settings = Settings.from_environment(
        {
            "HOLDFAST_WEBHOOK_SECRETS": f'{{"default": "{SECRET}", "shop": ["{SECRET}", "{SECRET}"]}}',
            "HOLDFAST_WEBHOOK_PORTS": "null",
            "HOLDFAST_WEBHOOK_HOSTS": '["example.com"]',
            "HOLDFAST_WEBHOOK_PRIVATE_ADDRESSES": '["10.1.0.0/16", "fd00::/8"]',
            "HOLDFAST_WEBHOOK_HTTP": "true",
        }
    )

    assert {name: len(each) for name, each in settings.webhook_secrets.items()} == {"default": 1, "shop": 2}
    assert settings.webhook_secrets["default"][0].get_secret_value() == SECRET
    assert (settings.webhook_ports, settings.webhook_hosts, settings.webhook_http) == (None, ("example.com",), True)
    assert settings.webhook_private_addresses == (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    assert Settings.from_environment({"HOLDFAST_WEBHOOK_PRIVATE_ADDRESSES": "true"}).webhook_private_addresses is True


def test_secrets_are_neither_shown_nor_told_when_they_are_wrong() -> None:
    """S-23."""
    settings = Settings.of(webhook_secrets={"default": SECRET})
    shown = [repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()]
    for wrong in (
        {"default": f"{SECRET}*"},
        {"default": [SECRET, 7]},
        f'{{"default": "{SECRET}"',
        {"a": {"b": SECRET}},
    ):
        given: dict[str, object] = {"webhook_secrets": wrong}
        with pytest.raises(InvalidSettings) as ours:
            Settings.of(**given)
        with pytest.raises(InvalidSettings) as theirs:
            Settings(**given)  # type: ignore[arg-type]
        shown += [str(ours.value), str(theirs.value)]

    assert len(shown) == 12
    assert not [text for text in shown if SECRET[6:20] in text]
