"""Programs that tests start, and what they tell each other."""
