"""What every worker does beside its jobs: reap, make webhook deliveries, retain."""
