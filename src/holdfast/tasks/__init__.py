"""Tasks, their calls and what is known of their functions."""
