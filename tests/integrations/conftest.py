"""What tests of integrations share."""

from tests.integrations.django_site import (
    empty_database,
    migrated_file,
    migrated_server_database,
    servers_databases,
    site,
)

__all__ = ["empty_database", "migrated_file", "migrated_server_database", "servers_databases", "site"]
