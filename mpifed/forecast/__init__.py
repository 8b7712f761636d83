"""Forecasts before a job runs: what it sends, who learns what, and what a private one spends."""
