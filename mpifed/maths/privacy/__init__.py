"""Differential privacy: what a job asks for, what a round releases, and what that costs."""
