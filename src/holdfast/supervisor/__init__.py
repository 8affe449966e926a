"""Worker processes: how one begins, lives and ends, and how several are supervised."""
