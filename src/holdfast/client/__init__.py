"""What the two faces do, written once: start, wait, steer, complete."""
