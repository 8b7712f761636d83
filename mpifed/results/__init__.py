"""Finished runs, read: summaries, comparisons, choices. No MPI, no running."""
