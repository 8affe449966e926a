"""What people ask about the whole: why a job does not run, how many there are, what needs a person. Reads only."""
