"""What happens to single jobs: claim, settle, steer, reap, complete."""
