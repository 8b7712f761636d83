"""Runs under Slurm: a job is submitted, and what became of it is told."""
