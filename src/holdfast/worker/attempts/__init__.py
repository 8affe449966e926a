"""One run of one job: the handler, its context, its blocks, its end."""
