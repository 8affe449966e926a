"""Start a temporary PostgreSQL and keep it until Ctrl-C or the end of input: `python -m holdfast.testing`."""

from __future__ import annotations

import contextlib
import sys

from holdfast.testing.postgres import PostgresFailed, PostgresUnavailable, temporary_postgres


def main() -> None:
    """Print the address of a fresh server, and keep it running while somebody listens."""
    with temporary_postgres() as server, contextlib.suppress(KeyboardInterrupt):
        print(f"PostgreSQL {server.version}, {server.origin}: Ctrl-C ends it", file=sys.stderr)
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    try:
        main()
    except (PostgresUnavailable, PostgresFailed) as error:
        sys.exit(str(error))
