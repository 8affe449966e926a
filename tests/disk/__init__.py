"""SQLite on disks that are full, that fail, and whose power is cut."""
