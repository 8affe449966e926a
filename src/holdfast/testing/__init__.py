"""What tests of programs that use Holdfast need."""

from holdfast.testing.postgres import (
    NotOurServer,
    PostgresFailed,
    PostgresServer,
    PostgresUnavailable,
    temporary_postgres,
)

__all__ = ["NotOurServer", "PostgresFailed", "PostgresServer", "PostgresUnavailable", "temporary_postgres"]
