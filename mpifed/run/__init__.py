"""A run: the loop of rounds, and what starts, ends, records and resumes it."""
