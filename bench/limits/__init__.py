"""The bare drivers doing by hand what a start does: the same rows in the same tables, nothing checked, nothing read."""
