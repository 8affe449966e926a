"""What every worker does beside its jobs: reap, retain."""
