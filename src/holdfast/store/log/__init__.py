"""The log of events: append, fan out to webhooks, read, prune."""
