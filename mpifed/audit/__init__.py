"""Audit of what a run reveals to its parties: counts, attacks and tests, compared with what the job declares."""
