"""Connections and transactions, on SQLite, PostgreSQL and callers' own connections; knows no job."""
