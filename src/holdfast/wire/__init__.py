"""How jobs and events look outside: JSON, frames of a stream, bodies of webhooks, cursors; pure."""
