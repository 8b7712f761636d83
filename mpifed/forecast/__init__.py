"""Forecasts before a job runs: what it sends, who learns what, and the time and memory it takes."""
