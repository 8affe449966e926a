"""The store on one SQLite file: the right to write, group commit, read connections."""
