"""Child processes of a worker: handlers with `run_in="process"` run there, and can be killed."""
