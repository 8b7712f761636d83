"""Runs under Slurm: submitting jobs and reporting their status."""
